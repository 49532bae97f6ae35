"""A trainer's config: one JSON object, read strictly into frozen dataclasses. Standard library only.

    @dataclass(frozen=True)
    class Codec:
        steps: int = at_least(1)
        dropout: float = between(0, 1)

    config.read(path, Config)      ConfigError carries the message and the fix

Nothing is guessed: unknown, missing and doubled keys, text for a number, NaN, a byte order mark and broken JSON are
refused, by name or by line and column.

Not here: what the keys mean (each trainer's config.py), the tool's own settings (settings.py).
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
import os
from typing import Any, Dict, List, Tuple, Type, TypeVar, get_type_hints

T = TypeVar("T")
LIMIT_BYTES = 1 << 20


class ConfigError(ValueError):
    """The config can't be used; `fix` is the next thing to do."""

    def __init__(self, message: str, fix: str) -> None:
        super().__init__(message)
        self.fix = fix


def at_least(low: float) -> Any:
    """A number that is `low` or more."""
    return dataclasses.field(metadata={"low": low})


def between(low: float, high: float) -> Any:
    """A number from `low` to `high`, both allowed."""
    return dataclasses.field(metadata={"low": low, "high": high})


def read(path: os.PathLike[str] | str, kind: Type[T]) -> T:
    """Read a config file into the dataclass `kind`. Raises ConfigError; never another exception for a bad file."""
    return build(load(path), kind, os.fspath(path))


def load(path: os.PathLike[str] | str) -> Dict[str, Any]:
    """The JSON object in the file, without judging its keys. Raises ConfigError."""
    name = os.fspath(path)
    try:
        with open(name, "rb") as file:
            raw = file.read(LIMIT_BYTES + 1)
    except OSError as wrong:
        raise ConfigError(f"{name}: {wrong.strerror}", "give the path of a config file") from None
    if len(raw) > LIMIT_BYTES:
        raise ConfigError(f"{name}: more than {LIMIT_BYTES} bytes", "a config is a small JSON object")
    if raw.startswith(b"\xef\xbb\xbf"):
        raise ConfigError(f"{name}: begins with a byte order mark", "save it as UTF-8 without byte order mark")
    try:
        value = json.loads(raw.decode("utf-8"), object_pairs_hook=_no_twins, parse_constant=_no_constant)
    except UnicodeDecodeError as wrong:
        raise ConfigError(f"{name}: byte {wrong.start} is not UTF-8", "save it as UTF-8") from None
    except json.JSONDecodeError as wrong:
        what = "the file is empty" if not raw.strip() else wrong.msg
        place = f"line {wrong.lineno} column {wrong.colno}"
        raise ConfigError(f"{name}: not JSON: {what}, {place}", "JSON has no comments and no trailing commas") from None
    except RecursionError:
        raise ConfigError(f"{name}: nested too deeply", "a config is a small JSON object") from None
    except ConfigError as wrong:
        raise ConfigError(f"{name}: {wrong}", wrong.fix) from None
    if not isinstance(value, dict):
        raise ConfigError(f"{name}: holds {_kind(value)} where an object belongs", "begin it with { and a key")
    return value


def build(value: Dict[str, Any], kind: Type[T], path: str, under: str = "") -> T:
    """Make the dataclass `kind` of a parsed object; `path` and `under` only word the errors."""
    hints = get_type_hints(kind)
    fields = {f.name: f for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    for key in value:
        if key not in fields:
            near = difflib.get_close_matches(key, fields, 1)
            fix = f"did you mean {near[0]!r}?" if near else f"known here: {', '.join(fields)}"
            raise ConfigError(f"{path}: unknown key {under + key!r}", fix)
    given: Dict[str, Any] = {}
    for name, field in fields.items():
        if name in value:
            given[name] = _check(value[name], hints[name], dict(field.metadata), path, under + name)
        elif field.default is dataclasses.MISSING:
            raise ConfigError(f"{path}: key {under + name!r} is missing", f"add {under + name!r}")
    return kind(**given)


def _check(value: Any, want: Any, limits: Dict[str, float], path: str, name: str) -> Any:
    if dataclasses.is_dataclass(want):
        if not isinstance(value, dict):
            raise ConfigError(f"{path}: {name!r} is {_kind(value)}, not an object", f"write {name!r}: {{…}}")
        return build(value, want, path, name + ".")  # type: ignore[arg-type]
    if want is float and type(value) is int:
        value = float(value) if abs(value) < 1 << 53 else math.inf
    if type(value) is not want:
        words = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
        raise ConfigError(f"{path}: {name!r} is {_kind(value)} where {words[want]} belongs", f"correct {name!r}")
    low, high = limits.get("low", -math.inf), limits.get("high", math.inf)
    if want in (int, float) and not (math.isfinite(value) and low <= value <= high):
        span = f"{low:g} or more" if high == math.inf else f"from {low:g} to {high:g}"
        raise ConfigError(f"{path}: {name!r} is {value}, it must be {span}", f"correct {name!r}")
    return value


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f"text ({value[:40]!r})"
    return {dict: "an object", list: "a list", int: "a whole number", float: "a number"}[type(value)]


def _no_twins(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
    seen: Dict[str, Any] = {}
    for key, value in pairs:
        if key in seen:
            raise ConfigError(f"key {key!r} stands twice", f"keep one {key!r}")
        seen[key] = value
    return seen


def _no_constant(word: str) -> Any:
    raise ConfigError(f"{word} is no number to train with", "write a finite number")

"""The tool's own settings: `[tool.remote-run]` of pyproject.toml, or remote-run.toml.

    [tool.remote-run]                      for every run
    [tool.remote-run.runs."sudoku-*"]      for runs whose name matches, later tables over earlier ones
    options of the command line            over both

Here alone an unknown key is an error. CONFIG belongs to the trainer and none of its keys is judged.

Not here: which keys there are (settings_keys.py).
"""

from __future__ import annotations

import difflib
import fnmatch
import glob
import json
import tomllib
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from remote_runner.errors import UsageFault
from remote_runner.pod import files
from remote_runner.settings_keys import DEFAULT_OUTPUT, KEYS_OF, Settings

_ADAPTER: TypeAdapter[Settings] = TypeAdapter(Settings)


def find_root(start: Path) -> Path:
    """The project's folder: the nearest one at or above `start` with settings, or with a .git."""
    for folder in (start, *start.parents):
        if (folder / "remote-run.toml").is_file() or "remote-run" in _tool_table(folder):
            return folder
        if (folder / ".git").exists():
            return folder
    return start


def _tool_table(folder: Path) -> dict[str, Any]:
    path = folder / "pyproject.toml"
    if not path.is_file():
        return {}
    tool = _read_toml(path).get("tool", {})
    return tool if isinstance(tool, dict) else {}


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise UsageFault(f"{path}: {e}", fix="mend the file") from None


def output_globs(root: Path) -> list[str]:
    """Where any run of the project leaves its outputs: what lies below one of these is nobody's code.

    Raises:
        UsageFault: the file can't be read.
    """
    table = _table(root)[1]
    runs = table.get("runs", {})
    names: list[str] = [] if "outputs" in table else [DEFAULT_OUTPUT]
    for one in (table, *(runs.values() if isinstance(runs, dict) else ())):
        found = one.get("outputs", []) if isinstance(one, dict) else []
        names += [found] if isinstance(found, str) else [str(o) for o in found]
    kept = [n.rstrip("/") for n in names if not n.startswith("{name}")]  # else all folders would be outputs
    return ["*".join(glob.escape(part) for part in name.split("{name}")) for name in kept]


def _table(root: Path) -> tuple[Path, dict[str, Any]]:
    """The file that holds the settings, and the settings themselves as they stand there."""
    own = root / "remote-run.toml"
    if own.is_file():
        return own, _read_toml(own)
    return root / "pyproject.toml", dict(_tool_table(root).get("remote-run", {}))


def load(root: Path, name: str) -> Settings:
    """The settings of one run.

    Args:
        root: the project's folder.
        name: the run's.

    Raises:
        UsageFault: an unknown key (the near one is named), a wrong type, or no command for this run.
    """
    path, table = _table(root)
    prefix = "" if path.name == "remote-run.toml" else "tool.remote-run."
    runs = table.pop("runs", {})
    if not isinstance(runs, dict) or not all(isinstance(t, dict) for t in runs.values()):
        raise UsageFault(f"{path}: {prefix}runs must hold tables", fix=f'write [{prefix}runs."<glob of run names>"]')
    origin = dict.fromkeys(table, prefix)
    for pattern, over in runs.items():
        if fnmatch.fnmatchcase(name, pattern):
            for key, value in over.items():
                table[key] = {**table.get(key, {}), **value} if isinstance(value, dict) else value
                origin[key] = f'{prefix}runs."{pattern}".'
    if "command" not in table:
        raise UsageFault(
            f"{path}: no command for the run {name!r}",
            fix=f'add [{prefix}runs."{name}"] with command = "python train.py --config {{config}}"',
        )
    try:
        # as JSON: in strict mode a dataclass takes a table from there, and no number from a string
        found = _ADAPTER.validate_json(json.dumps(table, default=str))
    except ValidationError as e:
        raise _explain(e, path, origin, prefix) from None
    return _fill(found, name, path)


def _fill(found: Settings, name: str, path: Path) -> Settings:
    def named(text: str) -> str:
        return text.replace("{name}", name).rstrip("/")

    outputs = [named(o) for o in found.outputs]
    done_file = named(found.done_file)
    for inner in (*outputs, *found.inputs, *filter(None, [done_file])):
        try:
            files.parts(inner)
        except files.BadPath as e:
            raise UsageFault(
                f"{path}: outputs, inputs, done_file: {e}", fix="write a path inside the project"
            ) from None
    for inner in [*(i.to for i in found.include if i.to), *(d.path for d in found.data)]:
        if any(f"{inner}/".startswith(f"{o}/") or f"{o}/".startswith(f"{inner}/") for o in outputs):
            raise UsageFault(
                f"{path}: {inner} and an output lie in each other", fix="keep data and code out of `outputs`"
            )
    rules = [replace(rule, glob=[named(g) for g in rule.glob]) for rule in found.snapshots]
    return replace(found, outputs=outputs, done_file=done_file, snapshots=rules)


def _explain(error: ValidationError, path: Path, origin: dict[str, str], prefix: str) -> UsageFault:
    first = error.errors()[0]
    # validators stand in the path of an error by their name, as `function-before[…]`
    where = [str(p) for p in first["loc"] if not isinstance(p, int) and "[" not in str(p)]
    full = origin.get(where[0] if where else "", prefix) + ".".join(where)
    fix = "see docs/settings.md for every key"
    if first["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        table = KEYS_OF.get(where[0], Settings) if len(where) > 1 else Settings
        known = [f.name for f in fields(table)]
        near = difflib.get_close_matches(where[-1], known, n=1)
        fix = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(known)}"
    return UsageFault(f"{path}: {full}: {first['msg']}", fix=fix)

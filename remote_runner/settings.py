"""The tool's own settings: `[tool.remote-run]` of pyproject.toml, or remote-run.toml.

    [tool.remote-run]                      for every run
    [tool.remote-run.runs."sudoku-*"]      for runs whose name matches, later tables over earlier ones
    options of the command line            over both

Here alone an unknown key is an error. CONFIG belongs to the trainer and none of its keys is judged.
"""

from __future__ import annotations

import difflib
import fnmatch
import json
import shlex
import tomllib
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError, with_config

from remote_runner import durations
from remote_runner.errors import UsageFault
from remote_runner.pod import files

NCM_MATCH = "-m ncm_mlx train|evaluate|benchmark"  # the guard's default

strict = with_config(ConfigDict(extra="forbid", strict=True, allow_inf_nan=False))


def _words(value: object) -> object:
    """A command may be written as one string, as in a shell, or as a list of words."""
    return shlex.split(value) if isinstance(value, str) else value


def _seconds(value: object) -> object:
    return durations.parse(value) if isinstance(value, str) else value


Command = Annotated[list[str], BeforeValidator(_words)]


@strict
@dataclass(frozen=True, kw_only=True)
class Backup:
    """Where snapshots go while the run goes on."""

    to: str = "backups"  # a directory; see stores/ for what else
    every: Annotated[float, BeforeValidator(_seconds), Field(gt=0)] = 900.0  # seconds; written as "15m"
    keep: Annotated[int, Field(ge=1)] = 5  # newest backups kept in the store


@strict
@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the tool must know of a workload. `{config}`, `{name}` and `{python}` are filled in."""

    command: Command
    then: list[Command] = field(default_factory=list)  # after it, each only when the one before ended with 0
    check: Command | None = None  # judges the config here, before any connection
    resume_args: list[str] = field(default_factory=lambda: ["--resume"])
    outputs: Annotated[list[str], Field(min_length=1)] = field(default_factory=lambda: ["artifacts/{name}"])
    inputs: list[str] = field(default_factory=list)  # uploaded though git ignores them
    match: str | list[str] = NCM_MATCH
    pause: str = "contract"  # or a signal's name, or "none"
    setup: Command | None = None
    env: dict[str, str] = field(default_factory=dict)
    memory_limit_mb: Annotated[int, Field(gt=0)] | None = None
    restarts: Annotated[int, Field(ge=0)] = 0  # how often a crash is resumed on the pod, each time from further on
    project: str = ""  # the project's name on pods and in stores; default: its folder's
    backup: Backup = field(default_factory=Backup)

    @property
    def patterns(self) -> list[str]:
        """What the guard looks for: NCM always, and this workload."""
        own = [self.match] if isinstance(self.match, str) else self.match
        return list(dict.fromkeys([NCM_MATCH, *own]))


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


def load(root: Path, name: str) -> Settings:
    """The settings of one run.

    Args:
        root: the project's folder.
        name: the run's.

    Raises:
        UsageFault: an unknown key (the near one is named), a wrong type, or no command for this run.
    """
    own = root / "remote-run.toml"
    path, prefix = (own, "") if own.is_file() else (root / "pyproject.toml", "tool.remote-run.")
    table = dict(_read_toml(own) if own.is_file() else _tool_table(root).get("remote-run", {}))
    runs = table.pop("runs", {})
    if not isinstance(runs, dict) or not all(isinstance(t, dict) for t in runs.values()):
        raise UsageFault(f"{path}: {prefix}runs must hold tables", fix=f'write [{prefix}runs."<glob of run names>"]')
    origin = dict.fromkeys(table, prefix)
    for glob, over in runs.items():
        if fnmatch.fnmatchcase(name, glob):
            for key, value in over.items():
                table[key] = {**table.get(key, {}), **value} if isinstance(value, dict) else value
                origin[key] = f'{prefix}runs."{glob}".'
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
    outputs = [o.replace("{name}", name).rstrip("/") for o in found.outputs]
    for output in (*outputs, *found.inputs):
        try:
            files.parts(output)
        except files.BadPath as e:
            raise UsageFault(f"{path}: outputs and inputs: {e}", fix="write a path inside the project") from None
    return Settings(**{**{f.name: getattr(found, f.name) for f in fields(found)}, "outputs": outputs})


def _explain(error: ValidationError, path: Path, origin: dict[str, str], prefix: str) -> UsageFault:
    first = error.errors()[0]
    where = [str(p) for p in first["loc"] if not isinstance(p, int) and "[" not in str(p)]
    full = origin.get(where[0] if where else "", prefix) + ".".join(where)
    fix = "see docs/settings.md for every key"
    if first["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        known = [f.name for f in fields(Backup if where[:1] == ["backup"] and len(where) > 1 else Settings)]
        near = difflib.get_close_matches(where[-1], known, n=1)
        fix = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(known)}"
    return UsageFault(f"{path}: {full}: {first['msg']}", fix=fix)

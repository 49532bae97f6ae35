"""The keys of the settings: each with its type and default. docs/settings.md tells users the same.

Not here: where they stand and how tables override each other (settings.py).
"""

from __future__ import annotations

import re
import shlex
import signal
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, with_config

from remote_runner import durations
from remote_runner.pod import foreign

DEFAULT_OUTPUT = "artifacts/{name}"
NCM_MATCH = "-m ncm_mlx train|evaluate|benchmark"  # what the guard always looks for

strict = with_config(ConfigDict(extra="forbid", strict=True, allow_inf_nan=False))


def _words(value: object) -> object:
    """A command may be written as one string, as in a shell, or as a list of words."""
    return shlex.split(value) if isinstance(value, str) else value


def _seconds(value: object) -> object:
    return durations.parse(value) if isinstance(value, str) else value


def _listed(value: object) -> object:
    """One thing stands for a list of one."""
    return [value] if isinstance(value, (str, dict)) else value


def _rule(value: object) -> object:
    """A preset's name stands for its table."""
    if not isinstance(value, str):
        return value
    if value not in foreign.PRESETS:
        raise ValueError(f"no such preset: {value!r}; there are {', '.join(foreign.PRESETS)}")
    return foreign.PRESETS[value]


def _way_to_pause(value: str) -> str:
    if value in ("contract", "none") or (value.startswith("SIG") and value in signal.Signals.__members__):
        return value
    raise ValueError(f'{value!r} is no way to pause: "contract", "none", or a signal\'s name such as "SIGTERM"')


def _pattern(value: str) -> str:
    try:
        groups = re.compile(value).groupindex
    except re.error as e:
        raise ValueError(f"{value!r} is no regular expression: {e}") from None
    if "step" not in groups:
        raise ValueError(f"{value!r} has no group (?P<step>…)")
    return value


Patterns = Annotated[list[Annotated[str, AfterValidator(_pattern)]], BeforeValidator(_listed)]
Command = Annotated[list[str], BeforeValidator(_words)]
Pause = Annotated[str, AfterValidator(_way_to_pause)]


@strict
@dataclass(frozen=True, kw_only=True)
class Backup:
    """Where snapshots go while the run goes on."""

    to: str = "backups"  # a directory; see stores/ for what else
    every: Annotated[float, BeforeValidator(_seconds), Field(gt=0)] = 900.0  # seconds; written as "15m"
    keep: Annotated[int, Field(ge=1)] = 5  # newest backups kept in the store
    push: bool = False  # the pod does it by itself, with the store's credentials; this machine may sleep


@strict
@dataclass(frozen=True, kw_only=True)
class Download:
    """What comes home of a series of checkpoints; everything else of a run comes in any case."""

    keep: str = ""  # all, newest:N (with the best), or a glob; empty: all up to 50 GB, then it asks


@strict
@dataclass(frozen=True, kw_only=True)
class SnapshotRule:
    """How snapshots of a trainer that is not ours are recognised."""

    glob: Annotated[list[str], BeforeValidator(_listed)]  # of files or folders, below the root or after `**/`
    step_regex: str = ""  # group 1 is the step; empty: what the file says inside
    complete: str = ""  # a file in the folder that the trainer writes last

    @property
    def as_rule(self) -> foreign.Rule:
        return {"glob": self.glob, "step_regex": self.step_regex, "complete": self.complete}


@strict
@dataclass(frozen=True, kw_only=True)
class Include:
    """What travels beside git's files: a glob in the project, or a folder elsewhere under a path of its own."""

    path: str
    to: str = ""  # where it lies on the pod; default for one outside the project: its own name


def _include(value: object) -> object:
    if not isinstance(value, str):
        return value
    outside = value.startswith(("/", "~", "../"))
    return {"path": value, "to": value.rstrip("/").rsplit("/", 1)[-1] if outside else ""}


@strict
@dataclass(frozen=True, kw_only=True)
class Data:
    """A data set that is on the pod, or fetched there; it is never uploaded, backed up or downloaded."""

    path: str  # below the root, or absolute
    min_gb: Annotated[float, Field(ge=0)] = 0.0  # less than that is not all of it
    fetch: str = ""  # a shell command, run in the root


Includes = Annotated[list[Annotated[Include, BeforeValidator(_include)]], BeforeValidator(_listed)]
Snapshots = Annotated[list[Annotated[SnapshotRule, BeforeValidator(_rule)]], BeforeValidator(_listed)]


@strict
@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the tool must know of a workload. `{config}`, `{name}`, `{python}` and `{newest}` are filled in."""

    command: Command
    then: list[Command] = field(default_factory=list)  # after it, each only when the one before ended with 0
    check: Command | None = None  # judges the config here, before any connection
    resume_args: Command | None = None  # default: --resume under the contract; another trainer's must be said
    outputs: Annotated[list[str], Field(min_length=1), BeforeValidator(_listed)] = field(
        default_factory=lambda: [DEFAULT_OUTPUT]
    )
    inputs: list[str] = field(default_factory=list)  # uploaded though git ignores them
    include: Includes = field(default_factory=list)  # more files that travel
    exclude: Annotated[list[str], BeforeValidator(_listed)] = field(default_factory=list)  # globs of files that stay
    data: Annotated[list[Data], BeforeValidator(_listed)] = field(default_factory=list)
    match: str | list[str] = ""  # default: what the command runs
    pause: Pause = "none"  # "contract", a signal's name, or "none"
    done_file: str = ""  # its trainer writes it when all is done
    snapshots: Snapshots = field(default_factory=list)  # default for a foreign trainer: all presets
    environment: Literal["auto", "uv", "conda", "pip", "image"] = "auto"  # see pod/environment.py
    probe: Annotated[list[str], BeforeValidator(_listed)] = field(default_factory=list)  # modules that it must import
    setup: Command | None = None  # after the environment
    env: dict[str, str] = field(default_factory=dict)
    secrets: Annotated[list[str], BeforeValidator(_listed)] = field(default_factory=list)  # names; see secrets.py
    secrets_command: Command | None = None  # run here; prints NAME=value lines
    progress_regex: Patterns = field(default_factory=list)  # with groups step, total, epoch, loss; default: the usual
    inherit_pod_env: bool = True  # the variables of the container's first process
    memory_limit_mb: Annotated[int, Field(gt=0)] | None = None
    restarts: Annotated[int, Field(ge=0)] = 0  # how often a crash is resumed on the pod, each time from further on
    project: str = ""  # the project's name on pods and in stores; default: its folder's
    backup: Backup = field(default_factory=Backup)
    download: Download = field(default_factory=Download)

    @property
    def resume_words(self) -> list[str] | None:
        """What is added to the command to go on; None where nobody said it and no contract does."""
        if self.resume_args is None and self.pause == "contract":
            return ["--resume"]
        return self.resume_args

    @property
    def patterns(self) -> list[str]:
        """What the guard looks for: NCM always, and this workload."""
        own = self.match or program(self.command)
        return list(dict.fromkeys([NCM_MATCH, *filter(None, [own] if isinstance(own, str) else own)]))

    @property
    def rules(self) -> list[foreign.Rule]:
        """How snapshots beside those of format 1 are recognised; none for a trainer that keeps the contract."""
        if self.snapshots:
            return [s.as_rule for s in self.snapshots]
        return [] if self.pause == "contract" else list(foreign.PRESETS.values())


KEYS_OF: dict[str, Any] = {
    "backup": Backup,
    "download": Download,
    "snapshots": SnapshotRule,
    "include": Include,
    "data": Data,
}


def program(command: list[str]) -> str:
    """What a command runs, as the guard's pattern: `-m module` or a script; empty where nothing tells.

    Launchers are looked through: `torchrun --nproc-per-node 2 train.py` runs train.py.
    """
    for word, after in zip(command, [*command[1:], ""], strict=True):
        if word == "-m" and after.split(".")[0] not in ("", "torch", "accelerate"):
            return shlex.join(["-m", after])
        if word.endswith((".py", ".sh")) and "{" not in word:
            return shlex.quote(word.rsplit("/", 1)[-1])
    return ""

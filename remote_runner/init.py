"""Write a repository's settings: what a look at it found, with a comment for each line.

Not here: the look itself (repo.py), which keys there are (settings_keys.py).
"""

from __future__ import annotations

import json
import os
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

from remote_runner import repo as repos
from remote_runner.errors import UsageFault
from remote_runner.repo import Repo

OWN_FILE = "remote-run.toml"


@dataclass(frozen=True, kw_only=True)
class Choices:
    """What is written; each may be said on the command line."""

    command: list[str]
    resume_args: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    pause: str = "none"
    snapshots: str = ""
    notes: dict[str, str] = field(default_factory=dict)  # key -> what the user should know


def propose(repo: Repo) -> Choices:
    """What the look suggests.

    Raises:
        UsageFault: nothing in the repository looks like a training script.
    """
    if not repo.command:
        raise UsageFault(
            f"{repo.root}: no training script found (looked for {', '.join(repos.SCRIPTS)} and train_*.py)",
            fix='say how it is started: remote-run init --command "python path/to/train.py --config {config}"',
        )
    notes = {}
    if "{config}" not in repo.command:
        notes["command"] = "it declares no argument for a config; then CONFIG only gives the run its name"
    if not repo.resume_args:
        notes["resume_args"] = "it declares no argument to resume with: --resume then starts it unchanged"
    outputs = repos.outputs(repo)
    if not outputs:
        outputs = ["outputs"]
        notes["outputs"] = "not found in its configs or its source: CHECK THIS; what lies elsewhere does not come home"
    return Choices(
        command=repo.command,
        resume_args=repo.resume_args,
        outputs=outputs,
        pause=repo.pause,
        snapshots=repo.preset,
        notes=notes,
    )


_ABOUT = {
    "command": "how the training is started; {config} is the file you name on the command line, {name} its stem",
    "resume_args": "added with --resume; {newest} is the path of the newest complete snapshot",
    "outputs": "the folders that travel, are backed up and come home",
    "pause": '"SIGTERM" or another signal that makes it save and end; "none": it can only be killed; "contract"',
    "snapshots": "whose snapshots they are: hf, lightning, torch, numbered, or { glob, step_regex, complete }",
}


def render(choices: Choices, prefix: str) -> str:
    """The settings as TOML with comments.

    Args:
        prefix: the table, `[tool.remote-run]` in a pyproject.toml; empty in a file of our own.
    """
    values: dict[str, object] = {
        "command": choices.command,
        "resume_args": choices.resume_args,
        "outputs": choices.outputs,
        "pause": choices.pause,
    }
    if choices.snapshots:
        values["snapshots"] = [choices.snapshots]
    lines = [prefix] if prefix else []
    lines.append("# remote-run HOST:PORT CONFIG takes a training to a rented GPU; every key: docs/settings.md")
    for key, value in values.items():
        about = _ABOUT[key] + (f". NOTE: {choices.notes[key]}" if key in choices.notes else "")
        # a JSON string or list of strings is a TOML one
        lines += [f"# {about}", f"{key} = {json.dumps(value, ensure_ascii=False)}"]
    return "\n".join(lines) + "\n"


def write(root: Path, choices: Choices, replace: bool) -> Path:
    """Put the settings into pyproject.toml, where there is one, else into remote-run.toml.

    Returns:
        The file.

    Raises:
        UsageFault: settings are there already and `replace` was not said, or they stand in pyproject.toml.
    """
    own, shared = root / OWN_FILE, root / "pyproject.toml"
    in_shared = shared.is_file() and "remote-run" in tomllib.loads(shared.read_text(encoding="utf-8")).get("tool", {})
    if in_shared:
        raise UsageFault(f"{shared} has [tool.remote-run] already", fix="edit it, or take it out and run init again")
    if own.is_file() and not replace:
        raise UsageFault(f"{own} is there already", fix="edit it, or replace it: remote-run init --replace")
    if shared.is_file() and not own.is_file():
        before = shared.read_text(encoding="utf-8")
        _put(shared, before + ("" if before.endswith("\n") else "\n") + "\n" + render(choices, "[tool.remote-run]"))
        return shared
    _put(own, render(choices, ""))
    return own


def _put(path: Path, text: str) -> None:
    tomllib.loads(text)
    temp = path.with_name(f".{path.name}.{os.getpid()}.part")
    temp.write_text(text, encoding="utf-8")
    temp.replace(path)

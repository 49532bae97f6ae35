"""Values that a workload needs and nobody else may see: read here, sent over stdin, kept in memory there.

A name in `secrets` is looked up in this shell, then in the project's `.env`, then in what `secrets_command` prints
(NAME=value lines). The value travels in the launch request, goes from process to process on the pod through pipes,
and is in the workload's own environment; in logs it is replaced.

Not here: the replacing (pod/talk.py).
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

from remote_runner.errors import PreflightFailed
from remote_runner.pod.talk import SHORTEST_SECRET

COMMAND_S = 60
_LINE = re.compile(r"^\s*(?:export\s+)?([A-Za-z_]\w*)\s*=\s*(.*?)\s*$")


def collect(root: Path, names: Sequence[str], command: Sequence[str] | None) -> dict[str, str]:
    """The values of all names.

    Raises:
        PreflightFailed: naming those that are nowhere, or too short to be told from other text in a log.
    """
    if not names:
        return {}
    found = {name: os.environ[name] for name in names if os.environ.get(name)}
    if set(names) - set(found):
        _add(found, names, _dotenv(root / ".env"))
    if command and set(names) - set(found):
        _add(found, names, _asked(root, command))
    if missing := [n for n in names if n not in found]:
        raise PreflightFailed(
            f"secrets that the settings name and that are nowhere: {', '.join(missing)}",
            fix=f"export {missing[0]}=…, write it into {root / '.env'}, or take it out of `secrets`",
        )
    if short := [n for n in names if len(found[n]) < SHORTEST_SECRET]:
        raise PreflightFailed(
            f"{', '.join(short)}: shorter than {SHORTEST_SECRET} characters can't be kept out of a log",
            fix="put it into `env` if it is no secret",
        )
    return found


def _add(found: dict[str, str], names: Sequence[str], there: dict[str, str]) -> None:
    found.update({n: there[n] for n in names if n not in found and there.get(n)})


def _dotenv(path: Path) -> dict[str, str]:
    try:
        return _lines(path.read_text(encoding="utf-8"))
    except OSError:
        return {}


def _asked(root: Path, command: Sequence[str]) -> dict[str, str]:
    try:
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=COMMAND_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as e:
        raise PreflightFailed(f"secrets_command: {type(e).__name__}", fix=f"try it: {shlex.join(command)}") from None
    if done.returncode:  # what it printed may hold a value
        raise PreflightFailed(f"secrets_command ended with {done.returncode}", fix=f"try it: {shlex.join(command)}")
    return _lines(done.stdout)


def _lines(text: str) -> dict[str, str]:
    found = {}
    for line in text.splitlines():
        if match := _LINE.match(line):
            name, value = match.groups()
            if value[:1] in "'\"" and value[-1:] == value[:1] and len(value) > 1:
                value = value[1:-1]
            else:
                value = value.split(" #")[0].rstrip()
            found[name] = value
    return found

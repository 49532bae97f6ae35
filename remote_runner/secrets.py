"""Values that a workload needs and nobody else may see: read here, sent over stdin, kept in memory there.

A name in `secrets` is looked up in this shell, then in the project's `.env`, then in what `secrets_command` prints
(NAME=value lines). The value travels in the launch request, goes from process to process on the pod through pipes,
and is in the workload's own environment; in logs and records it is replaced, and a file that holds one is not sent.

Not here: the replacing in a workload's output (pod/talk.py).
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from remote_runner.errors import PreflightFailed, UsageFault
from remote_runner.pod import talk
from remote_runner.pod.talk import SHORTEST_SECRET

COMMAND_S = 60
_LARGEST_SEARCHED_BYTES = 8_000_000
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


def refuse_in_files(paths: Iterable[tuple[str, Path]], values: Mapping[str, str]) -> None:
    """Nothing that is sent, and kept in the archive of the code, may hold one.

    Args:
        paths: of files, as they are called on the pod and where they are here.

    Raises:
        UsageFault: naming file and variable.
    """
    sought = {name: value.encode() for name, value in values.items()}
    for path, source in paths if sought else ():
        if source.stat().st_size > _LARGEST_SEARCHED_BYTES:
            continue
        content = source.read_bytes()
        if found := next((name for name, value in sought.items() if value in content), None):
            raise UsageFault(
                f"{path} holds the value of the secret {found}: it would be sent, and kept in the archive of the code",
                fix=f"let the program read {found} from its environment, or keep the file here: exclude = [{path!r}]",
            )


def masked(value: Any, values: Mapping[str, str]) -> Any:
    """Texts in lists and tables with `***` for every secret."""
    mask = talk.mask_of(dict(values))
    return value if mask is None else _masked(value, mask)


def _masked(value: Any, mask: re.Pattern[bytes]) -> Any:
    if isinstance(value, str):
        return mask.sub(talk.MASK, value.encode("utf-8", "surrogateescape")).decode("utf-8", "surrogateescape")
    if isinstance(value, dict):
        return {key: _masked(inner, mask) for key, inner in value.items()}
    return [_masked(inner, mask) for inner in value] if isinstance(value, list) else value


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

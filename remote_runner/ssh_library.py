"""paramiko, loaded when the first connection is made, and without what it loads in vain; what its reader lacks.

It loads invoke, a program runner, for one word of ~/.ssh/config: `Match exec`. That takes as long as the rest of it.
And it reads over `Include`, with all the hosts behind it.
"""

from __future__ import annotations

import glob
import importlib
import re
import shlex
import sys
from pathlib import Path
from typing import Any

MOST_DEEP = 16  # as ssh has it
_INCLUDE, _BLOCK = (
    re.compile(r"\s*include[\s=]+(.*)", re.IGNORECASE),
    re.compile(r"\s*(host|match)[\s=]", re.IGNORECASE),
)


def load(runs_programs: bool = False) -> Any:
    """The module.

    Args:
        runs_programs: whether a configuration file may hold `Match exec`.
    """
    if "paramiko" not in sys.modules and "invoke" not in sys.modules:
        sys.modules["invoke"] = None  # type: ignore[assignment]  # an ImportError, which paramiko keeps for later
        try:
            importlib.import_module("paramiko")
        finally:
            del sys.modules["invoke"]
    paramiko = importlib.import_module("paramiko")
    if runs_programs and paramiko.config.invoke is None:
        paramiko.config.invoke = importlib.import_module("invoke")
    return paramiko


def config_text(path: Path, deep: int = 0) -> str:
    """A configuration file with what it includes in its place; what can't be read there is passed over, as ssh does.

    Raises:
        OSError, ValueError: the file itself can't be read, or a line's quotes have no end.
    """
    lines: list[str] = []
    block = "Host *"  # that the next line belongs to
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        included = _INCLUDE.match(line)
        if included is None:
            block = line if _BLOCK.match(line) else block
            lines.append(line)
            continue
        for word in shlex.split(included.group(1)) if deep < MOST_DEEP else ():
            pattern = str(Path("~/.ssh").expanduser() / Path(word).expanduser())
            for one in sorted(glob.glob(pattern)):  # noqa: PTH207 - it may begin anywhere
                if Path(one).is_file():
                    lines += [config_text(Path(one), deep + 1), block]
    return "\n".join(lines)

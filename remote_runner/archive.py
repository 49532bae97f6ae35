"""`runs/<name>-code.tar.gz`: exactly the code that was sent, and what is known of where it came from and ran.

Not here: which files are sent (code_files.py), what a pod's packages were (the run's log says so).
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import tarfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from remote_runner import record
from remote_runner.errors import UsageFault
from remote_runner.pod import files, layout
from remote_runner.transfer import Item

SUFFIX = "-code.tar.gz"
ABOUT = "remote-run-code.json"
LIMIT_BYTES = 500_000_000


def write(root: Path, name: str, items: Sequence[Item], facts: dict[str, Any]) -> Path:
    """Keep the code of an attempt; replaces that of the attempt before.

    Args:
        facts: what else is known: command, config, target, hardware.

    Returns:
        The archive. What does not fit into 500 MB is left out, largest first, and named in it.
    """
    path = root / layout.run_file(name, SUFFIX)
    path.parent.mkdir(exist_ok=True)
    room, kept, left = LIMIT_BYTES, list[Item](), list[Item]()
    for item in sorted(items, key=lambda i: i.size):
        room -= item.size
        (kept if room >= 0 else left).append(item)
    about = {
        "name": name,
        **facts,
        "git": {**record.git_state(root), **_git_more(root)},
        "sha256": {i.path: i.sha256 for i in items},
        "left_out": [i.path for i in left],
    }
    temp = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with tarfile.open(temp, "w:gz", compresslevel=6) as packed:
            text = json.dumps(about, indent=1, sort_keys=True, ensure_ascii=False).encode()
            member = tarfile.TarInfo(ABOUT)
            member.size = len(text)
            packed.addfile(member, io.BytesIO(text))
            for item in sorted(kept, key=lambda i: i.path):
                with item.source.open("rb") as f:
                    member = tarfile.TarInfo(item.path)
                    member.size, member.mode = os.fstat(f.fileno()).st_size, item.mode
                    packed.addfile(member, f)
        temp.replace(path)
    finally:
        temp.unlink(missing_ok=True)
    return path


def _git_more(root: Path) -> dict[str, Any]:
    def lines(*words: str) -> list[str]:
        done = subprocess.run(
            ["git", "-C", root, *words], capture_output=True, text=True, errors="replace", check=False
        )
        return done.stdout.splitlines() if done.returncode == 0 else []

    try:
        return {
            "untracked": lines("ls-files", "--others", "--exclude-standard"),
            "submodules": [line.strip() for line in lines("submodule", "status", "--recursive")],
        }
    except FileNotFoundError:
        return {}


def reproduce(root: Path, name: str, to: Path) -> dict[str, Any]:
    """Unpack a run's code into a new folder.

    Returns:
        What the archive says of itself.

    Raises:
        UsageFault: no archive of that run, one that is damaged, or `to` is not empty.
    """
    path = root / layout.run_file(name, SUFFIX)
    if not path.is_file():
        raise UsageFault(f"{path} is not there", fix="only runs that were started from this project have one")
    if to.exists() and any(to.iterdir()):
        raise UsageFault(f"{to} is not empty", fix="name a new folder: --to DIR")
    to.mkdir(parents=True, exist_ok=True)
    about: dict[str, Any] = {}
    try:
        with tarfile.open(path, "r:gz") as packed:
            for member in packed:
                source = packed.extractfile(member) if member.isfile() else None
                if source is None:
                    continue
                if member.name == ABOUT:
                    about = json.loads(source.read())
                    continue
                # every path is checked, and no link is followed
                fill = partial(_fill, source.read())
                files.replace(str(to), member.name, fill, member.mode, durable=False)
    except (tarfile.TarError, EOFError, ValueError, OSError) as e:
        raise UsageFault(f"{path} can't be unpacked: {e}", fix="take it from a backup of this folder") from None
    return about


def _fill(content: bytes, fd: int) -> None:
    files.write_all(fd, content)

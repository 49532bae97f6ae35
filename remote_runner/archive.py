"""`runs/<name>-code.tar.gz`: exactly the code that was sent, and what is known of where it came from and ran.

Packages, driver and image are what the pod said in an event of the run; they are added when it is home.

Not here: which files are sent (code_files.py), how a pod finds that out (pod/facts.py).
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from remote_runner import secrets
from remote_runner.agent import printable
from remote_runner.code_files import left_out
from remote_runner.errors import UsageFault
from remote_runner.pod import files, layout, noting
from remote_runner.transfer import Item

SUFFIX = "-code.tar.gz"
ABOUT = "remote-run-code.json"
FREEZE = "freeze.txt"
LIMIT_BYTES = 500_000_000
_READ_BYTES = 50_000_000  # of an archive that is read through for a diff stat


def write(root: Path, name: str, items: Sequence[Item], facts: dict[str, Any], hidden: Mapping[str, str]) -> Path:
    """Keep the code of an attempt; replaces that of the attempt before.

    Args:
        facts: what else is known: command, config, target, hardware, git.
        hidden: secrets, which must not stand in it.

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
        "git": {**facts["git"], **secrets.masked(_git_more(root), hidden)},
        "sha256": {i.path: i.sha256 for i in items},
        "left_out": [i.path for i in left],
    }
    temp = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with tarfile.open(temp, "w:gz", compresslevel=6) as packed:
            _add_about(packed, about)
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
            "untracked": [p for p in lines("ls-files", "--others", "--exclude-standard") if not left_out(p)],
            "submodules": [line.strip() for line in lines("submodule", "status", "--recursive")],
        }
    except FileNotFoundError:
        return {}


def add_environment(root: Path, name: str, attempt: str) -> None:
    """Add what the pod told of packages, driver and image to the archive of this attempt.

    The run's events are home by now; where they tell nothing, or the archive is another attempt's, it stays as it is.
    """
    path = root / layout.run_file(name, SUFFIX)
    found = _environment(root / layout.events(name), attempt)
    if not found or not path.is_file():
        return
    temp = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with tarfile.open(path, "r:gz") as before, tarfile.open(temp, "w:gz", compresslevel=6) as after:
            for member in before:
                source = before.extractfile(member)
                if member.name == ABOUT and source is not None:
                    about = json.loads(source.read())
                    if about.get("attempt") != attempt or about.get("environment"):
                        return
                    _add_about(after, {**about, "environment": found})
                else:
                    after.addfile(member, source)
        temp.replace(path)
    except (tarfile.TarError, EOFError, ValueError, OSError):
        return  # damaged: reproduce will say so; a full disk here costs these facts, not the run's report
    finally:
        temp.unlink(missing_ok=True)


def _environment(events: Path, attempt: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    try:
        lines = events.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    for line in lines:
        if f'"{noting.EVENT}"' not in line or attempt not in line:
            continue
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if row.get("what") == noting.EVENT and row.get("attempt") == attempt:
            found = {k: v for k, v in row.items() if k not in ("t", "at", "what", "attempt")}
    return found


def _add_about(packed: tarfile.TarFile, about: dict[str, Any]) -> None:
    text = json.dumps(about, indent=1, sort_keys=True, ensure_ascii=False).encode()
    member = tarfile.TarInfo(ABOUT)
    member.size = len(text)
    packed.addfile(member, io.BytesIO(text))


def contents(root: Path, name: str, paths: set[str], largest_bytes: int) -> dict[str, bytes]:
    """Some files as the attempt before sent them; none where its archive is missing, damaged or very large."""
    path = root / layout.run_file(name, SUFFIX)
    found: dict[str, bytes] = {}
    try:
        if path.stat().st_size > _READ_BYTES:
            return {}
        with tarfile.open(path, "r:gz") as packed:
            for member in packed:
                if member.name in paths and member.isfile() and member.size <= largest_bytes:
                    source = packed.extractfile(member)
                    found[member.name] = source.read() if source is not None else b""
    except (tarfile.TarError, EOFError, ValueError, OSError):
        return found
    return found


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
    _keep_about(to, about)
    return about


def _keep_about(to: Path, about: dict[str, Any]) -> None:
    """Beside the code, where nothing is ever sent from: all that is known of the run, and its packages as pip reads."""
    own = to / layout.OWN
    own.mkdir(exist_ok=True)
    (own / "reproduced.json").write_text(json.dumps(about, indent=1, sort_keys=True, ensure_ascii=False) + "\n")
    if packages := (about.get("environment") or {}).get("packages"):
        (own / FREEZE).write_text("\n".join(printable(str(p)) for p in packages) + "\n")


def told(about: dict[str, Any], folder: Path) -> list[str]:
    """Where a run's code came from and what it was trained with, for people."""
    git, env = about.get("git") or {}, about.get("environment") or {}
    lines = ["code: no git"]
    if git.get("commit"):
        diff = str(git.get("diff") or "").splitlines()
        plus, minus = (sum(r.startswith(s) and not r.startswith(3 * s) for r in diff) for s in "+-")
        lines = [f"code: commit {git['commit'][:12]}" + (f", uncommitted +{plus} -{minus}" if diff else "")]
    for key in ("untracked", "submodules"):
        if some := git.get(key):
            lines.append(f"{key}: {', '.join(some[:5])}{' …' if some[5:] else ''}")
    if not env:
        return [*lines, "packages, driver, image: not known, the pod has not said"]
    packages = [str(p) for p in env.get("packages") or []]
    torch = next((p for p in packages if p.startswith(("torch==", "mlx=="))), "")
    count = f"{len(packages)} packages{', ' if torch else ''}{torch}"
    lines.append(f"python {env.get('python')}, {count}: {folder}/{layout.OWN}/{FREEZE}")
    image = ", ".join(f"{k} {v}" for k, v in (env.get("image") or {}).items())
    lines.append(f"driver: {env.get('driver') or 'none'}; image: {image}")
    return [printable(line) for line in lines]


def _fill(content: bytes, fd: int) -> None:
    files.write_all(fd, content)

"""Give a written checkpoint its name, keep the one before, and keep the digests true at every moment.

    x.pt.tmp, x.pt.sha256.tmp    written, verified, durable; nothing else has changed yet
    x.pt = previous   ->   x.pt.sha256: new and previous   ->   x.pt = new   ->   older numbered files go

After each arrow every file that stands there has its digest in the sidecar, so a crash never leaves a good file
that can't be proven. `step-100.pt` and its like have their step in the name: none becomes another's previous, the
newest few are kept instead.

Not here: the bytes of the temp (torch_file.py), which file is loaded (torch.py).
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Set, Tuple

from remote_runner.checkpoint import rotate, torch_file
from remote_runner.checkpoint.contract import say
from remote_runner.checkpoint.torch_scan import check_file
from remote_runner.checkpoint.torch_state import refuse_nonfinite
from remote_runner.checkpoint.torch_zip import CHUNK_BYTES, CheckpointCorrupt

_Proof = Tuple[Tuple[int, ...], str]  # a file as it was when this process wrote or verified it, and its digest
_proven: Dict[Path, _Proof] = {}


def previous_of(path: Path) -> Path:
    """`x.pt` -> `x.previous.pt`."""
    return path.with_name(f"{path.stem}.previous{path.suffix}")


def best_of(path: Path, step: int) -> Path:
    """`x.pt` -> `x.best.pt`; `step-100.pt` -> `step-best.pt`."""
    parts = _numbered(path, step)
    return path.with_name(f"{parts[0]}best{parts[1]}" if parts else f"{path.stem}.best{path.suffix}")


def sidecar_of(path: Path) -> Path:
    """`x.pt` -> `x.pt.sha256`, in the form that `sha256sum -c` reads."""
    return path.with_name(f"{path.name}.sha256")


def write_checkpoint(path: Path, tree: Any, *, keep: Optional[int] = None, best: bool = False) -> int:
    """Write a tree of host tensors as the newest checkpoint.

    Args:
        path: `x.pt`, or a name with the step in it, `step-100.pt`.
        tree: what `torch_state.capture` returned, staged.
        keep: of numbered files, how many of the highest steps stay; None: all.
        best: also keep it as the best (`best_of`), out of retention's reach.

    Returns: its size in bytes. It is durable, and what stood there is `previous_of(path)`.

    Raises:
        NonFinite: a tensor holds NaN or an infinity. Nothing was touched, here and below.
        CheckpointCorrupt: the disk returned other bytes than were written.
        OSError: the disk refused (ENOSPC, say); the temp is gone.
    """
    refuse_nonfinite(tree, f"{path}: not saved")
    temp = path.with_name(f"{path.name}.tmp")
    temp.unlink(missing_ok=True)
    numbered = _numbered(path, tree["step"]) is not None
    try:
        digest = torch_file.write_verified(temp, torch_file.records_of(tree))
        size_bytes = temp.stat().st_size
        if best:
            _publish_copy(temp, best_of(path, tree["step"]), digest)
        publish(temp, path, digest, keep_previous=not numbered)
    except OSError as error:
        raise OSError(
            error.errno, f"checkpoint not saved, the older files are whole: {error.strerror}", str(path)
        ) from None
    finally:
        temp.unlink(missing_ok=True)
    if keep is not None and numbered:
        retain(path, tree["step"], keep)
    return size_bytes


def publish(temp: Path, path: Path, digest: str, *, keep_previous: bool) -> None:
    """Make `temp`, written and durable, the file at `path`; the order is the module's picture."""
    old = _proven_digest(path)
    lines = [f"{digest}  {path.name}"]
    if not old and keep_previous:  # what is previous now stays it
        kept = _proven_digest(previous_of(path))
        lines += [f"{kept}  {previous_of(path).name}"] if kept else []
    elif old and keep_previous:
        lines.append(f"{old}  {previous_of(path).name}")
    elif old:
        lines.append(f"# replaces {old}")  # sha256sum passes over it; a crash before the rename below needs it
    side = sidecar_of(path)
    side_temp = side.with_name(f"{side.name}.tmp")
    try:
        _write_text(side_temp, "".join(line + "\n" for line in lines))
        moved = _link_previous(path) if old and keep_previous else False
        os.replace(side_temp, side)
        if moved:
            os.replace(path, previous_of(path))
        rotate.sync_folder(path.parent)
        os.replace(temp, path)
        rotate.sync_folder(path.parent)
    finally:
        side_temp.unlink(missing_ok=True)
    _proven[path.absolute()] = (_identity(path), digest)


def _link_previous(path: Path) -> bool:
    """Let previous be what `path` is now. True: links don't work here, the caller must rename instead."""
    previous = previous_of(path)
    temp = previous.with_name(f"{previous.name}.tmp")
    temp.unlink(missing_ok=True)
    if previous.exists() and previous.samefile(path):
        return False
    try:
        os.link(path, temp)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS):
            raise
        return True
    try:
        os.replace(temp, previous)
    except OSError:
        temp.unlink(missing_ok=True)
        raise
    return False


def _publish_copy(temp: Path, path: Path, digest: str) -> None:
    copy = path.with_name(f"{path.name}.tmp")
    copy.unlink(missing_ok=True)
    try:
        try:
            os.link(temp, copy)
        except OSError:
            shutil.copyfile(temp, copy)
            with copy.open("rb") as file:
                rotate.sync_file(file.fileno())
        publish(copy, path, digest, keep_previous=False)
    finally:
        copy.unlink(missing_ok=True)


def _proven_digest(path: Path) -> str:
    """Digest of what stands at `path` now, if it is whole; a bad file is set aside, "" then and when there is none."""
    try:
        identity = _identity(path)
    except FileNotFoundError:
        return ""
    known = _proven.get(path.absolute())
    if known and known[0] == identity:
        return known[1]
    try:
        return prove(path)
    except CheckpointCorrupt as error:
        set_aside(path, str(error))
        return ""


def prove(path: Path) -> str:
    """Check that a file is one that was saved: by its sidecar, or by its structure where it has none.

    Returns: its hex SHA-256.

    Raises:
        CheckpointCorrupt, CheckpointRefused: it is not; the message names the file and the reason.
    """
    digest, named = digest_of(path), digests_beside(path)
    if named and digest not in named:
        raise CheckpointCorrupt(
            f"{path}: its SHA-256 {digest[:12]}… is not in {sidecar_of(path).name}; the bytes were changed"
        )
    check_file(path, deep=not named)
    _proven[path.absolute()] = (_identity(path), digest)
    return digest


def set_aside(path: Path, why: str) -> Path:
    """Rename a bad file out of the way, as evidence."""
    aside = path.with_name(f"{path.name}.corrupt-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}")
    os.replace(path, aside)
    say(f"set aside as {aside.name}: {why}")
    return aside


def digests_beside(path: Path) -> Set[str]:
    """Every digest in the sidecar of a checkpoint, or of the one whose previous it is; empty when there is none."""
    sides = [sidecar_of(path)]
    if path.stem.endswith(".previous"):
        sides.append(sidecar_of(path.with_name(path.stem[: -len(".previous")] + path.suffix)))
    found: Set[str] = set()
    for side in sides:
        try:
            found.update(re.findall(r"\b[0-9a-f]{64}\b", side.read_text(encoding="utf-8", errors="replace")))
        except FileNotFoundError:
            continue
    return found


def digest_of(path: Path) -> str:
    """Hex SHA-256 of a file, in constant memory."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        chunk = file.read(CHUNK_BYTES)
        while chunk:
            digest.update(chunk)
            chunk = file.read(CHUNK_BYTES)
    return digest.hexdigest()


def numbered_files(folder: Path, prefix: str, suffix: str) -> List[Tuple[int, Path]]:
    """(step, path) of the files named prefix, digits, suffix; highest step first. Times of files never count."""
    pattern = re.compile(re.escape(prefix) + r"(\d+)" + re.escape(suffix))
    found = [(int(match[1]), path) for path in folder.iterdir() if (match := pattern.fullmatch(path.name))]
    return sorted(found, reverse=True)


def retain(path: Path, step: int, keep: int) -> None:
    """Remove numbered checkpoints beyond the `keep` highest steps; never `path`, which was just written."""
    parts = _numbered(path, step)
    if parts is None:
        return
    others = [old for _, old in numbered_files(path.parent, *parts) if old != path]
    for old in others[max(keep, 1) - 1 :]:
        old.unlink()
        sidecar_of(old).unlink(missing_ok=True)


def _numbered(path: Path, step: int) -> Optional[Tuple[str, str]]:
    """What stands before and behind the step in a name such as `step-000100.pt`; None: the name has no step."""
    match = re.fullmatch(r"(.*?)(\d+)(\D*)", path.name)
    return (match[1], match[3]) if match and int(match[2]) == step else None


def _identity(path: Path) -> Tuple[int, ...]:
    found = path.stat()
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def _write_text(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        rotate.sync_file(file.fileno())

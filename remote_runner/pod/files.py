"""Files below one root: listed, read and replaced without ever following a link out of it.

Every path from the other machine goes through `parts`, every open through `_parent`, which walks the
folders one by one with O_NOFOLLOW. Replaced files: temp in the same folder, write, fsync, rename, fsync of
the folder.

Not here: which files belong to a run (layout.py), how bytes travel (serve.py, transfer).
"""

from __future__ import annotations

import contextlib
import json
import os
import stat as modes
import threading
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Tuple, Union

BLOCK_BYTES = 1 << 20
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
TEMP_SUFFIXES = (".tmp", ".part")


class BadPath(ValueError):
    """A path that no honest peer would name."""


def parts(path: str) -> List[str]:
    """Split a relative POSIX path, or refuse it.

    Raises:
        BadPath: absolute, empty, with `..`, `.`, an empty part or a NUL, or not UTF-8.
    """
    try:
        path.encode()
    except UnicodeEncodeError:
        raise BadPath(f"name is not UTF-8: {path!a}") from None
    pieces = path.split("/")
    if "" in pieces or "." in pieces or ".." in pieces or "\0" in path:
        raise BadPath(f"not a plain relative path: {path!r}")
    return pieces


def _parent(root: str, pieces: List[str], create: bool = False) -> int:
    """A descriptor of the folder that holds the last piece; no link is followed below `root`."""
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    for piece in pieces[:-1]:
        try:
            try:
                inner = os.open(piece, _FOLDER, dir_fd=fd)
            except FileNotFoundError:
                if not create:
                    raise
                with contextlib.suppress(FileExistsError):
                    os.mkdir(piece, 0o755, dir_fd=fd)
                inner = os.open(piece, _FOLDER, dir_fd=fd)
        finally:
            os.close(fd)
        fd = inner
    return fd


def open_read(root: str, path: str) -> int:
    """Open a regular file below `root` for reading.

    Raises:
        OSError: missing, a link on the way, or no regular file.
    """
    pieces = parts(path)
    folder = _parent(root, pieces)
    try:
        return _open_read(folder, pieces[-1], path)
    finally:
        os.close(folder)


def _open_read(folder: int, name: str, path: str) -> int:
    # O_NONBLOCK: opening a FIFO must not wait for a writer that never comes
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    if not modes.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(f"not a regular file: {path}")
    return fd


def open_write(root: str, path: str, create: bool = True, append: bool = False) -> int:
    """Open a file of ours for reading and writing in place, its folders made; never through a link.

    Raises:
        OSError: a link stands there, or the disk refused; with `create` off, that it is missing.
    """
    pieces = parts(path)
    folder = _parent(root, pieces, create=create)
    flags = os.O_RDWR | os.O_NOFOLLOW | (os.O_CREAT if create else 0) | (os.O_APPEND if append else 0)
    try:
        return os.open(pieces[-1], flags, 0o600, dir_fd=folder)
    finally:
        os.close(folder)


class Folders:
    """The folders below a root that many paths share: each is walked to once, no link followed, and kept open.

    Args:
        create: whether missing ones are made.
        most: how many are open at once; beyond, the one opened first is closed.
    """

    def __init__(self, root: str, create: bool = False, most: int = 512) -> None:
        self._root, self._create, self._most = root, create, most
        self._open: Dict[str, int] = {}

    def __enter__(self) -> "Folders":
        return self

    def __exit__(self, *_: object) -> None:
        for fd in self._open.values():
            os.close(fd)
        self._open.clear()

    def of(self, path: str) -> Tuple[int, str]:
        """A descriptor of the folder that holds what the path names, and the name there.

        Raises:
            BadPath: see `parts`.
            OSError: missing and not to be made, or a link or a file stands on the way.
        """
        folder, _, name = path.rpartition("/")
        fd = self._open.get(folder)
        if fd is None or name in ("", ".", "..") or "\0" in name:
            fd = _parent(self._root, parts(path), self._create)
            while len(self._open) >= self._most:
                os.close(self._open.pop(next(iter(self._open))))
            self._open[folder] = fd
        return fd, name

    def open_read(self, path: str) -> int:
        """As `open_read`."""
        return _open_read(*self.of(path), path)


def stat(root: str, path: str) -> os.stat_result:
    """What stands at a path, a link itself where it is one."""
    pieces = parts(path)
    folder = _parent(root, pieces)
    try:
        return os.stat(pieces[-1], dir_fd=folder, follow_symlinks=False)
    finally:
        os.close(folder)


def facts(info: os.stat_result) -> Dict[str, Any]:
    """What tells two versions of a file apart without reading it."""
    return {
        "size": info.st_size,
        "mtime_ns": info.st_mtime_ns,
        "mode": modes.S_IMODE(info.st_mode) & 0o777,
        "ino": info.st_ino,
        "ctime_ns": info.st_ctime_ns,
    }


def walk(root: str, path: str) -> Iterator[Tuple[str, Optional[os.stat_result], str]]:
    """Everything at or below `path`, sorted: (path, stat, kind), kind is file, folder or other.

    Temporary files of a save under way are left out; links, FIFOs and devices are named (`other`), never
    entered. A missing `path` gives nothing.
    """
    try:
        folder = _parent(root, parts(path))
    except (FileNotFoundError, NotADirectoryError):
        return
    try:
        yield from _walk(folder, parts(path)[-1], path)
    finally:
        os.close(folder)


def _walk(folder: int, name: str, path: str) -> Iterator[Tuple[str, Optional[os.stat_result], str]]:
    try:
        info = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return  # replaced or removed since it was listed
    if modes.S_ISREG(info.st_mode):
        if not name.endswith(TEMP_SUFFIXES):
            yield path, info, "file"
    elif modes.S_ISDIR(info.st_mode):
        yield path, info, "folder"
        inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
        try:
            for child in sorted(os.listdir(inner)):
                yield from _walk(inner, child, f"{path}/{child}")
        finally:
            os.close(inner)
    else:
        yield path, info, "other"


def digest(root: str, path: str, tick: Callable[[], None] = lambda: None) -> str:
    """Hex SHA-256 of a file's content; `tick` is called once a block."""
    fd = open_read(root, path)
    try:
        return digest_fd(fd, tick)
    finally:
        os.close(fd)


def digest_fd(fd: int, tick: Callable[[], None] = lambda: None) -> str:
    """Hex SHA-256 of what an open file holds from here on."""
    import hashlib  # late: 4 MB of libcrypto that a supervisor which only watches need not hold

    found = hashlib.sha256()
    while True:
        block = os.read(fd, BLOCK_BYTES)
        if not block:
            return found.hexdigest()
        found.update(block)
        tick()


def replace(
    root: str,
    path: str,
    fill: Callable[[int], None],
    mode: int = 0o644,
    durable: bool = True,
    sync_folder: bool = True,
) -> None:
    """Put a file in place in one step; `fill` writes its content to a descriptor.

    Args:
        sync_folder: off where the caller syncs the folder once for many files.

    Raises:
        OSError: the disk refused, or a link stands on the way. What was there stays, no temp is left.
    """
    pieces = parts(path)
    folder = _parent(root, pieces, create=True)
    temp = f".{os.getpid()}-{threading.get_ident()}.part"  # no longer than any name may be
    try:
        fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600, dir_fd=folder)
        try:
            try:
                fill(fd)
                os.fchmod(fd, mode & 0o777)
                if durable:
                    os.fsync(fd)
            finally:
                os.close(fd)
            os.replace(temp, pieces[-1], src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temp, dir_fd=folder)
            raise
        if durable and sync_folder:
            os.fsync(folder)
    finally:
        os.close(folder)


def move(root: str, path: str, to: str, durable: bool = True) -> None:
    """Rename a file below `root`, over what is there; the folders are made, and no link is followed."""
    old, new = parts(path), parts(to)
    source, target = _parent(root, old), -1
    try:
        target = _parent(root, new, create=True)
        os.replace(old[-1], new[-1], src_dir_fd=source, dst_dir_fd=target)
        if durable:
            os.fsync(target)
    finally:
        os.close(source)
        if target >= 0:
            os.close(target)


def place(root: str, path: str, temp: str, durable: bool = True) -> None:
    """Give a finished file of this disk a name below `root`, in one step; no link is followed below it.

    Raises:
        OSError: ELOOP or ENOTDIR where a link or a file stands in place of a folder; the disk refused.
    """
    pieces = parts(path)
    folder = _parent(root, pieces, create=True)
    try:
        os.replace(temp, pieces[-1], dst_dir_fd=folder)
        if durable:
            os.fsync(folder)
    finally:
        os.close(folder)


def link(root: str, path: str, to: str) -> None:
    """Give a file's bytes a second name, in one step over what is there; a caller copies where links don't work."""
    old, new = parts(path), parts(to)
    source, target = _parent(root, old), -1
    temp = f".{os.getpid()}-{threading.get_ident()}.link.part"
    try:
        target = _parent(root, new, create=True)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temp, dir_fd=target)
        os.link(old[-1], temp, src_dir_fd=source, dst_dir_fd=target, follow_symlinks=False)
        os.replace(temp, new[-1], src_dir_fd=target, dst_dir_fd=target)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temp, dir_fd=target)  # rename(2) does nothing where both names are one file
        os.fsync(target)
    finally:
        os.close(source)
        if target >= 0:
            os.close(target)


def sync_folder(root: str, path: str) -> None:
    """Make the names in a folder durable; the empty path is the root."""
    folder = _parent(root, [*parts(path), ""]) if path else os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def unlink(root: str, path: str) -> None:
    """Remove a file; one that is gone is no error."""
    pieces = parts(path)
    with contextlib.suppress(FileNotFoundError):
        folder = _parent(root, pieces)
        try:
            os.unlink(pieces[-1], dir_fd=folder)
        finally:
            os.close(folder)


def write_all(fd: int, data: Union[bytes, memoryview]) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def replace_json(root: str, path: str, value: Any) -> None:
    """Replace a small JSON file in one step, durable."""
    text = json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False).encode() + b"\n"
    replace(root, path, lambda fd: write_all(fd, text))


def read_json(root: str, path: str) -> Any:
    """The value in a JSON file, or None where it is missing or torn (readers never repair)."""
    try:
        fd = open_read(root, path)
    except OSError:
        return None
    with os.fdopen(fd, "rb") as f:
        try:
            return json.loads(f.read().decode())
        except ValueError:
            return None


def remove(root: str, paths: Iterable[str]) -> List[str]:
    """Unlink files, then the folders that became empty with them; returns what went."""
    gone = []
    for path in paths:
        pieces = parts(path)
        try:
            folder = _parent(root, pieces)
        except OSError:
            continue
        try:
            os.unlink(pieces[-1], dir_fd=folder)
            gone.append(path)
        except OSError:
            continue
        finally:
            os.close(folder)
        while len(pieces) > 1:
            pieces.pop()
            try:
                os.rmdir(os.path.join(root, *pieces))
            except OSError:
                break
    return gone

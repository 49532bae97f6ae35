"""Digests of files that have not changed, so that nothing is read twice to learn that it is the same.

A digest belongs to (path, size, mtime_ns, inode, ctime_ns). It is not believed for a file that changed in the last
two seconds, nor where the file was hashed within two seconds of its last change: a clock tick is the limit of
what times can tell. One JSON file under `.remote-run`, a cache: losing it costs time only.

Not here: who asks, and when a digest must be taken afresh (fileops.py, transfer).
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import threading
import time
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

from remote_runner.pod import files, layout

SETTLED_NS = 2_000_000_000
MOST = 200_000  # entries; beyond, those that were taken longest ago go

Stamp = Tuple[int, int, int, int]  # size, mtime_ns, ctime_ns, inode


def stamp_of(info: os.stat_result) -> Stamp:
    return info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino


class Digests:
    """The memory of one root."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._lock = threading.Lock()
        self._dirty = False
        self._known: Dict[str, List[Any]] = {}  # path -> [*stamp, sha256]
        found = files.read_json(root, layout.DIGESTS)
        if isinstance(found, dict):
            self._known = {p: e for p, e in found.items() if isinstance(e, list) and len(e) == 5}

    def get(self, path: str, info: os.stat_result) -> Optional[str]:
        """The digest of a file that has not changed since it was taken."""
        return self.recall(path, stamp_of(info), time.time_ns())

    def recall(self, path: str, stamp: Stamp, now_ns: int) -> Optional[str]:
        """The same for a file that was seen with this stamp, now."""
        entry = self._known.get(path)
        if entry is None or tuple(entry[:4]) != stamp or now_ns - max(stamp[1], stamp[2]) <= SETTLED_NS:
            return None
        return str(entry[4])

    def put(self, path: str, stamp: Stamp, sha256: str, taken_ns: int, ours: bool = False) -> None:
        """Remember a digest.

        Args:
            stamp: of the file as it was read.
            taken_ns: when its reading began.
            ours: we wrote it whole and set its mtime, so that any later write shows in mtime, whatever the tick.
        """
        changed_ns = stamp[1] if ours else max(stamp[1], stamp[2])
        if taken_ns - changed_ns < SETTLED_NS:
            return
        with self._lock:
            self._known.pop(path, None)
            self._known[path] = [*stamp, sha256]
            if len(self._known) > MOST:
                del self._known[next(iter(self._known))]
            self._dirty = True

    def holders(self, sha256: str) -> Iterator[str]:
        """Paths that had this content when they were last seen."""
        with self._lock:
            found = [path for path, entry in self._known.items() if entry[4] == sha256]
        return iter(found)

    def of(self, path: str, tick: Callable[[], None] = lambda: None, fresh: bool = False) -> str:
        """Hex SHA-256 of a file, read only where it is not remembered.

        Raises:
            OSError: missing, a link on the way, or no regular file.
        """
        fd = files.open_read(self._root, path)
        try:
            info = os.fstat(fd)
            known = None if fresh else self.get(path, info)
            if known is not None:
                return known
            began_ns = time.time_ns()
            found = files.digest_fd(fd, tick)
            if stamp_of(os.fstat(fd)) == stamp_of(info):
                self.put(path, stamp_of(info), found, began_ns)
            return found
        finally:
            os.close(fd)

    def save(self) -> None:
        """Write it down, where something was learned; a disk that refuses costs the memory, not the work."""
        with self._lock:
            if not self._dirty or not os.path.isdir(os.path.join(self._root, layout.OWN)):
                return
            self._dirty = False
            with contextlib.suppress(OSError):
                files.replace(self._root, layout.DIGESTS, self._write, durable=False)

    def _write(self, fd: int) -> None:
        """Some thousand entries at a time: the memory of 100,000 files is no reason to need much."""
        before = b"{"
        entries = iter(self._known.items())
        while some := dict(itertools.islice(entries, 2000)):
            files.write_all(fd, before + json.dumps(some, separators=(",", ":"))[1:-1].encode())
            before = b",\n"
        files.write_all(fd, b"{}\n" if before == b"{" else b"}\n")

"""Fetch the blobs of a backup straight from an object store, by addresses that the controller has signed.

    pull    each blob -> .remote-run/incoming/<id>.part, by ranges where it broke off, proven by size and SHA-256
    pulled  files get their names from there, each in one rename

An address is a secret while it holds: it comes over the connection, stays in memory, and is in no file, argument,
log or answer. What the store sends is believed as far as its digest.

Not here: which blobs, and who signs (pulling.py).
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import shutil
import threading
import time
from collections import Counter
from typing import Any, Dict, List, Optional
from urllib.parse import urlsplit

from remote_runner.pod import digests, fileops, files, parts
from remote_runner.pod.session import Refusal, Session

STREAMS = 4
SILENCE_S = 20.0
VAIN_TRIES = 3  # in a row, each of which brought nothing
PAUSE_S = 0.5
_SHA256 = re.compile(r"[0-9a-f]{64}")


def part_of(sha256: str) -> str:
    """Where a blob waits for its names, below the root."""
    if not _SHA256.fullmatch(sha256):
        raise ValueError(f"no SHA-256: {sha256!r}")
    return f"{parts.INCOMING}/{sha256[:32]}.part"


def pull(session: Session, ask: Dict[str, Any]) -> Dict[str, Any]:
    """Bring blobs here, several at once; what an earlier try brought is not fetched again.

    Args:
        ask: `blobs`, each {sha256, size, url}.

    Returns:
        `bytes`: how many came.

    Raises:
        Refusal: "pull", with `kind`: away (no answer), refused (an HTTP status that stays) or content (other bytes
            than the digest says), and `bytes` that came all the same.
        OSError: the disk refused.
    """
    work = _Work(session.root, [dict(blob) for blob in ask["blobs"]])
    _room(session.root, work)
    threads = [threading.Thread(target=work.run, name="pull", daemon=True) for _ in range(STREAMS)]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            while thread.is_alive():
                thread.join(0.2)
                session.busy()
    finally:
        work.stopped.set()
    failed = work.failed
    if isinstance(failed, _Failed):
        raise Refusal("pull", kind=failed.kind, bytes=work.came, detail=str(failed))
    if failed is not None:
        raise failed
    return {"bytes": work.came}


def pulled(session: Session, ask: Dict[str, Any]) -> Dict[str, Any]:
    """Give blobs that were pulled their names, and make the folders.

    Args:
        ask: `files`, each [path, sha256, mode]; `folders`; `mtime_ns` of all.
    """
    root, known = session.root, fileops.memory(session)
    left = Counter(sha256 for _path, sha256, _mode in ask["files"])
    for path, sha256, mode in ask["files"]:
        part = os.path.join(root, part_of(sha256))
        left[sha256] -= 1
        if left[sha256]:  # files that are alike stay two: a trainer may write into one of them
            part, source = part[: -len(".part")] + ".copy.part", part
            shutil.copyfile(source, part)
        fd = os.open(part, os.O_RDWR | os.O_NOFOLLOW)
        try:
            os.fchmod(fd, mode & 0o777 | 0o600)
            os.utime(fd, ns=(ask["mtime_ns"], ask["mtime_ns"]))
            os.fsync(fd)
        finally:
            os.close(fd)
        files.place(root, path, part)
        known.put(path, digests.stamp_of(files.stat(root, path)), sha256, time.time_ns(), ours=True)
        session.busy()
    for folder in ask["folders"]:
        os.makedirs(os.path.join(root, *files.parts(folder)), exist_ok=True)
    known.save()
    return {}


def _room(root: str, work: "_Work") -> None:
    begun = 0
    for blob in work.blobs:
        with contextlib.suppress(OSError):
            begun += files.stat(root, part_of(blob["sha256"])).st_size
    disk = os.statvfs(root)
    free_bytes, need_bytes = disk.f_bavail * disk.f_frsize, sum(int(b["size"]) for b in work.blobs) - begun
    if need_bytes > free_bytes:
        detail = f"{root}: {need_bytes} bytes are to come, {free_bytes} are free"
        raise Refusal("os", errno=errno.ENOSPC, detail=detail)


class _Failed(Exception):
    """The blob can't be had this way."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind


class _Again(Exception):
    """The connection broke, or the store can't just now."""


class _Work:
    """Blobs that are still to come, shared by the threads."""

    def __init__(self, root: str, blobs: List[Dict[str, Any]]) -> None:
        self.root, self.blobs = root, blobs
        self.stopped = threading.Event()
        self.came = 0
        self.failed: Optional[Exception] = None
        self._todo = sorted(blobs, key=lambda b: int(b["size"]))
        self._lock = threading.Lock()

    def run(self) -> None:
        """A thread: the largest first; the first failure ends all."""
        while not self.stopped.is_set():
            with self._lock:
                if not self._todo:
                    return
                blob = self._todo.pop()
            try:
                _Part(self, blob).fetch()
            except Exception as e:  # noqa: BLE001 - it is the answer
                with self._lock:
                    self.failed = self.failed or e
                self.stopped.set()

    def count(self, size: int) -> None:
        with self._lock:
            self.came += size


class _Part:
    """One blob on its way in."""

    def __init__(self, work: _Work, blob: Dict[str, Any]) -> None:
        self._work, self._url = work, str(blob["url"])
        self._sha256, self._size = str(blob["sha256"]), int(blob["size"])
        self._name = f"blob {self._sha256[:16]}"
        if urlsplit(self._url).scheme not in ("http", "https"):
            raise _Failed("refused", f"{self._name}: its address is neither http nor https")
        self._fd, self._at, self._found = -1, 0, hashlib.sha256()

    def fetch(self) -> None:
        self._fd = files.open_write(self._work.root, part_of(self._sha256))
        try:
            self._take_up()
            begun = self._at > 0
            self._rest()
            if begun and self._found.hexdigest() != self._sha256 and not self._work.stopped.is_set():
                self._begin_anew()  # what lay here from before was not its beginning
                self._rest()
            if self._work.stopped.is_set():
                return  # another one failed; what came of this is of use to the next try
            if self._found.hexdigest() != self._sha256:
                os.ftruncate(self._fd, 0)
                raise _Failed("content", f"{self._name}: the store sent {self._found.hexdigest()}")
            os.fsync(self._fd)
        finally:
            os.close(self._fd)

    def _take_up(self) -> None:
        while self._at < self._size and not self._work.stopped.is_set():
            block = os.pread(self._fd, min(files.BLOCK_BYTES, self._size - self._at), self._at)
            if not block:
                break
            self._found.update(block)
            self._at += len(block)
        if not self._work.stopped.is_set():
            os.ftruncate(self._fd, self._at)

    def _begin_anew(self) -> None:
        os.ftruncate(self._fd, 0)
        self._at, self._found = 0, hashlib.sha256()

    def _rest(self) -> None:
        vain = 0
        while self._at < self._size and not self._work.stopped.is_set():
            before = self._at
            try:
                self._ask()
                continue
            except _Again as e:
                vain = 0 if self._at > before else vain + 1
                if vain >= VAIN_TRIES:
                    raise _Failed("away", f"{self._name}: {e}") from None
            self._work.stopped.wait(PAUSE_S * 2**vain)

    def _ask(self) -> None:
        """One request for what is missing.

        Raises:
            _Again: it may work the next time. _Failed: it will not.
        """
        import http.client
        import urllib.error
        import urllib.request

        rest = {"Range": f"bytes={self._at}-"} if self._at else {}
        request = urllib.request.Request(self._url, headers=rest)  # noqa: S310 - its scheme was looked at
        try:
            with _opener().open(request, timeout=SILENCE_S) as answer:
                self._take(answer)
        except urllib.error.HTTPError as e:
            e.close()
            if e.code == 416:
                self._begin_anew()
            if e.code in (408, 416, 429) or e.code >= 500:
                raise _Again(f"HTTP {e.code}") from None
            raise _Failed("refused", f"{self._name}: HTTP {e.code} {e.msg}") from None
        except _Disk as e:
            raise e.error from None
        except urllib.error.URLError as e:
            raise _Again(str(e.reason)) from None
        except (OSError, http.client.HTTPException) as e:
            # the name alone: some of these hold the address in their text
            raise _Again(str(e) if isinstance(e, OSError) else type(e).__name__) from None
        except ValueError:
            raise _Failed("refused", f"{self._name}: its address can't be read") from None

    def _take(self, answer: Any) -> None:
        if self._at and not (answer.headers.get("Content-Range") or "").startswith(f"bytes {self._at}-"):
            self._begin_anew()  # the server takes no ranges
        while not self._work.stopped.is_set():
            block = answer.read(min(files.BLOCK_BYTES, self._size - self._at + 1))
            if not block:
                break
            if self._at + len(block) > self._size:
                raise _Failed("content", f"{self._name}: more than its {self._size} bytes came")
            try:
                parts.write(self._fd, block, self._at)
            except OSError as e:
                raise _Disk(e) from None
            self._found.update(block)
            self._at += len(block)
            self._work.count(len(block))
        if self._at < self._size and not self._work.stopped.is_set():
            raise _Again(f"{self._at} of {self._size} bytes came")


class _Disk(Exception):
    """The disk here refused, not the network."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.error = error


def _opener() -> Any:
    import urllib.error
    import urllib.request

    class SameScheme(urllib.request.HTTPRedirectHandler):
        """A store may send us on, but not from https to http, nor to a file."""

        max_redirections = 3

        def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
            if urlsplit(newurl).scheme != urlsplit(req.full_url).scheme:
                raise urllib.error.HTTPError(newurl, code, "redirected to another scheme", headers, fp)
            return super().redirect_request(req, fp, code, msg, headers, newurl)

    return urllib.request.build_opener(SameScheme)

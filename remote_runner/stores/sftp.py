"""A folder on another machine, over SFTP: temp, fsync where the server can, posix-rename.

    sftp://USER@HOST:PORT/absolute/path      sftp://ALIAS/~/below/home      names and keys as `ssh` takes them

A server without the posix-rename extension is served too: names of blobs and manifests are never used twice, so a
plain rename does for them; replacing anything else there is remove and rename, with a moment in between.

The host key is checked like a pod's. Not here: how a connection is made (ssh.py).
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import hashlib
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, TypeVar
from urllib.parse import unquote, urlsplit

import paramiko
from paramiko.sftp import CMD_EXTENDED

from remote_runner import ssh
from remote_runner.errors import PreflightFailed, UsageFault
from remote_runner.hostkeys import Policy
from remote_runner.pod import files, layout
from remote_runner.program import LinkLost
from remote_runner.ssh import Endpoint
from remote_runner.stores import Object, StoreAway, StoreRefused
from remote_runner.target import parse

T = TypeVar("T")
SILENCE_S = 60.0
BLOCK_BYTES = 256 << 10


def open_sftp(url: str, root: Path) -> Sftp:
    """The store behind an sftp URL; no connection is made yet.

    Raises:
        UsageFault: no host, or no folder.
    """
    parts = urlsplit(url)
    folder = unquote(parts.path)
    folder = folder[1:] if folder.startswith("/~") else folder
    if not parts.netloc or folder in ("", "/"):
        raise UsageFault(f"{url}: names no folder on a host", fix="write sftp://USER@HOST:PORT/path, or /~/path")
    policy = Policy(own_file=root / layout.OWN / "known_hosts")
    endpoint = ssh.resolve(parse(parts.netloc), policy, None, None)
    return Sftp(endpoint, folder.removeprefix("~/"))


class Sftp:
    """See `Store`. One connection, made when it is needed and made anew after it was lost."""

    def __init__(self, endpoint: Endpoint, folder: str) -> None:
        self._endpoint, self._folder = endpoint, folder.rstrip("/")
        self._pod: ssh.Pod | None = None
        self._sftp: paramiko.SFTPClient | None = None
        self._plain_rename = False

    def sign(self, keys: builtins.list[str], valid_s: float) -> builtins.list[str]:
        return []

    def another(self) -> Sftp:
        return Sftp(self._endpoint, self._folder)

    def close(self) -> None:
        if self._pod is not None:
            self._pod.close()
        self._pod = self._sftp = None

    def _do(self, key: str, action: Callable[[paramiko.SFTPClient], T]) -> T:
        """Run one request; sort its failure into gone, passing and refused."""
        try:
            return action(self._connected())
        except FileNotFoundError:
            raise FileNotFoundError(errno.ENOENT, "not in the store", key) from None
        except (LinkLost, EOFError, TimeoutError, ConnectionError, paramiko.SSHException) as e:
            self.close()
            raise StoreAway(f"store {self._endpoint}: {e or 'connection closed'}") from None
        except PreflightFailed as e:
            self.close()
            if e.passing:
                raise StoreAway(f"store {self._endpoint}: {e}") from None
            raise StoreRefused(f"store {self._endpoint}: {e}; {e.fix}") from None
        except OSError as e:
            if isinstance(e, (StoreAway, StoreRefused)):
                raise
            if str(e) in ("Socket is closed", "Garbage packet received"):
                self.close()
                raise StoreAway(f"store {self._endpoint}: {e}") from None
            raise StoreRefused(
                f"store {self._endpoint}: {self._folder}/{key}: {e} (no room, or no right to write there?)"
            ) from None

    def _connected(self) -> paramiko.SFTPClient:
        if self._sftp is None:
            self._pod = ssh.connect(self._endpoint)
            self._sftp = self._pod.sftp(SILENCE_S)
        return self._sftp

    def _path(self, key: str) -> str:
        return "/".join([self._folder, *files.parts(key)])

    def has(self, key: str) -> int | None:
        try:
            return self._do(key, lambda sftp: sftp.stat(self._path(key)).st_size)
        except FileNotFoundError:
            return None

    def put_file(self, key: str, source: Path) -> None:
        with source.open("rb") as f:

            def blocks() -> Iterator[bytes]:
                f.seek(0)
                while block := f.read(BLOCK_BYTES):
                    yield block

            self._do(key, lambda sftp: self._replace(sftp, key, blocks(), source.stat().st_size))

    def put(self, key: str, content: bytes) -> None:
        self._do(key, lambda sftp: self._replace(sftp, key, iter([content]), len(content)))

    def _replace(self, sftp: paramiko.SFTPClient, key: str, blocks: Iterator[bytes], size: int) -> None:
        path = self._path(key)
        folder, _, name = path.rpartition("/")
        _make_folders(sftp, folder)
        temp = f"{folder}/.{name}.{secrets.token_hex(4)}.part"
        try:
            with sftp.open(temp, "wbx") as f:
                f.set_pipelined(True)
                for block in blocks:
                    f.write(block)
                f.flush()
                # where the server lacks it, the bytes are as safe as its own disk makes them
                with contextlib.suppress(OSError):
                    sftp._request(CMD_EXTENDED, "fsync@openssh.com", f.handle)  # type: ignore[attr-defined]
            if sftp.stat(temp).st_size != size:
                raise StoreAway(f"{path}: the server took {sftp.stat(temp).st_size} of {size} bytes")
            self._rename(sftp, temp, path)
        except OSError as e:
            if not isinstance(e, EOFError):
                with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
                    sftp.remove(temp)
            raise

    def _rename(self, sftp: paramiko.SFTPClient, temp: str, path: str) -> None:
        if not self._plain_rename:
            try:
                sftp.posix_rename(temp, path)
                return
            except OSError:
                self._plain_rename = True  # extension missing or denied
        try:
            sftp.rename(temp, path)
        except OSError:
            with contextlib.suppress(FileNotFoundError):
                sftp.remove(path)
            sftp.rename(temp, path)

    def get(self, key: str) -> bytes:
        def read(sftp: paramiko.SFTPClient) -> bytes:
            with sftp.open(self._path(key), "rb") as f:
                return f.read()

        return self._do(key, read)

    def fetch(self, key: str, to: Path) -> None:
        def copy(sftp: paramiko.SFTPClient) -> None:
            with to.open("wb") as target:
                for block in self._blocks(sftp, key):
                    _write_here(target, block)
                target.flush()
                os.fsync(target.fileno())

        self._do(key, copy)

    def digest(self, key: str) -> str:
        def read(sftp: paramiko.SFTPClient) -> str:
            found = hashlib.sha256()
            for block in self._blocks(sftp, key):
                found.update(block)
            return found.hexdigest()

        return self._do(key, read)

    def _blocks(self, sftp: paramiko.SFTPClient, key: str) -> Iterator[bytes]:
        with sftp.open(self._path(key), "rb") as f:
            f.prefetch(f.stat().st_size)
            while block := f.read(BLOCK_BYTES):
                yield block

    def list(self, prefix: str) -> builtins.list[Object]:
        found = []
        for key, info in self._do(prefix, lambda sftp: list(self._walk(sftp, prefix.rstrip("/")))):
            if not key.endswith(files.TEMP_SUFFIXES):
                found.append(Object(key, info.st_size or 0, float(info.st_mtime or 0)))
        return sorted(found, key=lambda o: o.key)

    def _walk(self, sftp: paramiko.SFTPClient, prefix: str) -> Iterator[tuple[str, paramiko.SFTPAttributes]]:
        try:
            entries = sftp.listdir_attr(self._path(prefix))
        except FileNotFoundError:
            return
        for entry in entries:
            key = f"{prefix}/{entry.filename}"
            if stat.S_ISDIR(entry.st_mode or 0):
                yield from self._walk(sftp, key)
            elif stat.S_ISREG(entry.st_mode or 0):
                yield key, entry

    def delete(self, key: str) -> None:
        def remove(sftp: paramiko.SFTPClient) -> None:
            path = self._path(key)
            with contextlib.suppress(FileNotFoundError):
                sftp.remove(path)
            if path.endswith("/manifest.json"):
                with contextlib.suppress(OSError):
                    sftp.rmdir(path.rpartition("/")[0])

        self._do(key, remove)

    def sweep(self, prefix: str) -> int:
        found = [k for k, _i in self._do(prefix, lambda s: list(self._walk(s, prefix.rstrip("/"))))]
        doomed = [k for k in found if k.endswith(files.TEMP_SUFFIXES)]
        for key in doomed:
            self.delete(key)
        return len(doomed)


def _write_here(target: BinaryIO, block: bytes) -> None:
    """A failure of the disk here is no failure of the store."""
    try:
        target.write(block)
    except OSError as e:
        raise StoreRefused(e.errno, f"the disk here: {e.strerror}") from None


def _make_folders(sftp: paramiko.SFTPClient, folder: str) -> None:
    try:
        sftp.stat(folder)
        return
    except FileNotFoundError:
        pass
    parent = folder.rpartition("/")[0]
    if parent:
        _make_folders(sftp, parent)
    with contextlib.suppress(OSError):  # another writer was faster; else the open tells
        sftp.mkdir(folder)

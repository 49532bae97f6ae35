"""Where backups live. One interface, one implementation for each kind of place, one suite of tests for all.

    <store>/<project>/<name>/blobs/<sha256>                                  same bytes are stored once
    <store>/<project>/<name>/backups/<UTC time>-<stage>-<step>/manifest.json goes last and makes it count

    backups, file:///path     directory.py   fsync of file and folder
    s3://, gs://, az:// ...   objects.py     obstore; S3 is tested, the others are opened and said to be untested
    sftp://USER@HOST/path     sftp.py        temp + posix-rename, host key checked

A failure either passes (`StoreAway`: tried again, steady.py) or does not (`StoreRefused`). No store's own checksum
or condition is relied on: whoever stores a blob reads it back.

Not here: what is in a manifest (vault.py), when one is written (backup.py), what is removed (retention.py).
"""

from __future__ import annotations

import builtins
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from remote_runner.errors import UsageFault


class StoreAway(OSError):
    """The store does not answer, or says that it can't just now: the same request may work later."""


class StoreRefused(OSError):
    """The store said no, and will say so again: credentials, a missing bucket, no room."""


@dataclass(frozen=True)
class Object:
    """One stored object, as a listing tells."""

    key: str
    size: int
    modified_unix_s: float  # by the store's own clock: only ever compared with another of the same store


class Store(Protocol):
    """Whole objects under keys with `/` between their parts. Everything may raise StoreAway or StoreRefused."""

    def has(self, key: str) -> int | None:
        """The size of an object, None where there is none."""

    def put_file(self, key: str, source: Path) -> None:
        """Store a file's bytes, durable and in one step: under the key is the old object or the new one, whole."""

    def put(self, key: str, content: bytes) -> None:
        """Store a small object, durable and in one step."""

    def get(self, key: str) -> bytes:
        """A small object.

        Raises:
            FileNotFoundError: there is none.
        """

    def fetch(self, key: str, to: Path) -> None:
        """Write an object's bytes to a file, synced.

        Raises:
            FileNotFoundError: there is none.
        """

    def digest(self, key: str) -> str:
        """Hex SHA-256 of the bytes that the store gives back.

        Raises:
            FileNotFoundError: there is none.
        """

    def list(self, prefix: str) -> list[Object]:
        """All objects whose key begins so (a prefix ends with `/`), sorted by key; unfinished ones are none."""

    def delete(self, key: str) -> None:
        """Remove an object; one that is gone is no error."""

    def sweep(self, prefix: str) -> int:
        """Remove what writers that died left unfinished below a prefix; the caller knows that none is at work.

        Returns:
            How many there were.
        """

    def sign(self, keys: builtins.list[str], valid_s: float) -> builtins.list[str]:
        """Addresses that fetch objects for a while without a login: secrets for that time. None of a store without."""

    def another(self) -> Store:
        """The same store for another thread; itself where that is safe."""

    def close(self) -> None:
        """Let go of connections."""


def open_store(url: str, root: Path) -> Store:
    """The store behind a URL; a directory relative to the project's folder.

    Raises:
        UsageFault: a scheme that is not served, or a URL that carries a secret.
    """
    from remote_runner.stores.steady import Steady

    scheme, separator, rest = url.partition("://")
    if not separator or scheme == "file":
        from remote_runner.stores.directory import Directory

        return Directory(root / Path(url.removeprefix("file://")).expanduser())
    if ":" in rest.partition("@")[0] and "@" in rest.partition("/")[0]:
        raise UsageFault(
            f"{scheme}://…: a store's address carries no secret",
            fix="leave it out: s3 takes keys from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or ~/.aws/credentials, "
            "sftp from ssh's own keys",
        )
    if scheme == "sftp":
        from remote_runner.stores.sftp import open_sftp

        return Steady(open_sftp(url, root))
    from remote_runner.stores.objects import open_objects

    return Steady(open_objects(url))

"""Where backups live. One interface, one implementation for each kind of place.

    <store>/<project>/<name>/blobs/<sha256>                                  same bytes are stored once
    <store>/<project>/<name>/backups/<UTC time>-<stage>-<step>/manifest.json goes last and makes it count

Not here: what is in a manifest and when one is written (backup.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from remote_runner.errors import UsageFault


class Store(Protocol):
    """Whole objects under keys with `/` between their parts."""

    def has(self, key: str) -> int | None:
        """The size of an object, None where there is none."""

    def put_file(self, key: str, source: Path) -> None:
        """Store a file's bytes, durable and in one step; `source` may be consumed.

        Raises:
            OSError: the store refused.
        """

    def put(self, key: str, content: bytes) -> None:
        """Store a small object, durable and in one step."""

    def get(self, key: str) -> bytes:
        """A small object.

        Raises:
            FileNotFoundError: there is none.
        """

    def fetch(self, key: str, to: Path) -> None:
        """Write an object's bytes to a file."""

    def keys(self, prefix: str) -> Iterator[str]:
        """All keys that begin so, sorted."""

    def delete(self, key: str) -> None:
        """Remove an object; one that is gone is no error."""


def open_store(url: str, root: Path) -> Store:
    """The store behind a URL; a directory relative to the project's folder.

    Raises:
        UsageFault: a scheme that is not served.
    """
    scheme, separator, _ = url.partition("://")
    if separator and scheme != "file":
        raise UsageFault(
            f"{url}: a store of the kind {scheme}:// is not served", fix="give a directory: --backup-to DIR"
        )
    from remote_runner.stores.directory import Directory

    return Directory(root / Path(url.removeprefix("file://")).expanduser())

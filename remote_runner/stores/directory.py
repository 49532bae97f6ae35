"""A folder as a store: temp in the same folder, fsync, rename, fsync of the folder."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from remote_runner.pod import files


class Directory:
    """See `Store`."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def _path(self, key: str) -> Path:
        return self._root.joinpath(*files.parts(key))

    def has(self, key: str) -> int | None:
        path = self._path(key)
        return path.stat().st_size if path.is_file() else None

    def put_file(self, key: str, source: Path) -> None:
        self._root.mkdir(parents=True, exist_ok=True)
        with source.open("rb") as f:

            def fill(fd: int) -> None:
                while block := f.read(files.BLOCK_BYTES):
                    files.write_all(fd, block)

            files.replace(str(self._root), key, fill)

    def put(self, key: str, content: bytes) -> None:
        self._root.mkdir(parents=True, exist_ok=True)
        files.replace(str(self._root), key, lambda fd: files.write_all(fd, content))

    def get(self, key: str) -> bytes:
        return self._path(key).read_bytes()

    def fetch(self, key: str, to: Path) -> None:
        with self._path(key).open("rb") as source, to.open("wb") as target:
            shutil.copyfileobj(source, target, files.BLOCK_BYTES)
            target.flush()
            os.fsync(target.fileno())

    def keys(self, prefix: str) -> Iterator[str]:
        top = self._path(prefix.rstrip("/"))
        for path in sorted(top.rglob("*")) if top.is_dir() else ():
            if path.is_file() and not path.name.endswith(files.TEMP_SUFFIXES):
                yield path.relative_to(self._root).as_posix()

    def delete(self, key: str) -> None:
        self._path(key).unlink(missing_ok=True)

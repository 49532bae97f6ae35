"""A folder as a store: temp in the same folder, fsync, rename, fsync of the folder."""

from __future__ import annotations

import builtins
import errno
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from remote_runner.pod import files
from remote_runner.stores import Object, StoreRefused


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
        with source.open("rb") as f:

            def fill(fd: int) -> None:
                while block := f.read(files.BLOCK_BYTES):
                    files.write_all(fd, block)

            self._replace(key, fill, source.stat().st_size)

    def put(self, key: str, content: bytes) -> None:
        self._replace(key, lambda fd: files.write_all(fd, content), len(content))

    def _replace(self, key: str, fill: Callable[[int], None], size: int) -> None:
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            _durable_folders(self._root, self._path(key).parent)
            files.replace(str(self._root), key, fill)
        except OSError as e:
            if e.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            free_bytes = shutil.disk_usage(self._root).free
            raise StoreRefused(
                e.errno,
                f"no space left in the store {self._root}: {key.rpartition('/')[2]} needs {size / 1e6:.2f} MB, "
                f"{free_bytes / 1e6:.2f} MB are free",
            ) from None

    def get(self, key: str) -> bytes:
        return self._path(key).read_bytes()

    def fetch(self, key: str, to: Path) -> None:
        with self._path(key).open("rb") as source, to.open("wb") as target:
            shutil.copyfileobj(source, target, files.BLOCK_BYTES)
            target.flush()
            os.fsync(target.fileno())

    def digest(self, key: str) -> str:
        return files.digest(str(self._root), key)

    def list(self, prefix: str) -> builtins.list[Object]:
        found = []
        for path, info in self._walk(prefix):
            if not path.name.endswith(files.TEMP_SUFFIXES):
                found.append(Object(path.relative_to(self._root).as_posix(), info.st_size, info.st_mtime))
        return sorted(found, key=lambda o: o.key)

    def _walk(self, prefix: str) -> Iterator[tuple[Path, os.stat_result]]:
        for folder, _inner, names in os.walk(self._path(prefix.rstrip("/"))):
            for name in names:
                path = Path(folder) / name
                try:
                    yield path, path.lstat()
                except FileNotFoundError:
                    continue  # deleted since it was listed

    def delete(self, key: str) -> None:
        path = self._path(key)
        path.unlink(missing_ok=True)
        if path.name == "manifest.json":
            try:
                path.parent.rmdir()  # a folder for each backup; an object store has none
            except OSError:
                return  # not empty, or gone already

    def sweep(self, prefix: str) -> int:
        doomed = [path for path, _info in self._walk(prefix) if path.name.endswith(files.TEMP_SUFFIXES)]
        for path in doomed:
            path.unlink(missing_ok=True)
        return len(doomed)

    def sign(self, keys: builtins.list[str], valid_s: float) -> builtins.list[str]:
        return []

    def another(self) -> Directory:
        return self

    def close(self) -> None:
        pass


def _durable_folders(root: Path, folder: Path) -> None:
    """Make the folders of a key, each one's name synced in the folder above: a name lasts only then."""
    if folder.is_dir():
        return
    missing = [folder, *folder.parents]
    for one in reversed(missing[: missing.index(root)]):
        one.mkdir(exist_ok=True)
        fd = os.open(one.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

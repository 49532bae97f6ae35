"""A store that is tried again while its failures pass: one policy for all of them.

Every request of a store may be repeated: an object is put whole or not at all, and the same key gets the same
bytes (blobs) or the newest (manifests have one writer).
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import tenacity

from remote_runner.stores import Object, Store, StoreAway

T = TypeVar("T")
PATIENCE_S = 120.0  # a store that answers 503 for a minute is waited for


class Steady:
    """See `Store`."""

    def __init__(self, inner: Store, patience_s: float = PATIENCE_S) -> None:
        self._inner, self._patience_s = inner, patience_s

    def _again(self, action: Callable[[], T]) -> T:
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(StoreAway),
            wait=tenacity.wait_exponential(multiplier=0.5, max=15) + tenacity.wait_random(0, 0.5),
            stop=tenacity.stop_after_delay(self._patience_s),
            reraise=True,
        )
        return retrying(action)

    def has(self, key: str) -> int | None:
        return self._again(lambda: self._inner.has(key))

    def put_file(self, key: str, source: Path) -> None:
        self._again(lambda: self._inner.put_file(key, source))

    def put(self, key: str, content: bytes) -> None:
        self._again(lambda: self._inner.put(key, content))

    def get(self, key: str) -> bytes:
        return self._again(lambda: self._inner.get(key))

    def fetch(self, key: str, to: Path) -> None:
        self._again(lambda: self._inner.fetch(key, to))

    def digest(self, key: str) -> str:
        return self._again(lambda: self._inner.digest(key))

    def list(self, prefix: str) -> builtins.list[Object]:
        return self._again(lambda: self._inner.list(prefix))

    def delete(self, key: str) -> None:
        self._again(lambda: self._inner.delete(key))

    def sweep(self, prefix: str) -> int:
        return self._again(lambda: self._inner.sweep(prefix))

    def sign(self, keys: builtins.list[str], valid_s: float) -> builtins.list[str]:
        return self._inner.sign(keys, valid_s)

    def another(self) -> Store:
        other = self._inner.another()
        return self if other is self._inner else Steady(other, self._patience_s)

    def close(self) -> None:
        self._inner.close()

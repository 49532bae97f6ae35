"""H24: objects that came in parts are known by their bytes, not by an ETag."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from backing import make, manifest_of

from remote_runner import restoring, vault
from remote_runner.errors import Unverified
from remote_runner.vault import Place


def test_an_object_of_many_parts_is_known_by_its_bytes(root: Path, s3_place: Place) -> None:
    """Other bytes of the same length are found and named by key; nothing travels when nothing has changed."""
    (root / "artifacts/run").mkdir(parents=True)
    big = root / "artifacts/run/model.bin"
    big.write_bytes(os.urandom(12 << 20))
    first = make(root, s3_place)
    manifest = manifest_of(s3_place, first)
    assert vault.damaged(s3_place, manifest) == []
    assert make(root, s3_place).new_bytes == 0
    key = s3_place.blob(manifest["files"][0]["sha256"])
    s3_place.store.put(key, bytes(12 << 20))
    assert [d.partition(":")[0] for d in vault.damaged(s3_place, manifest)] == [key]
    with pytest.raises(Unverified, match=key):
        restoring.fetch(s3_place, manifest, root.parent / "incoming")

"""H26: a change that neither size nor modification time shows is backed up all the same."""

from __future__ import annotations

import os
from pathlib import Path

import rotating
from backing import make, manifest_of, restored

from remote_runner.vault import Place


def test_a_change_that_size_and_times_do_not_show(root: Path, place: Place, tmp_path: Path) -> None:
    rotating.save(root, "generator", 1)
    notes = root / "artifacts/run/notes.bin"
    notes.write_bytes(b"before")
    before = notes.stat()
    last = make(root, place)
    notes.write_bytes(b"beforE")
    os.utime(notes, ns=(before.st_atime_ns, before.st_mtime_ns))
    last = make(root, place, last)
    home = restored(place, manifest_of(place, last), tmp_path / "back")
    assert (home / "artifacts/run/notes.bin").read_bytes() == b"beforE"

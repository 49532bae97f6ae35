"""H21: lists of digests as GNU sha256sum writes them, for awkward names; the failing file is named and no other."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from projects import Project

from remote_runner import checksums

NAMES = ["a b.txt", "-dash.txt", " lead.txt", "back\\slash.txt", "new\nline.txt", "cr\rname", "star*name", "sub/x.bin"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "listed/sub").mkdir(parents=True)
    for name in NAMES:
        (tmp_path / "listed" / name).write_text(f"content of {name!r}")
    return tmp_path / "listed"


def gnu(folder: Path, *options: str) -> None:
    if shutil.which("sha256sum") is None:
        pytest.skip("no GNU sha256sum here")
    done = subprocess.run(["sha256sum", *options, "--", *NAMES], cwd=folder, capture_output=True, check=True)
    (folder / "SHA256SUMS").write_bytes(done.stdout)


@pytest.mark.parametrize("options", [["--text"], ["--binary"]])
def test_a_good_list_is_good(project: Project, folder: Path, options: list[str]) -> None:
    gnu(folder, *options)
    assert sorted(checksums.parse((folder / "SHA256SUMS").read_bytes())) == sorted(NAMES)
    done = project.run(project.command("verify", folder))
    assert done.returncode == 0, done.stderr
    assert f"{len(NAMES)} files as listed" in done.stdout


@pytest.mark.parametrize("name", NAMES)
def test_the_failing_file_is_named_and_no_other(folder: Path, name: str) -> None:
    gnu(folder)
    wanted = checksums.expected(folder)
    (folder / name).write_text("other")
    assert list(checksums.problems(folder, wanted)) == [name]
    (folder / name).unlink()
    assert checksums.problems(folder, wanted) == {name: "missing"}


def test_verify_says_so_and_ends_with_7(project: Project, folder: Path) -> None:
    gnu(folder)
    (folder / "back\\slash.txt").write_text("other")
    done = project.run(project.command("verify", folder))
    assert done.returncode == 7
    assert done.stderr.count("error:") == 1
    assert "back\\slash.txt: its bytes are" in done.stderr


def test_our_list_passes_the_strict_check_of_gnu(folder: Path) -> None:
    gnu(folder)
    ours = checksums.render(checksums.expected(folder))
    (folder / "SHA256SUMS").write_bytes(ours)
    done = subprocess.run(["sha256sum", "-c", "--strict", "SHA256SUMS"], cwd=folder, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


_SHA = st.text("0123456789abcdef", min_size=64, max_size=64)


@given(st.dictionaries(st.binary(min_size=1).filter(lambda b: b"\0" not in b).map(os.fsdecode), _SHA))
def test_what_is_written_is_read_back(digests: dict[str, str]) -> None:
    assert checksums.parse(checksums.render(digests)) == digests


@pytest.mark.parametrize("line", [b"abc  name", b"0" * 64 + b" name", b"\\" + b"0" * 64 + b"  bad\\x"])
def test_a_line_that_is_none_is_named(line: bytes) -> None:
    with pytest.raises(checksums.BadList, match="line 1"):
        checksums.parse(line)


def test_a_downloaded_run_is_checked_against_what_was_proven_then(project: Project, pod: object) -> None:
    done = project.run(project.on(pod, project.config()))  # type: ignore[arg-type]
    assert done.returncode == 0, done.stderr
    assert project.run(project.command("verify", "artifacts/toy")).returncode == 0
    (project.root / "artifacts/toy/result.json").write_text("{}")
    done = project.run(project.command("verify", "artifacts/toy"))
    assert done.returncode == 7
    assert "result.json" in done.stderr

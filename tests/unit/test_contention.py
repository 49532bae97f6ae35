"""What others do on our GPUs, as the driver's tool shows it; a stand-in for the tool speaks its format."""

from __future__ import annotations

from pathlib import Path

import pytest
from pods import wait_for

from remote_runner.pod.contention import EVERY_S, FIRST_S, Contention, others_use

SHOWN = """\
# gpu         pid   type     sm    mem    enc    dec    jpg    ofa     fb   ccpm    command
# Idx           #    C/G      %      %      %      %      %      %     MB     MB    name
    0        4711     C     50     20      -      -      -      -   2000      0    python
    0        4712     C     30     10      -      -      -      -   1500      0    python
    0        4713     G      -      -      -      -      -      -     12      0    Xorg
    1        4800     C     99     40      -      -      -      -   9000      0    other
    2           -     -      -      -      -      -      -      -      -      -    -
"""


def test_only_others_on_our_gpus_count() -> None:
    assert others_use(SHOWN, {4711}) == {"percent": 30.0, "memory_mb": 1512.0}
    assert others_use(SHOWN, {4711, 4712, 4713}) == {"percent": 0.0, "memory_mb": 0.0}
    assert others_use(SHOWN, {4711, 4800}) == {"percent": 30.0, "memory_mb": 1512.0}


def test_where_we_are_not_shown_nothing_is_said() -> None:
    """In a container the driver may show nobody, or pids of another namespace."""
    assert others_use(SHOWN, {1}) is None
    assert others_use("", {1}) is None
    assert others_use("# gpu pid type sm\nFailed to initialize NVML\n", {1}) is None


def test_samples_add_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f'#!/bin/sh\n[ "$*" = "pmon -c 1 -s um" ] && cat {tmp_path}/shown\n')
    tool.chmod(0o755)
    (tmp_path / "shown").write_text(SHOWN)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    seen = Contention(0.0)
    assert seen.look(FIRST_S - 1, set) is None
    assert seen.look(FIRST_S, set) is None  # asked, not waited for
    first = wait_for(lambda: seen.look(FIRST_S + 1, lambda: {4711}), "the first sample")
    assert first == {
        "samples": 1, "others_percent_mean": 30.0, "others_percent_most": 30.0, "others_memory_mb_most": 1512.0,
    }  # fmt: skip
    (tmp_path / "shown").write_text(SHOWN.replace(" 30 ", " 10 "))
    assert seen.look(FIRST_S + EVERY_S, set) is None
    second = wait_for(lambda: seen.look(FIRST_S + EVERY_S + 1, lambda: {4711}), "the second sample")
    assert isinstance(second, dict)
    assert (second["samples"], second["others_percent_mean"], second["others_percent_most"]) == (2, 20.0, 30.0)


def test_without_the_tool_nothing_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    seen = Contention(0.0)
    assert seen.look(10 * EVERY_S, set) is None
    assert seen.look(20 * EVERY_S, set) is None


def test_a_tool_that_hangs_is_not_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\necho asked >> {tmp_path}/asked\nexec sleep 60\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    seen = Contention(0.0)
    seen.look(FIRST_S, set)
    wait_for((tmp_path / "asked").exists, "the tool was asked")
    assert seen.look(FIRST_S + EVERY_S, set) is None  # it has not answered for long: ended
    for i in range(2, 6):
        assert seen.look(FIRST_S + i * EVERY_S, set) is None
    assert (tmp_path / "asked").read_text() == "asked\n"

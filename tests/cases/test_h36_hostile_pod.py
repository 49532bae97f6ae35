"""H36: the pod is rented and not trusted. Files are fetched one by one, so its listing is what may be hostile."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import transfer_peers as peers
from pods import TestPod
from transfer_peers import OUTPUT

from remote_runner import transfer
from remote_runner.errors import Unverified
from remote_runner.pod import wire

MARK = "ESCAPED"


class Lying:
    """An agent whose listing names what it likes, and whose packs deliver it."""

    class pod:  # noqa: N801
        rtt_s = 0.0

    def __init__(self, path: str) -> None:
        self._path = path

        def answers(ask: dict[str, Any]) -> list[wire.Message]:
            if ask["op"] == "scan":
                row = ["f", path, 1, 1, 1, 1, 0o6755, ""]
                return [wire.chunk(json.dumps([row]).encode(), True), ({"ok": True}, b"")]
            return [
                (
                    {
                        "ok": True,
                        "rows": [
                            [
                                0,
                                1,
                                "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881",
                                0o6755,
                                1,
                                1,
                                1,
                                True,
                            ]
                        ],
                    },
                    b"",
                )
            ]

        self._conversation = peers.Peer(answers).conversation()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._conversation, name)


@pytest.mark.parametrize(
    "path",
    [f"../{MARK}", f"/tmp/{MARK}", f"{OUTPUT}/../../../{MARK}", f"{OUTPUT}/./{MARK}", f"{MARK}", f"runs\0/{MARK}"],
)
def test_a_listing_that_climbs_out_is_refused(tmp_path: Path, path: str) -> None:
    here = tmp_path / "two" / "below"
    here.mkdir(parents=True)
    with pytest.raises(Unverified, match="listing"):
        peers.bring(Lying(path), here)  # type: ignore[arg-type]
    assert not list(tmp_path.rglob(f"{MARK}*"))
    assert not Path(f"/tmp/{MARK}").exists()


def test_nothing_is_written_through_a_link_that_stands_here(pod: TestPod, tmp_path: Path) -> None:
    (pod.root / OUTPUT / "door").mkdir(parents=True)
    (pod.root / OUTPUT / "door" / MARK).write_text("x")
    here, outside = tmp_path / "here", tmp_path / "outside"
    (here / OUTPUT).mkdir(parents=True)
    outside.mkdir()
    (here / OUTPUT / "door").symlink_to(outside)
    with peers.agent_on(pod, tmp_path) as agent, pytest.raises((Unverified, OSError)):
        peers.bring(agent, here)
    assert not list(outside.iterdir())


def test_links_pipes_and_devices_are_named_and_never_made(pod: TestPod, tmp_path: Path) -> None:
    folder = pod.root / OUTPUT
    folder.mkdir(parents=True)
    (folder / "door").symlink_to("..")
    (folder / "config").symlink_to("/etc/passwd")
    os.mkfifo(folder / "pipe")
    if os.getuid() == 0:
        os.mknod(folder / "null", 0o020666, os.makedev(1, 3))
    (folder / "tool").write_text("#!/bin/sh\n")
    (folder / "tool").chmod(0o6755)
    here = tmp_path / "here"
    with peers.agent_on(pod, tmp_path) as agent:
        _, _, others = transfer.listing(agent, [OUTPUT], [])
        peers.bring(agent, here)
    expected = {"door", "config", "pipe", *(["null"] if os.getuid() == 0 else [])}
    assert {Path(o).name for o in others} == expected
    assert [p.name for p in (here / OUTPUT).iterdir()] == ["tool"]
    assert (here / OUTPUT / "tool").stat().st_mode & 0o7777 == 0o755
    assert (here / OUTPUT / "tool").stat().st_uid == os.getuid()

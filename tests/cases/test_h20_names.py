"""H20: awkward names travel to the pod and back, and no shell ever sees them."""

from __future__ import annotations

from pathlib import Path

import transfer_peers as peers
from pods import TestPod
from transfer_peers import NAME, OUTPUT

from remote_runner import transfer

NAMES = [
    "plain.txt", "a blank.txt", "two  blanks.txt", "line\nbreak.txt", "tab\tstop.txt", "-rf", "--version",
    "back\\slash.txt", "it's.txt", 'say "so".txt', "all*.txt", "who?.txt", "[ab].txt", "$(touch PWNED_1).txt",
    "`touch PWNED_2`.txt", "x;touch PWNED_3", "x&touch PWNED_4", "#no comment", ".hidden", "größe-é.txt", "数独.txt",
    "trailing ", "a folder/-x/deep er.txt", "n" * 250 + ".txt", "empty.bin",
]  # fmt: skip


def test_there_and_back_again(pod: TestPod, tmp_path: Path) -> None:
    here, again = tmp_path / "here", tmp_path / "again"
    for name in NAMES:
        path = here / OUTPUT / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"" if name == "empty.bin" else f"content of {name!r}\n".encode())
    (here / OUTPUT / "large\n$(touch PWNED_5).safetensors").write_bytes(bytes(5 << 20))
    expected = peers.tree(here)
    with peers.agent_on(pod, tmp_path) as agent:
        transfer.send(agent, peers.items(here))
        assert peers.tree(pod.root) == expected
        (pod.root / OUTPUT / "empty folder").mkdir()
        peers.bring(agent, again)
        _, folders, others = transfer.listing(agent, [OUTPUT], [NAME])
    assert peers.tree(again) == expected
    assert f"{OUTPUT}/empty folder" in folders
    assert not others
    assert not [p for top in (tmp_path, pod.home) for p in top.rglob("PWNED*") if "touch" not in p.name]

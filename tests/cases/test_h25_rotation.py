"""H25: backups while snapshots rotate and logs grow: each is of one step, whole, and hurts no trainer."""

from __future__ import annotations

import json
import shutil
import threading
import time
from pathlib import Path

from backing import check_each, make, manifest_of, restored, trainer

from remote_runner import vault
from remote_runner.pod import foreign, layout
from remote_runner.vault import Place


def test_an_object_store(root: Path, s3_place: Place, tmp_path: Path) -> None:
    last, found = None, []
    with trainer(root):
        for _ in range(15):
            last = make(root, s3_place, last)
            found.append(manifest_of(s3_place, last))
    check_each(s3_place, found, tmp_path)


PARTS = ("weights.dat", "optimizer.dat", "trainer_state.json")


def test_snapshots_of_several_files(root: Path, place: Place, tmp_path: Path) -> None:
    """Folders of another trainer, of which four are kept: what a backup tells of is complete and of one step."""
    (root / layout.OWN).mkdir()
    (root / layout.JOB).write_text(json.dumps({"outputs": ["artifacts/run"], "snapshots": [foreign.PRESETS["hf"]]}))
    (root / "artifacts/run").mkdir(parents=True)
    stop, failed = threading.Event(), list[Exception]()

    def train() -> None:
        step = 0
        try:
            while not stop.wait(0.3):
                step += 1
                folder = root / f"artifacts/run/checkpoint-{step}"
                folder.mkdir()
                for name in PARTS:
                    (folder / name).write_text(json.dumps({"step": step, "pad": "x" * 20_000}))
                shutil.rmtree(root / f"artifacts/run/checkpoint-{step - 4}", ignore_errors=True)
        except OSError as e:
            failed.append(e)

    thread = threading.Thread(target=train)
    thread.start()
    told = []
    give_up_at = time.monotonic() + 60
    while len(told) < 4 and time.monotonic() < give_up_at:  # the first folders are not yet known to be complete
        manifest = manifest_of(place, make(root, place))
        told += [(manifest, head) for head in vault.snapshots(manifest)]
    stop.set()
    thread.join()
    assert not failed
    assert len(told) >= 4
    for number, (manifest, head) in enumerate(told):
        home = restored(place, manifest, tmp_path / f"back-{number}")
        steps = [json.loads((home / head["path"] / name).read_text())["step"] for name in PARTS]
        assert steps == [head["step"]] * 3

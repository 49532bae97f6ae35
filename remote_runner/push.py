"""On the pod: back up a run by itself at the interval, so that a sleeping laptop loses nothing.

    .remote-run/push/order.json        what to do; told by the controller
                     credentials.json  mode 600, from the controller by the connection, removed at the end
                     status.json       the last backup, or why there is none
                     program.zip       this code: the same as the controller's

    python -m remote_runner.push ROOT      started by pod/pusher.py in the workload's environment

It ends when the run has ended, or its supervisor is gone, and one more backup was made or given up.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from remote_runner import backup, stores
from remote_runner.backup import Backup
from remote_runner.errors import RunnerError
from remote_runner.ondisk import OnDisk
from remote_runner.pod import fate, files, layout
from remote_runner.pod.status import read as read_status
from remote_runner.vault import Place

LOOK_EVERY_S = 1.0
LAST_TRIES = 5


def main(root: Path) -> int:
    """Push until the run is over; 0 when its end is safe in the store."""
    own = root / layout.PUSH
    order = json.loads((own / "order.json").read_text(encoding="utf-8"))
    try:
        os.environ.update(json.loads((own / "credentials.json").read_text(encoding="utf-8")))
        store = stores.open_store(order["store"], root)
        place = Place(store=store, project=order["project"], name=order["name"], keep=order["keep"])
        return _push(root, order, place)
    finally:
        with contextlib.suppress(FileNotFoundError):
            (own / "credentials.json").unlink()


def _push(root: Path, order: dict[str, Any], place: Place) -> int:
    last: Backup | None = None
    due_s = time.monotonic() + order["every_s"]
    while not (over := _over(root, order)) and time.monotonic() < due_s:
        time.sleep(LOOK_EVERY_S)
    tries = 0
    while True:
        made = _one(root, order, place, last)
        last = made or last
        if over:
            tries += 1
            if made is not None or tries >= LAST_TRIES:
                return 0 if made is not None else 1
            time.sleep(LOOK_EVERY_S * tries)
            continue
        due_s = time.monotonic() + order["every_s"]
        while not (over := _over(root, order)) and time.monotonic() < due_s:
            time.sleep(LOOK_EVERY_S)


def _one(root: Path, order: dict[str, Any], place: Place, last: Backup | None) -> Backup | None:
    source = OnDisk(root, order["outputs"], order["name"])
    try:
        made = backup.make(source, place, root / layout.PUSH / "spool", order["attempt"], last)
    except (OSError, RunnerError) as e:
        _say(root, order, {"problem": str(e)})
        return None
    _say(root, order, {"id": made.id, "stage": made.stage, "step": made.step, "made_unix_s": made.unix_s})
    return made


def _say(root: Path, order: dict[str, Any], fields: dict[str, Any]) -> None:
    """The credentials are in no message: stores take them out of theirs."""
    said = {"attempt": order["attempt"], "pid": os.getpid(), "unix_s": time.time(), **fields}
    files.replace_json(str(root), f"{layout.PUSH}/status.json", said)


def _over(root: Path, order: dict[str, Any]) -> bool:
    """Whether the run that this was started for goes on no more."""
    status = read_status(str(root), order["name"])
    if not isinstance(status, dict) or status.get("attempt") != order["attempt"]:
        return True  # another attempt has its own
    return bool(status.get("exit")) or fate.of(status)["fate"] != "running"


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))

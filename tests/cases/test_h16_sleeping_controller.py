"""H16: the controller sleeps through several backups and the job's end; waking, it finishes as if nothing was.

The situation's seconds are divided by ten: asleep 12 s, a backup each 2 s, the job ends after 6 s.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from pods import TestPod, wait_for
from projects import Project


def test_a_laptop_that_was_closed(project: Project, make_pod: Callable[..., TestPod]) -> None:
    pod = make_pod(options=["ClientAliveInterval 1", "ClientAliveCountMax 2"])
    config = project.config(steps=60, step_s=0.1)
    controller = project.start(project.on(pod, config, "--backup-every", "2s"))
    backups = project.root / "backups/project/toy/backups"
    wait_for(lambda: list(backups.glob("*/manifest.json")), "the first backup")
    controller.send_signal(signal.SIGSTOP)
    before = len(list(backups.glob("*/manifest.json")))
    wait_for((pod.root / "artifacts/toy/result.json").exists, "the job's end", 30)
    time.sleep(6)  # asleep for three more intervals: the server drops the session meanwhile
    controller.send_signal(signal.SIGCONT)
    woke = time.monotonic()
    out, _ = controller.communicate(timeout=60)
    assert controller.returncode == 0, out
    assert time.monotonic() - woke < 60
    made = len(list(backups.glob("*/manifest.json"))) - before
    assert 1 <= made <= 2, out  # the last one, and one that was under way; not one for each interval
    assert project.report()["cause"] == "done"
    assert "failed" not in out.replace("lost contact", "")
    assert "timed out" not in out

"""H02: the network goes silent without closing. The controller says so, keeps trying, and takes the job up again."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest
import relay
from pods import TestPod, wait_for
from projects import Project

SNAPSHOT = "artifacts/toy/toy-training.safetensors"


class Lines:
    """What a process says, with the time at which it was said."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.said: list[tuple[float, str]] = []
        self._process = process
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.said.append((time.monotonic(), line))

    def first(self, words: str) -> float | None:
        return next((at for at, line in self.said if words in line), None)

    def text(self) -> str:
        return "".join(line for _, line in self.said)


@pytest.fixture
def way(pod: TestPod) -> Iterator[relay.Relay]:
    with relay.to(pod.port) as here:
        yield here


def started(project: Project, pod: TestPod, way: relay.Relay, *options: str) -> subprocess.Popen[str]:
    argv = project.on(pod, project.config(steps=1600, step_s=0.05), *options)
    argv[argv.index(pod.address)] = pod.address.replace(str(pod.port), str(way.port))
    return project.start(argv)


def test_a_link_that_comes_back(project: Project, pod: TestPod, way: relay.Relay) -> None:
    controller = started(project, pod, way)
    lines = Lines(controller)
    wait_for((pod.root / SNAPSHOT).exists, "the first snapshot")
    way.freeze()
    frozen = time.monotonic()
    wait_for(lambda: lines.first("lost contact"), f"the loss is noticed: {lines.text()}", 70)
    assert (lines.first("lost contact") or 0) - frozen < 60
    way.thaw()
    wait_for(lambda: lines.first("in contact with"), f"contact again: {lines.text()}", 60)
    assert controller.wait(150) == 0, lines.text()
    log = (pod.root / "runs/toy-train.log").read_text()
    assert log.count("trained") == 1
    assert "Traceback" not in lines.text()
    assert len(set(re.findall(r'"segment": (\d+)', (pod.root / "artifacts/toy/metrics.jsonl").read_text()))) == 1


def test_a_link_that_never_comes_back(project: Project, pod: TestPod, way: relay.Relay) -> None:
    controller = started(project, pod, way, "--give-up-after", "2s", "--max-hours", str(20 / 3600))
    lines = Lines(controller)
    wait_for((pod.root / SNAPSHOT).exists, "the first snapshot")
    way.freeze()
    assert controller.wait(170) == 6, lines.text()
    assert "may go on there and cost money" in lines.text()
    assert "Traceback" not in lines.text()


def test_what_the_library_logs_is_not_shown() -> None:
    code = "import logging, remote_runner.ssh; logging.getLogger('paramiko.transport').error('Exception (client)')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""

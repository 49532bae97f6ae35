"""A data set: fetched on the pod when it is missing, left alone when it is there, never on the way."""

from __future__ import annotations

import json

from pods import TestPod
from projects import Project

MAIN = """
import pathlib
out = pathlib.Path("out/toy"); out.mkdir(parents=True, exist_ok=True)
(out / "n").write_text(str(len(pathlib.Path("corpus/text").read_text())))
"""


def test_it_is_fetched_once_and_stays_there(project: Project, pod: TestPod) -> None:
    (project.root / "main.py").write_text(MAIN)
    (project.root / "remote-run.toml").write_text(
        'command = "python main.py"\noutputs = ["out/{name}"]\n'
        'data = [{ path = "corpus", min_gb = 0.00001, fetch = "echo fetching; mkdir -p corpus; '
        'head -c 20000 /dev/zero >corpus/text" }]\n'
    )
    config = project.config()
    done = project.run(project.on(pod, config))
    assert done.returncode == 0, done.stderr + done.stdout
    log = (project.root / "runs/toy-train.log").read_text()
    assert "fetching\n" in log
    assert "data: fetched in " in log
    assert "prepared there: " in done.stdout
    assert "data sets" in json.loads((project.root / "runs/toy-report.json").read_text())["setup_s"]
    assert (project.root / "out/toy/n").read_text() == "20000"
    assert not (project.root / "corpus").exists()
    again = project.run(project.on(pod, config, "--fresh"))
    assert again.returncode == 0, again.stderr
    assert "fetching\n" not in (project.root / "runs/toy-train.log").read_text()
    (pod.root / "corpus/text").write_text("cut off")
    refetched = project.run(project.on(pod, config, "--fresh"))
    assert refetched.returncode == 0, refetched.stderr
    assert "0.000 GB, 0.000 GB are needed; fetching" in (project.root / "runs/toy-train.log").read_text()


def test_what_can_not_be_had_starts_nothing(project: Project, pod: TestPod) -> None:
    (project.root / "main.py").write_text(MAIN)
    (project.root / "remote-run.toml").write_text(
        'command = "python main.py"\noutputs = ["out/{name}"]\ndata = [{ path = "corpus", fetch = "exit 3" }]\n'
    )
    done = project.run(project.on(pod, project.config()))
    assert done.returncode == 5, done.stdout
    assert "its fetch command ended with 3" in done.stdout

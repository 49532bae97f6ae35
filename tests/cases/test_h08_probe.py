"""H08: the guard does not find itself, nor the words of a trainer in paths and names."""

from __future__ import annotations

import json
from pathlib import Path, PurePosixPath

import pytest
from pods import TestPod
from projects import Project

from remote_runner import ssh
from remote_runner import target as targets
from remote_runner.agent import Agent
from remote_runner.hostkeys import Policy
from remote_runner.settings_keys import NCM_MATCH


@pytest.mark.parametrize(
    ("folder", "name", "config"),
    [("ncm_mlx train", "toy", "toy"), ("p", "-m ncm_mlx train".lstrip("-"), "toy"), ("p", "toy", "ncm_mlx train")],
    ids=["path", "name", "config"],
)
def test_a_run_with_the_trainers_words_in_it_starts(
    project: Project, pod: TestPod, folder: str, name: str, config: str
) -> None:
    remote = pod.home / folder
    words = ["--remote-dir", remote, "--name", name, "--detach"]
    (project.root / "remote-run.toml").write_text('[runs."*"]\ncommand = ["sh", "-c", "echo short"]\n')
    done = project.run(project.on(pod, project.config(config), *words))
    assert done.returncode == 0, done.stderr
    status = json.loads((remote / f"runs/{name}-status.json").read_text())
    supervisor = status["supervisor"]
    assert f"supervisor pid {supervisor['pid']}" in done.stderr  # read back from the pod, never "nothing to do"
    assert supervisor["start"].isdigit()


def test_twenty_looks_in_a_row_find_nothing(pod: TestPod, tmp_path: Path) -> None:
    """Each over a login of its own, from a folder that is called like a trainer's command line."""
    policy = Policy(own_file=tmp_path / "known_hosts", pin="", accept_new=True)
    endpoint = ssh.resolve(targets.parse(pod.address), policy, None, pod.key)
    root = PurePosixPath(pod.home) / "python -m ncm_mlx train"
    lease = {"controller": "test", "pid": 1, "name": "m ncm_mlx train", "config": "configs/train.json", "attempt": "a"}
    for _ in range(20):
        with ssh.connect(endpoint) as here:
            agent = Agent(here, root)
            assert agent.ask("hold", match=[NCM_MATCH], lease=lease)["running"] == []
            agent.close()

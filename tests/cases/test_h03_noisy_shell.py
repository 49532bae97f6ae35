"""The login shell talks on stdout: every run behaves as with a silent one, or stops before the job and says why."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pods import TestPod
from projects import Project

TALK = {
    "stdout": 'echo "Welcome to your pod!"\necho "GPU 0: 24576 MiB"\n',
    "json": 'echo \'{"status": "ok", "pid": 1}\'\n',
    "no newline": "printf 'hello> '\n",
    "stderr": 'echo "locale: cannot set LC_ALL" >&2\n',
    "colours": "printf '\\033[1;33mpersistent storage is /workspace\\033[0m\\n'\n",
}


@pytest.mark.parametrize("talk", TALK.values(), ids=TALK)
def test_a_talking_shell_changes_nothing(project: Project, make_pod: Callable[..., TestPod], talk: str) -> None:
    pod = make_pod(rc=talk)
    done = project.run(project.on(pod, project.config()))
    assert done.returncode == 0, done.stderr
    assert project.report()["cause"] == "done"


def test_a_shell_that_ends_the_session_is_quoted(project: Project, make_pod: Callable[..., TestPod]) -> None:
    pod = make_pod(rc='echo "no commands for you"\nexit 3\n')
    done = project.run(project.on(pod, project.config()))
    assert done.returncode == 3
    assert "no commands for you" in done.stderr
    assert "~/.bashrc" in done.stderr
    assert not pod.root.exists()

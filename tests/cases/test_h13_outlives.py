"""H13: the start returns at once, and the job outlives whatever started it."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pods import TestPod, wait_for
from projects import Project
from supervised import INIT

from remote_runner import zipapp

LINES = 40
TALKS = f"import time\nfor i in range({LINES}):\n    print('line', i, flush=True)\n    time.sleep(0.2)\n"


def talking(pod: TestPod) -> list[int]:
    return [pid for pid, argv in pod.commands().items() if "talk.py" in argv]


def finishes(pod: TestPod, root: Path) -> None:
    """It goes on, to its last line, and leaves its end for whoever comes back."""
    log = root / "runs/toy-train.log"
    lines = log.read_text().count("line ")
    assert lines < LINES - 5, "the test came too late to see anything"
    wait_for(lambda: log.read_text().count("line ") > lines, "the next line")
    status = root / "runs/toy-status.json"
    wait_for(lambda: json.loads(status.read_text())["exit"], "the end", 30)
    assert json.loads(status.read_text())["exit"]["cause"] == "done"
    assert log.read_text().count("line ") == LINES


def sessions(pod: TestPod) -> list[int]:
    """The server's processes of single connections."""
    return [pid for pid, argv in pod.commands().items() if argv[0].startswith("sshd") and "[listener]" not in argv[0]]


def stands_alone(pid: int, root: Path) -> None:
    assert os.getsid(pid) == pid
    links = {int(fd.name): str(fd.readlink()) for fd in Path(f"/proc/{pid}/fd").iterdir()}
    log = str(root / "runs/toy-train.log")
    assert {n: links[n] for n in (0, 1, 2)} == {0: "/dev/null", 1: log, 2: log}
    assert not [link for link in links.values() if link.startswith(("pipe:", "socket:", "/dev/pts"))]


@pytest.mark.parametrize("how", ["detach", "kill the controller", "kill the session"])
def test_the_job_goes_on(project: Project, pod: TestPod, how: str) -> None:
    (project.root / "talk.py").write_text(TALKS)
    (project.root / "remote-run.toml").write_text('[runs."*"]\ncommand = ["python", "talk.py"]\npause = "contract"\n')
    config = project.config()
    controller = project.start(project.on(pod, config, *(["--detach"] if how == "detach" else [])))
    pid = wait_for(lambda: talking(pod), "the job")[0]  # type: ignore[index]
    seen_s = time.monotonic()
    stands_alone(pid, pod.root)
    if how == "detach":
        out, _ = controller.communicate(timeout=10)
        assert controller.returncode == 0, out
        assert time.monotonic() - seen_s < 10, "the start does not wait for the job"
    elif how == "kill the controller":
        controller.kill()
        controller.communicate()
    else:
        for session in sessions(pod):
            os.kill(session, signal.SIGKILL)
    assert talking(pod) == [pid]
    finishes(pod, pod.root)
    if how == "kill the session":
        out, _ = controller.communicate(timeout=60)
        assert controller.returncode == 0, out
    elif how == "kill the controller":
        assert project.run(project.at("attach", pod, "toy")).returncode == 0
    wait_for(lambda: not [a for a in pod.commands().values() if "supervise" in a or "keep" in a], "nothing is left", 5)


def test_the_same_with_a_terminal(pod: TestPod) -> None:
    """The same launch, from a session that has a terminal, which is then closed hard."""
    app, root = zipapp.build(), pod.root
    (root / ".remote-run").mkdir(parents=True)
    (root / ".remote-run" / app.name).write_bytes(app.content)
    (root / "talk.py").write_text(TALKS)
    (root / "init.py").write_text(INIT)
    job = {
        "name": "toy", "attempt": "a", "config": "", "resume": False, "max_s": 60.0, "outputs": ["artifacts/toy"],
        "command": ["python", "talk.py"], "resume_command": [], "then": [], "setup": None, "env": {},
        "pause": "contract",
        "python": sys.executable,
    }  # fmt: skip
    words = [f"{root}/init.py", str(root), f"{root}/.remote-run/{app.name}", json.dumps(job)]
    command = f"PYTHONPATH={os.environ.get('PYTHONPATH', '')} {sys.executable} {shlex.join(words)}"
    log_in = ["ssh", "-tt", "-p", str(pod.port), "-i", str(pod.key), "-oStrictHostKeyChecking=no"]
    quiet = ["-oUserKnownHostsFile=/dev/null", pod.address.partition(":")[0], command]
    client = subprocess.Popen(
        [*log_in, *quiet], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        pid = wait_for(lambda: talking(pod), "the job", 20)[0]  # type: ignore[index]
    finally:
        client.kill()
        client.communicate()
    stands_alone(pid, root)
    finishes(pod, root)

"""Start the program that backs a run up from the pod itself, once its environment is there.

    controller --push--> order, credentials (mode 600), program.zip  ->  pusher ROOT (a session of its own)
        waits for the end of set-up  ->  obstore and tenacity, installed beside it where missing
        ->  exec python -m remote_runner.push ROOT

Not here: what is pushed (push.py, which does not run on a bare pod's old python; this does).
"""

from __future__ import annotations

import base64
import os
import subprocess
import sys
import time
from typing import Any, Dict, List

from remote_runner.pod import fate, files, layout
from remote_runner.pod.session import Session
from remote_runner.pod.status import read as read_status

PACKAGES = ("obstore>=0.8,<1", "tenacity>=9,<10")
_NEEDS = "import sys; assert sys.version_info >= (3, 10); import obstore, tenacity"


def start(session: Session, ask: Dict[str, Any]) -> Dict[str, Any]:
    """Take the order and go: the connection may end."""
    root = session.root
    content = base64.b64decode(ask["program"])
    files.replace(root, layout.PUSH + "/program.zip", lambda fd: files.write_all(fd, content))
    files.replace_json(root, layout.PUSH + "/order.json", ask["order"])
    secret = ask["credentials"].encode()
    files.replace(root, layout.PUSH + "/credentials.json", lambda fd: files.write_all(fd, secret), 0o600)
    os.chmod(os.path.join(root, layout.PUSH), 0o700)
    log = os.open(os.path.join(root, layout.PUSH, "log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    try:
        child = subprocess.Popen(
            [sys.executable, os.path.abspath(sys.argv[0]), "push", root],
            cwd=root,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    finally:
        os.close(log)
    return {"pid": child.pid}


def main(root: str) -> int:
    """Wait for the set-up, then become the pushing program."""
    order = files.read_json(root, layout.PUSH + "/order.json") or {}
    job = files.read_json(root, layout.JOB) or {}
    while True:
        status = read_status(root, str(order.get("name"))) or {}
        if status.get("attempt") != order.get("attempt") or fate.of(status)["fate"] != "running":
            break  # over before it began: what there is is pushed all the same
        if status.get("state") not in ("starting", "setup"):
            break
        time.sleep(0.5)
    venv = os.path.join(root, layout.VENV, "bin", "python")
    python = job.get("python") or (venv if os.path.exists(venv) else sys.executable)
    path = [os.path.join(root, layout.PUSH, "program.zip"), os.path.join(root, layout.PUSH, "packages")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    if not _has(python, env):
        _install(python, path[1])
        if not _has(python, env):
            print(f"push: {python} is older than 3.10, or has no obstore: nothing is pushed", file=sys.stderr)
            os.unlink(os.path.join(root, layout.PUSH, "credentials.json"))
            return 1
    return os.execve(python, [python, "-m", "remote_runner.push", root], env)


def _has(python: str, env: Dict[str, str]) -> bool:
    return subprocess.call([python, "-c", _NEEDS], env=env, stdin=subprocess.DEVNULL) == 0


def _install(python: str, target: str) -> None:
    argv: List[str] = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target", target]
    subprocess.call([*argv, *PACKAGES], stdin=subprocess.DEVNULL)

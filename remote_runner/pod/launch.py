"""Start the supervisor and read back that its deadline is armed; ask a running one to pause.

Its keeper is exec'd in a session of its own with all streams away from the connection, and inherits nothing
but the lock.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import Any, Dict, Optional

from remote_runner.pod import fate, files, foreign, layout, lock, prepare
from remote_runner.pod.status import read as read_status

ARMED_WITHIN_S = 20.0


def zipapp() -> str:
    """The file this code runs from."""
    return os.path.abspath(sys.argv[0])


def launch(
    root: str, job: Dict[str, Any], lock_fd: int, app: str = "", secrets: Optional[Dict[str, str]] = None
) -> Dict[str, Any]:
    """Become two: this process goes on, the new one keeps the supervisor.

    Args:
        app: the zipapp; default: the one that runs.
        secrets: variables of the workload that are written nowhere: they go through a pipe.

    Returns:
        The status as the supervisor wrote it: its pid and start, and the armed deadline.

    Raises:
        OSError: it did not come up; the reason stands in `.remote-run/supervisor.log`.
    """
    job = {**job, "zipapp": app or zipapp(), "base_python": sys.executable, "project_setup": job.get("setup")}
    job["setup"] = prepare.command(root, job)
    files.replace_json(root, layout.JOB, job)
    told, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        _become_keeper(root, lock_fd, job["zipapp"], told)
    os.close(told)
    with os.fdopen(tell, "wb") as f:
        f.write(json.dumps(secrets or {}).encode())
    lock.write_lease(root, files.read_json(root, layout.LEASE) or {}, pid)
    give_up = time.monotonic() + ARMED_WITHIN_S
    while time.monotonic() < give_up:
        status = files.read_json(root, layout.status(job["name"]))
        if isinstance(status, dict) and status.get("attempt") == job["attempt"]:
            return status
        if os.waitpid(pid, os.WNOHANG)[0]:
            break
        time.sleep(0.02)
    raise OSError(f"the supervisor did not start: {_tail(root)}")


def _become_keeper(root: str, lock_fd: int, app: str, told: int) -> None:
    try:
        os.setsid()
        log = os.open(
            os.path.join(root, layout.SUPERVISOR_LOG),
            os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW,
            0o600,
        )
        os.dup2(told, 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        for name in os.listdir("/dev/fd"):  # also the session's pipes that others left open
            if int(name) > 2 and int(name) != lock_fd:
                try:
                    os.close(int(name))
                except OSError:
                    continue
        os.set_inheritable(lock_fd, True)
        os.chdir(root)
        for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        # -S: what an image hangs into the start of its python (.pth files) is neither needed nor trusted here
        os.execv(sys.executable, [sys.executable, "-S", app, "keep", root, str(lock_fd)])
    finally:
        os._exit(127)


def _tail(root: str) -> str:
    try:
        fd = files.open_read(root, layout.SUPERVISOR_LOG)
    except OSError as e:
        return str(e)
    with os.fdopen(fd, "rb") as f:
        f.seek(max(0, os.fstat(f.fileno()).st_size - 2000))
        return f.read().decode("utf-8", "replace").strip()


def ask_supervisor(root: str, name: str, by: str, grace_s: Any) -> Dict[str, Any]:
    """Ask a run's supervisor to pause; with `grace_s`, to kill what has not paused by then.

    Returns:
        `asked`: whether there was one to ask, and the status. `cannot`: what would be lost, of a run that can't be
        asked to pause and was not to be killed.
    """
    status = read_status(root, name)
    if not isinstance(status, dict) or status.get("exit") or not fate.supervisor_lives(status):
        return {"asked": False, "status": status}
    job = files.read_json(root, layout.JOB) or {}
    if grace_s is None and job.get("pause") == "none":
        return {"asked": False, "status": status, "cannot": foreign.tell_newest(root, job) or "what it did is lost"}
    files.replace_json(root, layout.REQUEST, {"attempt": status["attempt"], "by": by, "grace_s": grace_s})
    os.kill(status["supervisor"]["pid"], signal.SIGUSR1)
    return {"asked": True, "status": status}

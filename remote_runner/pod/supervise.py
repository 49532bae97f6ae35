"""The one process that owns a workload: bounded by a deadline, pausable, and truthful about the end.

    set-up (once per hash of what it installs)  ->  command  ->  each `then` command, only after a 0

It leads a session of its own and holds the root's lock as an inherited descriptor, so it outlives the
connection that started it and the lock ends with it. The workload leads its own group: a pause goes to its
leader alone (a signal to the group kills compilers and data workers), the kill at the end to the whole tree.

Not here: when the deadline is (deadline.py), which processes exist (procs.py), its files (status.py).
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from typing import Any, Dict, List, Optional

from remote_runner.pod import deadline, files, layout, procs
from remote_runner.pod.status import Progress, Status, utc

PAUSED = 75
_CAUSES = {65: "non-finite", 74: "cannot-save", 78: "refused"}
_PAUSE_SIGNALS = (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Supervisor:
    """One attempt, from the armed deadline to the exit record."""

    def __init__(self, root: str, job: Dict[str, Any]) -> None:
        self.root, self.job, self.name = root, job, str(job["name"])
        self.progress = Progress(os.path.join(root, layout.metrics_file(job["outputs"])))
        self.deadline = deadline.arm(float(job["max_s"]))
        self.pause_cause = ""  # "" | "paused" | "deadline"
        self.pause_until: Optional[float] = None  # steady seconds; then the tree is killed
        self.killed: Dict[str, Any] = {}  # why we killed, with figures
        self._grace_s = 0.0
        self._nagged_s = 0.0
        self._checked_s = 0.0
        self._signalled: List[int] = []
        self._wake, wake_in = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(wake_in, False)
        signal.set_wakeup_fd(wake_in, warn_on_full_buffer=False)
        for number in _PAUSE_SIGNALS:
            signal.signal(number, lambda signum, _frame: self._signalled.append(signum))
        signal.signal(signal.SIGCHLD, lambda *_: None)  # only wakes us
        self.status = Status(root, self.name, **self._first_status())

    def _first_status(self) -> Dict[str, Any]:
        while self.progress.read():
            pass
        before = files.read_json(self.root, layout.status(self.name)) or {}
        segments = max(self.progress.segment, before.get("segment") or 0) if self.job["resume"] else 0
        reserve_s = self.deadline.reserve_s(self.progress.longest_save_s)
        return {
            "attempt": self.job["attempt"],
            "segment": segments + 1,
            "state": "starting",
            "supervisor": {"pid": os.getpid(), "start": procs.start_ticks(os.getpid())},
            "pid": None,
            "started_unix_s": time.time(),
            "deadline": {
                "unix_s": self.deadline.at_unix_s,
                "at": utc(self.deadline.at_unix_s),
                "pause_unix_s": self.deadline.at_unix_s - reserve_s,
                "max_s": self.deadline.max_s,
            },
            "exit": None,
        }

    # --- the life -----------------------------------------------------------

    def run(self) -> None:
        self.status.update()
        self.status.event("armed", attempt=self.job["attempt"], deadline=utc(self.deadline.at_unix_s))
        self._remove_pause_file()
        ended = self._setup()
        if ended is None:
            ended = self._commands()
        self._remove_pause_file()
        self.progress.read()
        ended["ended_unix_s"] = time.time()
        self.status.event("ended", **ended)
        self.status.update(state="ended", exit=ended, progress=self.progress.last, pid=None)

    def _setup(self) -> Optional[Dict[str, Any]]:
        if not self.job.get("setup"):
            return None
        ended = self._execute("setup", self.job["setup"])
        if ended["cause"] == "done":
            return None
        if ended["cause"] in ("failed", "killed"):
            ended["cause"] = "setup"
        return ended

    def _commands(self) -> Dict[str, Any]:
        ended: Dict[str, Any] = {}
        for argv in [self.job["command"], *self.job["then"]]:
            ended = self._execute("running", argv)
            if ended["cause"] != "done":
                break
            if self.pause_cause:  # it ended well before it saw the pause; the rest waits for a resume
                if argv is not ([self.job["command"], *self.job["then"]])[-1]:
                    ended = {**ended, "cause": self.pause_cause, "evidence": "stopped between two commands"}
                break
        return ended

    def _execute(self, state: str, argv: List[str]) -> Dict[str, Any]:
        """Run one program to its end; what comes back is the exit record."""
        if self.pause_cause:
            return {"cause": self.pause_cause, "code": None, "signal": None, "evidence": "before its start"}
        argv = [self._python() if argv[0] in ("python", "{python}") else argv[0], *argv[1:]]
        argv = [a.replace("{python}", self._python()) for a in argv]
        log_path = os.path.join(self.root, layout.log(self.name))
        os.makedirs(os.path.dirname(log_path), exist_ok=True)
        log = os.open(log_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        segment = self.status.fields["segment"]
        files.write_all(log, f"[remote-run] {utc(time.time())} segment {segment}: {' '.join(argv)}\n".encode())
        try:
            child = subprocess.Popen(
                argv,
                cwd=self.root,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=procs.die_with_parent,
            )
        except OSError as e:
            files.write_all(log, f"[remote-run] can't start {argv[0]}: {e.strerror}\n".encode())
            return {
                "cause": "failed",
                "code": 127,
                "signal": None,
                "evidence": f"can't start {argv[0]}: {e.strerror}",
            }
        finally:
            os.close(log)
        started = procs.start_ticks(child.pid)
        self.status.update(state=state, pid=child.pid, pid_start=started, command=argv)
        self.status.event("started", state=state, pid=child.pid, command=argv)
        while child.poll() is None:
            self._watch(child.pid, state)
            self._sleep()
        procs.kill_tree(child.pid, os.getpid())
        return self._verdict(child.returncode)

    def _verdict(self, code: int) -> Dict[str, Any]:
        by_signal = -code if code < 0 else None
        ended: Dict[str, Any] = {"code": code if code >= 0 else None, "signal": by_signal, "evidence": ""}
        if code == 0:
            ended["cause"] = "done"
        elif self.killed:
            ended.update(self.killed)
        elif code == PAUSED:
            ended["cause"] = self.pause_cause or "preempted"
            ended["evidence"] = "the workload saved its state and paused" + ("" if self.pause_cause else " by itself")
        elif by_signal and self.pause_cause:
            name = signal.Signals(by_signal).name
            ended.update(cause=self.pause_cause, evidence=f"ended by {name} when asked to pause; it saved nothing more")
        elif by_signal:
            hint = " (out of memory?)" if by_signal == signal.SIGKILL else ""
            ended.update(cause="killed", evidence=f"ended by {signal.Signals(by_signal).name}{hint}")
        else:
            ended.update(cause=_CAUSES.get(code, "failed"), evidence=f"exit code {code}")
        return ended

    # --- while it runs ------------------------------------------------------

    def _watch(self, leader: int, state: str) -> None:
        now = deadline.steady()
        self._take_request(now)
        left_s = self.deadline.left_s()
        if now - self._checked_s >= 1.0:
            self._checked_s = now
            if self.progress.read():
                self.status.fields["progress"] = self.progress.last
            self._check_memory(leader)
            self.status.beat()
        reserve_s = self.deadline.reserve_s(self.progress.longest_save_s)
        if left_s <= reserve_s and not self.pause_cause:
            self._begin_pause("deadline", now, max(0.0, left_s))
        if self.pause_cause and now - self._nagged_s >= 1.0:
            self._nag(leader, now, state)
        if left_s <= 0:
            self._kill(
                leader,
                "deadline",
                f"still running at the deadline, {self.deadline.max_s:.0f} s after the start",
            )
        elif self.pause_until is not None and now >= self.pause_until:
            self._kill(leader, self.pause_cause, f"no pause within {self._grace_s:.0f} s")

    def _take_request(self, now: float) -> None:
        if not self._signalled:
            return
        self._signalled.clear()
        request = files.read_json(self.root, layout.REQUEST) or {}
        mine = request.get("attempt") == self.job["attempt"]
        grace_s = request.get("grace_s") if mine else None
        self.status.event("pause asked", by=request.get("by") if mine else "signal", grace_s=grace_s)
        if not self.pause_cause:
            self._begin_pause("paused", now, None if grace_s is None else float(grace_s))
        elif grace_s is not None:  # a stop after a pause: bounded from now on
            self._grace_s, self.pause_until = float(grace_s), now + float(grace_s)

    def _begin_pause(self, cause: str, now: float, grace_s: Optional[float]) -> None:
        self.pause_cause = cause
        self._grace_s = grace_s or 0.0
        self.pause_until = None if grace_s is None or cause == "deadline" else now + grace_s
        self._nagged_s = 0.0
        self._paused_from = now
        if self.job["pause"] == "contract":
            self._write_pause_file("")
        self.status.update(state="pausing", pause={"cause": cause, "unix_s": time.time()})
        self.status.event("pausing", cause=cause)

    def _nag(self, leader: int, now: float, state: str) -> None:
        """Repeat the pause each second: a wrapper may have swallowed the first."""
        self._nagged_s = now
        name = {"contract": "SIGUSR1", "none": ""}.get(self.job["pause"], self.job["pause"])
        if state == "setup":
            name = "SIGTERM"  # nothing to save yet
        if name:
            with contextlib.suppress(ProcessLookupError):
                os.kill(leader, getattr(signal, name))
        if self.job["pause"] == "contract" and self._grace_s and now - self._paused_from > self._grace_s / 2:
            self._write_pause_file("now")

    def _kill(self, leader: int, cause: str, evidence: str) -> None:
        if not self.killed:
            self.killed = {"cause": cause, "evidence": "killed by us: " + evidence}
            self.status.event("kill", cause=cause, evidence=evidence)
        procs.kill_tree(leader, os.getpid())

    def _check_memory(self, leader: int) -> None:
        limit_mb = self.job.get("memory_limit_mb")
        if limit_mb:
            used_mb = procs.resident_bytes([leader, *procs.children(leader)]) / 1e6
            if used_mb > limit_mb:
                self._kill(leader, "memory", f"the tree held {used_mb:.0f} MB, the limit is {limit_mb} MB")

    def _sleep(self) -> None:
        """Until a signal, a child's end, or the next thing due; at most a second."""
        left_s = self.deadline.left_s()
        due = [1.0, left_s - self.deadline.reserve_s(self.progress.longest_save_s), left_s]
        if self.pause_until is not None:
            due.append(self.pause_until - deadline.steady())
        select.select([self._wake], [], [], max(0.02, min(d for d in due if d > 0)) if left_s > 0 else 0.02)
        with contextlib.suppress(BlockingIOError):
            while os.read(self._wake, 512):
                pass

    # --- small things -------------------------------------------------------

    def _python(self) -> str:
        venv = os.path.join(self.root, layout.VENV, "bin", "python")
        return self.job.get("python") or (venv if os.path.exists(venv) else self.job["base_python"])

    def _environment(self) -> Dict[str, str]:
        env = {**os.environ, **self.job["env"]}
        env["PYTHONPATH"] = os.pathsep.join([self.job["zipapp"], *filter(None, [self.job["env"].get("PYTHONPATH")])])
        env["PYTHONUNBUFFERED"] = "1"
        env["REMOTE_RUN_ID"] = self.job["attempt"]
        env["REMOTE_RUN_SEGMENT"] = str(self.status.fields["segment"])
        env["REMOTE_RUN_PYTHON"] = self.job["base_python"]
        env["REMOTE_RUN_VENV"] = os.path.join(self.root, layout.VENV)
        return env

    def _write_pause_file(self, word: str) -> None:
        with contextlib.suppress(OSError):
            files.replace(
                self.root,
                layout.pause_file(self.job["outputs"]),
                lambda fd: files.write_all(fd, word.encode()),
                durable=False,
            )

    def _remove_pause_file(self) -> None:
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(self.root, layout.pause_file(self.job["outputs"])))


def main(root: str) -> int:
    """Supervise the job that lies in the root; the lock's descriptor is inherited and stays open."""
    procs.become_subreaper()
    job = files.read_json(root, layout.JOB)
    if not isinstance(job, dict):
        raise SystemExit(f"{root}/{layout.JOB}: no job there")
    Supervisor(root, job).run()
    return 0

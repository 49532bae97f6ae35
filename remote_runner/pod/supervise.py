"""The one process that owns a workload: bounded by a deadline, pausable, and truthful about the end.

    set-up (once per hash of what it installs)  ->  command  ->  each `then` command, only after a 0
                                                    ^      |  crashed, and `restarts` are left, and
                                                    +------+  it got further than last time

It runs below a keeper (keep.py) that outlives it, and both hold the root's lock as an inherited descriptor.
The workload leads its own group: a pause goes to its leader alone, the kill at the end to the whole tree.

Not here: when the deadline is (deadline.py), how a pause is asked (pausing.py), what a program's end means
(workload.py), memory and disk (health.py), its files (status.py).
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from typing import Any, Dict, List, Optional

from remote_runner.pod import deadline, durable, files, foreign, health, layout, pausing, procs, tree, workload
from remote_runner.pod.status import Progress, Status, utc

_PAUSE_SIGNALS = (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_RESTARTED = ("failed", "killed", "out-of-memory")
LOOK_S = 1.0


class Supervisor:
    """One attempt, from the armed deadline to the exit record."""

    def __init__(self, root: str, job: Dict[str, Any]) -> None:
        self.root, self.job, self.name = root, job, str(job["name"])
        self.progress = Progress(os.path.join(root, layout.metrics_file(job["outputs"])))
        before = files.read_json(root, layout.status(self.name)) or {}
        self.succeeds = before.get("attempt") == job["attempt"]  # the supervisor before us was killed
        self.deadline = deadline.restore(before["deadline"]) if self.succeeds else deadline.arm(float(job["max_s"]))
        self.restarts = int(before.get("restarts") or 0) if self.succeeds else 0
        self.pause: Optional[pausing.Pause] = None
        self.killed: Dict[str, Any] = {}  # why we killed, with figures
        self.disk = health.Disk(root, job["outputs"])
        self._looked_s = float("-inf")
        self._warned = False
        self._kept = True
        self._keeper = os.getppid()
        self._signalled: List[int] = []
        self._wake = self._take_signals()
        self.status = Status(root, self.name, **self._first_status(before))
        self._tell_the_past(before)

    def _take_signals(self) -> int:
        wake, wake_in = os.pipe()
        os.set_blocking(wake, False)
        os.set_blocking(wake_in, False)
        signal.set_wakeup_fd(wake_in, warn_on_full_buffer=False)
        for number in _PAUSE_SIGNALS:
            signal.signal(number, lambda signum, _frame: self._signalled.append(signum))
        signal.signal(signal.SIGCHLD, lambda *_: None)  # only wakes us
        return wake

    def _first_status(self, before: Dict[str, Any]) -> Dict[str, Any]:
        while self.progress.read():
            pass
        segments = max(self.progress.segment, before.get("segment") or 0) if self.job["resume"] or self.succeeds else 0
        return {
            "attempt": self.job["attempt"],
            "segment": segments + 1,
            "restarts": self.restarts,
            "state": "starting",
            "supervisor": {
                "pid": os.getpid(),
                "start": procs.start_ticks(os.getpid()),
                "keeper": self._keeper,
            },
            "boot": procs.boot(),
            "pid": None,
            "started_unix_s": before.get("started_unix_s") if self.succeeds else time.time(),
            "deadline": self._deadline_fields(),
            "exit": None,
        }

    def _deadline_fields(self) -> Dict[str, Any]:
        at_unix_s = self.deadline.at_unix_s()
        return {
            **self.deadline.fields(),
            "limit": self.job.get("limit", ""),
            "unix_s": at_unix_s,
            "at": utc(at_unix_s),
            "pause_unix_s": at_unix_s - self._reserve_s(),
        }

    def _reserve_s(self) -> float:
        if self.job["pause"] == "none":
            return 0.0  # nothing can be saved in it
        return self.deadline.reserve_s(self.progress.longest_save_s)

    def _tell_the_past(self, before: Dict[str, Any]) -> None:
        if self.succeeds:
            self.status.event("successor", of=before.get("supervisor"), deadline=utc(self.deadline.at_unix_s()))
        elif before and not before.get("exit"):
            self.status.event("no exit record", attempt=before.get("attempt"), boot=before.get("boot"))

    # --- the life -----------------------------------------------------------

    def run(self) -> None:
        self.status.update()
        self.status.event("armed", attempt=self.job["attempt"], deadline=utc(self.deadline.at_unix_s()))
        pausing.remove_file(self.root, self.job)
        ended = self._setup()
        if ended is None:
            ended = self._commands()
        pausing.remove_file(self.root, self.job)
        self.progress.read()
        self.finish(ended)

    def finish(self, ended: Dict[str, Any]) -> None:
        ended["ended_unix_s"] = time.time()
        if ended["cause"] != "done" and (more := foreign.tell_newest(self.root, self.job)):
            ended["evidence"] = "; ".join(filter(None, [ended["evidence"], more]))
        self.status.event("ended", **ended)
        self.status.conclude(state="ended", exit=ended, progress=self.progress.last, pid=None)

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
        ended = self._train()
        for words in self.job["then"]:
            if ended["cause"] != "done":
                break
            if self.pause is not None:  # it ended well before it saw the pause; the rest waits for a resume
                return workload.ended(self.pause.cause, "stopped between two commands")
            ended = self._execute("then", words)
        return ended

    def _train(self) -> Dict[str, Any]:
        """The command itself, resumed after a crash as often as the job allows and as long as it gets further."""
        words = self.job["resume_command"] if self.succeeds else self.job["command"]
        while True:
            began_at = durable.newest(self.root, self.job["outputs"], self.job.get("snapshots") or [])
            self.status.fields["began_at"] = began_at
            ended = self._execute("command", words)
            if self.pause is not None or ended["cause"] not in _RESTARTED or self.restarts >= self._restarts_allowed:
                return ended
            reached = durable.newest_verified(self.root, self.job["outputs"], self.job.get("snapshots") or [])
            if reached is None or (began_at is not None and reached <= began_at):
                self.status.event("not restarted", why=f"no verified snapshot beyond {began_at}", after=ended)
                return ended
            self.restarts += 1
            self.status.event("restart", number=self.restarts, at_step=reached[1], after=ended)
            self.status.update(restarts=self.restarts, segment=self.status.fields["segment"] + 1)
            words = self.job["resume_command"]

    @property
    def _restarts_allowed(self) -> int:
        return int(self.job.get("restarts") or 0)

    def _execute(self, kind: str, words: List[str]) -> Dict[str, Any]:
        """Run one program to its end; what comes back is the exit record."""
        if self.pause is not None:
            return workload.ended(self.pause.cause, "before its start")
        kills = health.oom_kills()
        try:
            words = workload.argv(self.root, self.job, words)
            child = workload.start(self.root, self.job, words, self.status.fields["segment"])
        except workload.CannotStart as e:
            return workload.ended("failed", str(e), 127)
        state, began_s = "setup" if kind == "setup" else "running", self.deadline.clocks.steady()
        self.status.update(state=state, pid=child.pid, pid_start=procs.start_ticks(child.pid), command=words)
        self.status.event("started", state=state, pid=child.pid, command=words)
        while child.poll() is None:
            self._watch(child, kind, began_s)
            self._sleep()
        self._end_tree(child.pid)
        tree.reap()
        cause = self.pause.cause if self.pause is not None else ""
        self.progress.read()
        finished = self.job["pause"] == "contract" or foreign.finished(self.root, self.job, self.progress.last)
        return workload.verdict(
            child.returncode,
            killed=self.killed,
            pause_cause=cause,
            oom=health.oom_evidence(kills),
            finished=finished,
        )

    # --- while it runs ------------------------------------------------------

    def _watch(self, child: "subprocess.Popen[bytes]", kind: str, began_s: float) -> None:
        now_s = self.deadline.clocks.steady()
        self._take_request(now_s)
        left_s = self.deadline.left_s()
        if now_s - self._looked_s >= LOOK_S:
            self._looked_s = now_s
            self._look(child.pid, now_s)
        if self.pause is None and left_s <= self._reserve_s():
            self._begin_pause("deadline", now_s, None)
        if self.pause is not None:
            self.pause.nag(kind, child.pid, now_s, now_s - began_s)
        if left_s <= 0:
            self._kill(child.pid, "deadline", f"still running at the deadline, {self.deadline.max_s:.0f} s of its time")
        elif self.pause is not None and self.pause.until_s is not None and now_s >= self.pause.until_s:
            self._kill(child.pid, self.pause.cause, f"no pause within {self.pause.grace_s:.0f} s")

    def _look(self, leader: int, now_s: float) -> None:
        """Once a second: progress, memory, disk, the clock, the keeper."""
        if self.progress.read():
            self.status.fields["progress"] = self.progress.last
        tree.reap(but=leader)
        limit_mb = self.job.get("memory_limit_mb")
        if limit_mb or self.status.due():
            used_mb = health.tree_mb(leader)
            self.status.fields["memory_mb"] = round(used_mb, 1)
            if limit_mb and used_mb > limit_mb:
                self._kill(leader, "memory", f"the tree held {used_mb:.0f} MB, the limit is {limit_mb} MB")
        self._look_at_disk(now_s)
        self._look_at_clock()
        if self._kept and os.getppid() != self._keeper:
            self._kept = False
            self.status.event("keeper gone", pid=self._keeper)
        self.status.beat()

    def _look_at_disk(self, now_s: float) -> None:
        room = self.disk.room(now_s)
        if room is None:
            return
        self.status.fields["disk_free_mb"] = round(room.free_bytes / 1e6)
        if room.verdict and not self._warned:
            self.status.event("disk", free_bytes=room.free_bytes, largest_bytes=room.largest_bytes)
            self.status.fields["warning"] = f"the disk is about to fill: {room}"
        self._warned = bool(room.verdict)
        if not room.verdict:
            self.status.fields.pop("warning", None)
        if room.verdict == "pause" and self.pause is None:
            self._begin_pause("disk", now_s, None)
            self.status.event("pausing for the disk", room=str(room))

    def _look_at_clock(self) -> None:
        """Show the deadline by the wall clock as it goes now, and tell when somebody set that."""
        shown, now = self.status.fields["deadline"], self._deadline_fields()
        step_s = now["unix_s"] - shown["unix_s"]
        if abs(step_s) > deadline.STEP_S:
            shown.update(now)
            self.status.update()
            self.status.event("clock stepped", by_s=round(step_s, 1), deadline=now["at"])
        elif abs((now["unix_s"] - now["pause_unix_s"]) - (shown["unix_s"] - shown["pause_unix_s"])) > 0.1:
            shown.update(pause_unix_s=shown["unix_s"] - self._reserve_s())  # a longer save was seen
        shown["elapsed_s"] = now["elapsed_s"]

    def _take_request(self, now_s: float) -> None:
        if not self._signalled:
            return
        self._signalled.clear()
        request = files.read_json(self.root, layout.REQUEST) or {}
        mine = request.get("attempt") == self.job["attempt"]
        grace_s = request.get("grace_s") if mine else None
        self.status.event("pause asked", by=request.get("by") if mine else "signal", grace_s=grace_s)
        if self.pause is None:
            self._begin_pause("paused", now_s, None if grace_s is None else float(grace_s))
        elif grace_s is not None and self.pause.until_s is None:
            self.pause.bound(now_s, float(grace_s))

    def _begin_pause(self, cause: str, now_s: float, grace_s: Optional[float]) -> None:
        self.pause = pausing.Pause(self.root, self.job, cause, now_s, grace_s)
        self.status.update(state="pausing", pause={"cause": cause, "unix_s": time.time()})
        self.status.event("pausing", cause=cause)

    def _kill(self, leader: int, cause: str, evidence: str) -> None:
        if not self.killed:
            self.killed = {"cause": cause, "evidence": "killed by us: " + evidence}
            self.status.event("kill", cause=cause, evidence=evidence)
        self._end_tree(leader)

    def _end_tree(self, leader: int) -> None:
        if left := tree.kill(leader, os.getpid()):
            self.status.event("not ended", pids=sorted(left), why="SIGKILL did not end them within 2 s")

    def _sleep(self) -> None:
        """Until a signal, a child's end, or the next thing due; at most a second."""
        left_s = self.deadline.left_s()
        due = [LOOK_S, left_s - self._reserve_s(), left_s]
        if self.pause is not None and self.pause.until_s is not None:
            due.append(self.pause.until_s - self.deadline.clocks.steady())
        select.select([self._wake], [], [], max(0.02, min([d for d in due if d > 0] or [0.02])))
        with contextlib.suppress(BlockingIOError):
            while os.read(self._wake, 512):
                pass


def main(root: str) -> int:
    """Supervise the job that lies in the root; the lock's descriptor is inherited and stays open."""
    tree.become_subreaper()
    job = files.read_json(root, layout.JOB)
    if not isinstance(job, dict):
        raise SystemExit(f"{root}/{layout.JOB}: no job there")
    Supervisor(root, job).run()
    return 0

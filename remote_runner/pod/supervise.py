"""The one process that owns a workload: bounded by a deadline, pausable, and truthful about the end.

    set-up (once per hash of what it installs)  ->  command  ->  each `then` command, only after a 0
                                                    ^      |  crashed, and `restarts` are left, and
                                                    +------+  it got further than last time

It runs below a keeper (keep.py) that outlives it, and both hold the root's lock as an inherited descriptor.
The workload leads its own group: a pause goes to its leader alone, the kill at the end to the whole tree.

Not here: when the deadline is (deadline.py), how a pause is asked (pausing.py), what a program's end means
(workload.py), memory, disk and clock (vitals.py), its files (status.py).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any, Dict, List, Optional

from remote_runner.pod import (
    deadline,
    durable,
    files,
    foreign,
    health,
    layout,
    noting,
    pausing,
    preserve,
    procs,
    tree,
    workload,
)
from remote_runner.pod.status import Progress, Status, utc
from remote_runner.pod.vitals import LOOK_S, Vitals
from remote_runner.pod.waking import Waking

_RESTARTED = ("failed", "killed", "out-of-memory")


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
        self.waking = Waking()
        self.status = Status(root, self.name, **self._first_status(before))
        self.vitals = Vitals(root, job, self.status, self._deadline_fields)
        self._looked_s = float("-inf")
        self._tell_the_past(before)

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
                "keeper": os.getppid(),
                "keeper_start": procs.start_ticks(os.getppid()),
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
            noting.note(self.root, self.job, self.status)
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
        self.status.update(prepared=noting.took(self.root, self.job))
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
            self.status.event("preserved", **preserve.before_recovery(self.root, self.job))
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
            child = workload.start(self.root, self.job, words, self.status.fields["segment"], self.progress.from_log)
        except workload.CannotStart as e:
            return workload.ended("failed", str(e), 127)
        state, began_s = "setup" if kind == "setup" else "running", self.deadline.clocks.steady()
        self.status.update(state=state, pid=child.pid, pid_start=procs.start_ticks(child.pid), command=words)
        self.status.event("started", state=state, pid=child.pid, command=words)
        while child.poll() is None:
            self._watch(child, kind, began_s)
            self._sleep()
        self._end_tree(child.pid)
        workload.drain(child.pid)
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
        """Once a second: progress, orphans, and all that vitals.py watches."""
        if self.progress.read():
            self.status.fields["progress"] = self.progress.last
        tree.reap(but=leader)
        demand = self.vitals.look(leader, now_s)
        if demand is not None and demand.kill:
            self._kill(leader, demand.cause, demand.evidence)
        elif demand is not None and self.pause is None:
            self._begin_pause(demand.cause, now_s, None, demand.evidence)
        self.status.beat()

    def _take_request(self, now_s: float) -> None:
        if not self.waking.asked():
            return
        request = files.read_json(self.root, layout.REQUEST) or {}
        mine = request.get("attempt") == self.job["attempt"]
        grace_s = request.get("grace_s") if mine else None
        self.status.event("pause asked", by=request.get("by") if mine else "signal", grace_s=grace_s)
        if self.pause is None:
            self._begin_pause("paused", now_s, None if grace_s is None else float(grace_s))
        elif grace_s is not None and self.pause.until_s is None:
            self.pause.bound(now_s, float(grace_s))

    def _begin_pause(self, cause: str, now_s: float, grace_s: Optional[float], why: str = "") -> None:
        self.pause = pausing.Pause(self.root, self.job, cause, now_s, grace_s)
        self.status.update(state="pausing", pause={"cause": cause, "unix_s": time.time()})
        self.status.event("pausing", cause=cause, why=why)

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
        self.waking.wait(due)


def main(root: str) -> int:
    """Supervise the job that lies in the root; the lock's descriptor is inherited and stays open."""
    tree.become_subreaper()
    job = files.read_json(root, layout.JOB)
    if not isinstance(job, dict):
        raise SystemExit(f"{root}/{layout.JOB}: no job there")
    job["secrets"] = json.loads(sys.stdin.buffer.read() or b"{}")
    Supervisor(root, job).run()
    return 0

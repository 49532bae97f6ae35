"""Start one program of a run, and say how it ended.

Both of its streams go to the run's log; it leads a session and a group of its own, holds nothing of ours and
dies with the supervisor (Linux).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from typing import Any, Callable, Dict, List

from remote_runner.pod import files, foreign, interpreter, layout, talk, tree, variables
from remote_runner.pod.status import utc

PAUSED = 75
CAUSES = {65: "non-finite", 74: "cannot-save", 78: "refused"}


class CannotStart(Exception):
    """The program is not there, or is none."""


def argv(root: str, job: Dict[str, Any], words: List[str]) -> List[str]:
    """A command with its interpreter filled in, which a leading `python` means, and the newest snapshot's path.

    Raises:
        CannotStart: the newest snapshot is to be named, and none is complete.
    """
    used = interpreter.of(root, job)
    words = [used if words[0] == "python" else words[0], *words[1:]]
    words = [word.replace("{python}", used) for word in words]
    if any("{newest}" in word for word in words):
        newest = foreign.newest_path(root, job)
        if newest is None:
            raise CannotStart("no complete snapshot to resume from: {newest} in resume_args can't be filled in")
        words = [word.replace("{newest}", newest) for word in words]
    return words


_TALKS: Dict[int, talk.Talk] = {}  # of the programs that run now, by pid


def start(
    root: str,
    job: Dict[str, Any],
    words: List[str],
    segment: int,
    tell: Callable[[talk.Row], None] = lambda _row: None,
) -> "subprocess.Popen[bytes]":
    """Start a program in the run's root.

    Args:
        tell: gets the progress that its output shows, where that is read (talk.py).

    Raises:
        CannotStart: with the reason, which stands in the run's log too.
    """
    path = os.path.join(root, layout.log(job["name"]))
    os.makedirs(os.path.dirname(path), exist_ok=True)
    log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    try:
        _say(log, f"segment {segment}: {' '.join(words)}")
        secrets = variables.private(job)
        reader = None
        if secrets or job["pause"] != "contract":
            reader = talk.Talk(os.dup(log), secrets, job.get("progress_regex") or (), tell)
        try:
            child = subprocess.Popen(
                words,
                cwd=root,
                env=variables.of_workload(root, job, segment, interpreter.of(root, job)),
                stdin=subprocess.DEVNULL,
                stdout=reader.sink if reader is not None else log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=tree.die_with_parent,
            )
        except BaseException:
            if reader is not None:
                reader.abandon()
            raise
        if reader is not None:
            reader.begin()
            _TALKS[child.pid] = reader
        return child
    except OSError as e:
        why = f"can't start {words[0]}: {e.strerror}"
        _say(log, why)
        raise CannotStart(why) from None
    finally:
        os.close(log)


def drain(pid: int) -> None:
    """After a program's end: its last words are in the log."""
    reader = _TALKS.pop(pid, None)
    if reader is not None:
        reader.finish()


def _say(log: int, text: str) -> None:
    with contextlib.suppress(OSError):  # a full disk under the log is no reason to end
        files.write_all(log, f"[remote-run] {utc(time.time())} {text}\n".encode("utf-8", "replace"))


def ended(cause: str, evidence: str, code: Any = None, by_signal: Any = None) -> Dict[str, Any]:
    """An exit record: what the run's end was, and why we say so."""
    return {"cause": cause, "code": code, "signal": by_signal, "evidence": evidence}


def signal_name(number: int) -> str:
    """SIGKILL for 9; a real-time signal has no name of its own."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def verdict(code: int, *, killed: Dict[str, Any], pause_cause: str, oom: str, finished: bool = True) -> Dict[str, Any]:
    """Tell the ends of a program apart.

    Args:
        code: as Popen gives it, minus the signal's number where one ended it.
        killed: `cause` and `evidence` when we killed it, else empty.
        pause_cause: why a pause was asked, else empty.
        oom: evidence that the kernel killed for memory meanwhile, else empty.
        finished: whether a 0 means that all was done; a foreign trainer ends with 0 after a stop as well.
    """
    number = -code if code < 0 else None
    plain = None if number else code
    if code == 0 and pause_cause and not finished:
        return ended(pause_cause, "ended with 0 after it was asked to stop, and nothing says that all was done", 0)
    if code == 0:
        return ended("done", "", 0)
    if code == PAUSED:
        by_itself = "" if pause_cause else " by itself"
        return ended(pause_cause or "preempted", "the workload saved its state and paused" + by_itself, code)
    if killed:
        return ended(killed["cause"], killed["evidence"], plain, number)
    if oom and (number == signal.SIGKILL or code == 128 + signal.SIGKILL):
        return ended("out-of-memory", oom, plain, number)
    if number:
        name = signal_name(number)
        if pause_cause:
            return ended(pause_cause, f"ended by {name} when asked to pause; it saved nothing more", None, number)
        hint = " (out of memory?)" if number == signal.SIGKILL else ""
        return ended("killed", f"ended by signal {number}, {name}{hint}", None, number)
    evidence = f"exit code {code}"
    if 128 < code < 128 + 32:
        evidence += f" (a shell says so of a child that died by signal {code - 128})"
    return ended(CAUSES.get(code, "failed"), evidence + (f"; {oom}" if oom else ""), code)

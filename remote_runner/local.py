"""An experiment on this machine: the supervisor of a pod, without the pod.

    lock, guard -> preserve what stands here -> supervisor (same zipapp, own session) -> show its log -> report

This process only watches: it passes SIGUSR1, SIGTERM and SIGINT on at once, and when it is killed or its terminal
closes, the run goes on inside its deadline.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from remote_runner import launch as launching
from remote_runner import record, resume, zipapp
from remote_runner import report as reports
from remote_runner.agent import Denied, printable
from remote_runner.errors import NotStarted
from remote_runner.guard import refusal
from remote_runner.plan import Plan
from remote_runner.pod import fate, files, follow, hold, launch, layout, preserve, trainers
from remote_runner.pod.session import Refusal
from remote_runner.record import Journal
from remote_runner.report import Report

LOOK_S = 0.2
_PASSED_ON = (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT)


def run(plan: Plan, tell: Callable[[str], None], *, keep_old: bool = True) -> Report:
    """Run an experiment here to its end.

    Args:
        keep_old: before a resume, preserve what stands in the run's places.

    Raises:
        Refused: a trainer or another job runs here. NotStarted: the supervisor did not come up.
    """
    with record.only_controller(plan.root, plan.name):
        journal = Journal(plan.root, plan.name)
        fd = _hold(plan, tell)
        try:
            source = _preserve(plan, journal, tell) if plan.options.resume and keep_old else ""
            if plan.options.fresh:
                kept = preserve.preserve(str(plan.root), plan.outputs, plan.name, resume.stamp(), move=True)
                tell(f"kept as {', '.join(kept) or 'nothing: there was none'}")
            log = plan.root / layout.log(plan.name)
            offset = log.stat().st_size if log.exists() else 0
            status = _launch(plan, fd)
        finally:
            os.close(fd)
        deadline = status["deadline"]
        tell(
            f"started: supervisor pid {status['supervisor']['pid']}, attempt {plan.attempt}, "
            f"segment {status['segment']}; deadline {deadline['at']}"
        )
        journal.event("launched", attempt=plan.attempt, deadline=deadline)
        with journal.phase("run"):
            seen = _watch(plan, offset)
        return _report(plan, journal, seen, source)


def refuse_running(plan: Plan) -> None:
    """Look before a start in the background, whose own refusal nobody would read.

    Raises:
        Refused: a trainer or another job runs here.
    """
    if (found := trainers.jobs(plan.settings.patterns)) and not plan.options.ignore_running:
        raise refusal("this machine", Denied({"reason": "running", "processes": found}))


def _hold(plan: Plan, tell: Callable[[str], None]) -> int:
    lease = {"controller": "this machine", "pid": os.getpid(), "name": plan.name, "config": plan.config}
    lease["attempt"] = plan.attempt
    try:
        taken = hold.take(str(plan.root), lease, plan.settings.patterns, plan.options.ignore_running)
    except Refusal as e:
        raise refusal("this machine", Denied(e.facts)) from None
    for line in taken["gpu"]:
        tell(f"the GPU is in use: {printable(line)}")
    if taken["died"]:
        tell(f"the run {taken['died']['name']} (attempt {taken['died']['attempt']}) died without a final status")
    return int(taken["fd"])


def _preserve(plan: Plan, journal: Journal, tell: Callable[[str], None]) -> str:
    """Keep links and copies of what the resume will go on from; the root of its newest snapshot."""
    kept = preserve.preserve(str(plan.root), plan.outputs, plan.name, resume.stamp(), move=False)
    found = [h for _path, h, _why in layout.snapshots(str(plan.root), plan.outputs) if h is not None]
    source = layout.newest(found)
    paths = [path for path, h, _why in layout.snapshots(str(plan.root), plan.outputs) if h is not None]
    journal.event("preserved", folders=kept, sha256={path: files.digest(str(plan.root), path) for path in paths})
    if kept:
        tell(f"kept as {', '.join(kept)}")
    return f"here: {source['stage']} step {source['step']}, root {source['root'][:16]}" if source else ""


# no image and no container: this machine's own python and variables
AT_HOME = {"environment": "", "inherit_pod_env": False}


def _launch(plan: Plan, fd: int) -> dict[str, Any]:
    app = zipapp.build()
    path = plan.root / layout.OWN / app.name
    if not path.exists():
        files.replace(str(plan.root), f"{layout.OWN}/{app.name}", lambda out: files.write_all(out, app.content))
    job = {**launching.job(plan), "python": plan.options.python or sys.executable, "setup": None, **AT_HOME}
    try:
        return launch.launch(str(plan.root), job, fd, str(path), plan.secrets)
    except OSError as e:
        raise NotStarted(f"the supervisor did not start: {e}", fix=f"look at {layout.SUPERVISOR_LOG}") from None


@contextlib.contextmanager
def _passing_on(plan: Plan) -> Iterator[None]:
    """Every request to pause this process is one to the supervisor, at once."""

    def pass_on(_number: int, _frame: Any) -> None:
        status = files.read_json(str(plan.root), layout.status(plan.name))
        if isinstance(status, dict) and fate.supervisor_lives(status):
            os.kill(status["supervisor"]["pid"], signal.SIGUSR1)

    before = {number: signal.signal(number, pass_on) for number in _PASSED_ON}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _watch(plan: Plan, offset: int) -> dict[str, Any]:
    """Show the log from `offset` on as it grows, to the run's end."""
    log = plan.root / layout.log(plan.name)
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    with _passing_on(plan):
        while True:
            seen = follow.look(str(plan.root), plan.name, 0)
            with log.open("rb") if log.exists() else io.BytesIO() as grown:
                grown.seek(offset)
                new = grown.read()
            offset += len(new)
            if new:
                print(printable(decoder.decode(new)), end="", flush=True)
            elif seen["fate"] != "running":
                return seen
            time.sleep(LOOK_S)


def _report(plan: Plan, journal: Journal, seen: dict[str, Any], source: str) -> Report:
    report = Report(plan.name, plan.attempt, "this machine", cause="lost", resumed_from=source)
    ended = (seen.get("status") or {}).get("exit") or {}
    report.segment = (seen.get("status") or {}).get("segment")
    report.evidence = "the supervisor is gone and left no exit record"
    if ended:
        report.cause, report.evidence = str(ended["cause"]), str(ended["evidence"])
        report.workload_code, report.workload_signal = ended["code"], ended["signal"]
    report.hardware = _hardware()
    reports.add_local_facts(report, plan.root, plan.outputs)
    report.steps_repeated = reports.repeated_steps(report.segments) if source else None
    report.phases_s = {name: round(seconds, 2) for name, seconds in journal.phases.items()}
    report.wall_s = round(time.monotonic() - journal.began_s, 2)
    report.settle()
    reports.save(report, plan.root)
    journal.event("end", cause=report.cause, exit_code=report.exit_code)
    return report


def _hardware() -> str:
    from remote_runner.pod import probe

    gpus = "; ".join(probe.gpus()) or "no GPU"
    return f"{gpus}, {os.cpu_count()} CPUs, {probe.memory_bytes() / 1e9:.0f} GB memory; {'; '.join(trainers.gpu_use())}"

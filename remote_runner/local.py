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

from remote_runner import interruption, record, resume, zipapp
from remote_runner import launch as launching
from remote_runner import report as reports
from remote_runner.agent import Denied, printable
from remote_runner.errors import NotStarted
from remote_runner.guard import HERE, refusal
from remote_runner.plan import Plan
from remote_runner.pod import fate, files, follow, foreign, hold, launch, layout, preserve, trainers
from remote_runner.pod.session import Refusal
from remote_runner.record import Journal
from remote_runner.report import Report

LOOK_S = 0.2
_PASSED_ON = (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT)


def run(plan: Plan, tell: Callable[[str], None]) -> Report:
    """Run an experiment here to its end.

    Raises:
        Refused: a trainer or another job runs here. NotStarted: the supervisor did not come up.
    """
    with record.only_controller(plan.root, plan.name):
        journal = Journal(plan.root, plan.name)
        fd = _hold(plan, tell)
        try:
            source, sha256 = _source(plan) if plan.options.resume else ("", {})
            if plan.options.resume and plan.options.preserve:
                resume.preserve_here(plan, journal, tell)
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
        return _report(plan, journal, seen, source, sha256)


def refuse_running(plan: Plan) -> None:
    """Look before a start in the background, whose own refusal nobody would read.

    Raises:
        Refused: a trainer or another job runs here.
    """
    if (found := trainers.jobs(plan.settings.patterns)) and not plan.options.ignore_running:
        raise refusal(HERE, Denied({"reason": "running", "processes": found}))


def _hold(plan: Plan, tell: Callable[[str], None]) -> int:
    lease = {"controller": HERE, "pid": os.getpid(), "name": plan.name, "config": plan.config}
    lease["attempt"] = plan.attempt
    try:
        taken = hold.take(str(plan.root), lease, plan.settings.patterns, plan.options.ignore_running)
    except Refusal as e:
        raise refusal(HERE, Denied(e.facts)) from None
    for line in taken["gpu"]:
        tell(f"the GPU is in use: {printable(line)}")
    if taken["died"]:
        tell(f"the run {taken['died']['name']} (attempt {taken['died']['attempt']}) died without a final status")
    return int(taken["fd"])


def _source(plan: Plan) -> tuple[str, dict[str, str]]:
    """What the resume will go on from, in words, and its SHA-256 by path; empty where nothing is here."""
    root, rules = str(plan.root), plan.settings.rules
    own = layout.snapshots(root, plan.outputs)
    found = [(h, path) for path, h, _why in [*own, *foreign.heads(root, plan.outputs, rules)] if h is not None]
    if not found:
        return "", {}
    head, path = max(found, key=lambda f: (f[0]["stage_index"], f[0]["step"], not f[1].endswith(layout.PREVIOUS)))
    sha256 = head["root"] if head.get("rule") else files.digest(root, path)
    return f"here: {head['stage']} step {head['step']}, root {head['root'][:16]}", {path: sha256}


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


def _report(plan: Plan, journal: Journal, seen: dict[str, Any], source: str, sha256: dict[str, str]) -> Report:
    report = Report(plan.name, plan.attempt, HERE, cause="lost", resumed_from=source, source_sha256=sha256)
    status = seen.get("status") or {}
    ended = status.get("exit") or {}
    report.segment = status.get("segment")
    report.evidence = "the supervisor is gone and left no exit record"
    if ended:
        report.cause, report.evidence = str(ended["cause"]), str(ended["evidence"])
        report.workload_code, report.workload_signal = ended["code"], ended["signal"]
    report.hardware = _hardware()
    reports.add_local_facts(report, plan.root, plan.outputs)
    interruption.take_status(report, status)
    report.steps_repeated = reports.repeated_steps(report.segments) if source else None
    report.phases_s = {name: round(seconds, 2) for name, seconds in journal.phases.items()}
    report.wall_s = round(time.monotonic() - journal.began_s, 2)
    interruption.conclude(report, plan.settings.resume_words is not None)
    reports.save(report, plan.root)
    if report.interruption is not None:
        journal.event("interruption", **report.interruption)
    journal.event("end", cause=report.cause, exit_code=report.exit_code)
    return report


def _hardware() -> str:
    from remote_runner.pod import probe

    gpus = "; ".join(probe.gpus()) or "no GPU"
    return f"{gpus}, {os.cpu_count()} CPUs, {probe.memory_bytes() / 1e9:.0f} GB memory; {'; '.join(trainers.gpu_use())}"

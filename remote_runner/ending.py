"""Follow a run to its end and bring everything home: on success, failure, pause and deadline alike.

    follow -> last backup -> download -> report

Whatever goes wrong on the way is a problem in the report, with its exit code; the rest is done all the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from remote_runner import archive, download, finiteness, follow, interruption, record, settings, ssh
from remote_runner import report as reports
from remote_runner.agent import Denied, printable
from remote_runner.errors import BackupFailed, OutOfContact, RunnerError, Unverified
from remote_runner.follow import Running
from remote_runner.record import Journal
from remote_runner.report import Report
from remote_runner.view import View


def finish(run: Running, report: Report, journal: Journal, view: View) -> Report:
    """Follow to the end, then bring everything home on success, failure, pause and deadline alike.

    Args:
        report: begun; what becomes of the run is added to it.
    """
    report.pod_end = f"{run.link.endpoint} may go on and be billed: look in the provider's console"
    status: dict[str, Any] = {}
    try:
        with journal.phase("run"):
            seen = _follow(run, view)
        status = _take_end(report, seen)
        _bring_home(run, report, journal, view)
    except OutOfContact as e:
        report.problems.append({"exit_code": e.exit_code, "message": str(e), "fix": e.fix})
    finally:
        run.link.close()
        run.backups.close()
    report.backups, report.last_backup = run.backups.made, run.backups.last.id if run.backups.last else ""
    reports.add_local_facts(report, run.root, run.outputs)
    interruption.take_status(report, status)
    report.steps_repeated = reports.repeated_steps(report.segments) if report.resumed_from else None
    report.phases_s = {k: round(v, 2) for k, v in journal.phases.items()}
    report.wall_s = round(time.monotonic() - journal.began_s, 2)
    interruption.conclude(report, _can_resume(run))
    _write_down(run, report, journal, view)
    return report


def _bring_home(run: Running, report: Report, journal: Journal, view: View) -> None:
    """The last backup and the download; an interrupt in them does not undo the run's end."""
    give_up = run.give_up_at
    try:
        with journal.phase("last backup"):
            _last_backup(run, report, give_up, view.tell)
        with journal.phase("download"):
            _download(run, report, give_up, view.tell)
            _look_for_nan(run, report)
            archive.add_environment(run.root, run.name, report.attempt)
        _let_the_pod_end(run, report, give_up)
    except KeyboardInterrupt:
        fix = f"bring the rest home: remote-run attach {run.link.endpoint} {run.name}"
        message = "interrupted while the results came home; the run is over, its files are on the pod"
        report.problems.append({"exit_code": Unverified.exit_code, "message": message, "fix": fix})


def _write_down(run: Running, report: Report, journal: Journal, view: View) -> None:
    """Report and record; where the disk here refuses them, the report is still returned and printed."""
    try:
        reports.save(report, run.root)
        _close_record(run.root, report)
        if report.interruption is not None:
            journal.event("interruption", **report.interruption)
        journal.event("end", cause=report.cause, exit_code=report.exit_code)
    except OSError as e:
        message = f"the report can't be written: {e.filename or run.root}: {e.strerror}"
        view.tell(message)
        report.problems.append({"exit_code": Unverified.exit_code, "message": message, "fix": "make room here"})
        report.settle()


def _follow(run: Running, view: View) -> dict[str, Any]:
    try:
        return follow.until_end(run, view)
    except KeyboardInterrupt:
        if run.on_interrupt != "pause":
            raise
        view.tell("pausing the run, as asked; Ctrl-C again detaches")
        run.link.close()
        ask = {"name": run.name, "by": ssh.local_user(), "grace_s": None}
        run.link.use(lambda agent: agent.ask("request", **ask), run.give_up_at)
        return follow.until_end(run, view)


def _let_the_pod_end(run: Running, report: Report, give_up: Callable[[float], float]) -> None:
    """Tell the pod what is safe, so that it may end itself; and say what becomes of its bill."""
    bad = {int(p["exit_code"]) for p in report.problems}
    safe = "download" if Unverified.exit_code not in bad else "backup" if BackupFailed.exit_code not in bad else ""
    where = run.link.endpoint
    report.pod_end = f"{where} goes on and is billed until you stop it"
    if not safe:
        return
    try:
        ask = {"name": run.name, "attempt": report.attempt, "what": safe}
        told = run.link.use(lambda agent: agent.ask("home", **ask), give_up)
    except Denied:
        return
    if told.get("action") in ("stop", "terminate"):
        report.pod_end = f"{where} can't {told['action']} itself, no provider's key is on it: stop it yourself"
        if told.get("owner"):
            report.pod_end = f"{where} will {told['action']} itself now, through {printable(str(told['owner']))}"
    elif isinstance(price := told.get("price"), (int, float)):
        report.pod_end += f": {24 * price:.2f} USD a day"


def _can_resume(run: Running) -> bool:
    try:
        return settings.load(run.root, run.name).resume_words is not None
    except RunnerError:
        return True  # broken meanwhile: a resume will say so


def _take_end(report: Report, seen: dict[str, Any]) -> dict[str, Any]:
    """The run's end, into the report; the status that told it."""
    status = seen.get("status")
    if not isinstance(status, dict):
        report.cause, report.evidence = "lost", "the run's folder on the pod is gone, and its status with it"
        return {}
    ended = status.get("exit")
    report.segment = status.get("segment")
    prepared = status.get("prepared")
    for row in prepared if isinstance(prepared, list) else []:
        if isinstance(row, list) and len(row) == 2 and isinstance(row[1], (int, float)):
            report.setup_s[printable(str(row[0]))] = float(row[1])
    if isinstance(ended, dict):
        report.cause, report.evidence = str(ended.get("cause")), str(ended.get("evidence") or "")
        report.workload_code, report.workload_signal = ended.get("code"), ended.get("signal")
    else:
        report.cause = "lost"
        restarted = seen.get("fate") == "restarted"
        why = "the pod's container was restarted" if restarted else "the supervisor on the pod was killed"
        report.evidence = f"{why}, and no exit record was left"
    return status


def _last_backup(run: Running, report: Report, give_up: Callable[[float], float], tell: Callable[[str], None]) -> None:
    try:
        run.link.use(run.backups.finish, give_up)
    except (BackupFailed, Unverified) as e:
        tell(str(e))
        report.problems.append({"exit_code": BackupFailed.exit_code, "message": str(e), "fix": e.fix})
        run.link.close()  # whatever was under way on that connection is not ours any more


def _download(run: Running, report: Report, give_up: Callable[[float], float], tell: Callable[[str], None]) -> None:
    try:
        keep = settings.load(run.root, run.name).download.keep
        price = record.price_usd_h(record.load(run.root, run.name))
        # nobody may be there to be asked, and the pod is billed meanwhile
        home = run.link.use(
            lambda agent: download.bring_home(agent, run.root, run.name, run.outputs, tell, keep, None, price), give_up
        )
        report.fetched_files, report.fetched_bytes = home.fetched, home.fetched_bytes
        report.verified_files, report.left_on_pod = len(home.manifest), [*home.left, *home.stayed]
        _add_manifest(run.root, run.name, home.manifest)
        home.require()
    except (Unverified, Denied, OSError) as e:
        fix = e.fix if isinstance(e, RunnerError) else "make room or look at the disk, then: remote-run download"
        tell(f"{e}\nfix: {fix}")
        report.problems.append({"exit_code": Unverified.exit_code, "message": str(e), "fix": fix})


def _look_for_nan(run: Running, report: Report) -> None:
    """What holds NaN or infinities: of another trainer a warning, unless finite numbers were required."""
    known = record.load(run.root, run.name)
    last = record.last_attempt(known)
    required = bool(last.get("require_finite")) and last.get("attempt") == report.attempt
    rules = known.get("snapshots") or []
    if not rules and not required:
        return  # its own snapshots were proven finite as they came
    found = finiteness.look(run.root, run.outputs, rules)
    wrong = found.not_finite + (found.unseen if required else [])
    if required and wrong:
        message = f"--require-finite: {'; '.join(found.lines())}"
        fix = "look at the losses in the log; pip install torch here, where files could not be looked at"
        report.problems.append({"exit_code": Unverified.exit_code, "message": message, "fix": fix})
    else:
        report.warnings = found.lines()


def _add_manifest(root: Path, name: str, manifest: dict[str, dict[str, Any]]) -> None:
    found = record.load(root, name)
    found["manifest"] = manifest
    record.save(root, name, found)


def _close_record(root: Path, report: Report) -> None:
    found = record.load(root, report.name)
    last = record.last_attempt(found)
    if last.get("attempt") == report.attempt and not any(
        p["exit_code"] == OutOfContact.exit_code for p in report.problems
    ):
        last["ended"] = {"unix_s": time.time(), "cause": report.cause, "exit_code": report.exit_code}
        record.save(root, report.name, found)

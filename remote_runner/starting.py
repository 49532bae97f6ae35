"""From the connection to the armed deadline; whatever fails on the way has started nothing, and says so.

    connect -> preflight -> guard -> (resume) -> upload -> launch

Not here: what comes before a connection (controller.py, plan.py), what comes after the launch (ending.py).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from remote_runner import (
    archive,
    changes,
    guard,
    launch,
    preflight,
    pulling,
    pushing,
    record,
    resume,
    retention,
    secrets,
    ssh,
    transfer,
    upload,
    vault,
)
from remote_runner import plan as plans
from remote_runner.access import Access
from remote_runner.agent import Agent
from remote_runner.durations import clock_s, show
from remote_runner.errors import NotStarted, OutOfContact
from remote_runner.follow import Running
from remote_runner.link import Link
from remote_runner.plan import Plan
from remote_runner.pod import layout, preserve
from remote_runner.program import LinkLost
from remote_runner.pulling import Direct
from remote_runner.record import Journal
from remote_runner.regular import Regular
from remote_runner.report import Report
from remote_runner.vault import Place

LAUNCH_DOUBT_S = 120.0


@dataclass(frozen=True)
class Start:
    """What all steps up to the launch share."""

    access: Access
    plan: Plan
    store: Place
    journal: Journal
    tell: Callable[[str], None]
    only_from: str
    asked: list[str] = field(default_factory=list)  # the attempt, once the pod was asked to launch it


def begin(start: Start) -> tuple[Running, Report]:
    """Connect, and go on to the armed deadline; what fails on the way leaves no connection open."""
    endpoint = start.access.endpoint(start.plan.root)
    if start.plan.options.resume:
        guard.ask_last_target(start.plan, str(endpoint), start.access.policy(start.plan.root), start.tell)
    with start.journal.phase("connect"):
        pod = ssh.connect(endpoint, start.tell)
    start.access.remember(start.plan.root)
    try:
        return _start_on(pod, start)
    except LinkLost as e:
        pod.close()
        if start.asked:
            fix = f"remote-run attach {start.access.words} {start.plan.name}"
            raise OutOfContact(f"the connection broke after the launch: {e}; the run goes on", fix=fix) from None
        raise NotStarted(f"the connection broke before the launch: {e}", fix="run the command again") from None
    except BaseException:
        pod.close()
        raise


def _start_on(pod: ssh.Pod, start: Start) -> tuple[Running, Report]:
    plan, journal, tell = start.plan, start.journal, start.tell
    with journal.phase("preflight"):
        code = upload.collect(plan)
        facts = preflight.check(pod, plan, code.size, snapshot_bytes(plan), tell)
    with journal.phase("guard"):
        agent = guard.hold(pod, plan, facts, tell)
    with journal.phase("upload"):
        winner = _settle_state(agent, start)
        if winner is not None and _was_done(plan):
            tell(f"{plan.name} was done before; its command is started again all the same, from that state")
        upload.send_code(agent, plan.root, code, tell)
    with journal.phase("launch"):
        changed = changes.look(plan, code, winner)
        changes.tell(plan, changed, tell)
        source = {} if winner is None else {"resumed_from": str(winner), "source_sha256": _digest(agent, winner)}
        if source:
            journal.event("resuming", **source)
        entry = _remember(plan, pod, facts, start.access, code, changed, source)
        last = entry["attempts"][-1]
        facts_kept = {key: last[key] for key in ("attempt", "target", "hardware")}
        about = {**facts_kept, "config": plan.config, "command": plan.start_command, "git": entry["git"]}
        archive.write(plan.root, plan.name, code.items, about, plan.secrets)
        start.asked.append(plan.attempt)
        launched_s = clock_s()
        agent, status = _launch(agent, plan, entry, tell)
    deadline = status["deadline"]
    tell(
        f"started: supervisor pid {status['supervisor']['pid']}, attempt {plan.attempt}, segment {status['segment']}; "
        f"deadline {deadline['at']} armed on the pod"
    )
    _push(agent, plan, tell)
    if plan.settings.pause == "none":
        tell('pause = "none": at its deadline it is killed, and what came after its last snapshot is lost')
    journal.event("launched", attempt=plan.attempt, deadline=deadline)
    run = Running(
        name=plan.name,
        root=plan.root,
        outputs=plan.outputs,
        link=Link(agent.pod.endpoint, agent.root, tell, agent),
        backups=_regular(plan, start.store, tell, launched_s),
        deadline_unix_s=time.time() + plan.options.max_s,
        give_up_after_s=plan.options.give_up_after_s,
        take_over=True,  # we have started it
        on_interrupt=plan.options.on_interrupt,
    )
    report = Report(plan.name, plan.attempt, str(pod.endpoint), cause="unknown")
    report.begin(entry["attempts"][-1])
    return run, report


def _launch(
    agent: Agent, plan: Plan, entry: dict[str, Any], tell: Callable[[str], None]
) -> tuple[Agent, dict[str, Any]]:
    """Launch once. Where the link breaks in the middle, the pod says whether the job was started.

    Raises:
        NotStarted: it was not. OutOfContact: nobody knows; it may have been.
    """
    try:
        return agent, launch.start(agent, plan, entry)
    except LinkLost as e:
        tell(f"the connection broke during the launch ({e}); asking the pod what became of it")
        link = Link(agent.pod.endpoint, agent.root, tell)
        give_up_at = time.time() + LAUNCH_DOUBT_S
        status = (
            link.use(lambda again: again.ask("state", name=plan.name), lambda _lost: give_up_at).get("status") or {}
        )
        if status.get("attempt") != plan.attempt:
            link.close()
            raise NotStarted("the connection broke before the launch", fix="run the command again") from None
        return link.agent(), status


def _push(agent: Agent, plan: Plan, tell: Callable[[str], None]) -> None:
    """Let the pod back itself up, where the settings say so; a run that is started goes on without it too."""
    if not plan.settings.backup.push:
        return
    every_s = _backup_every_s(plan)
    order = {
        "name": plan.name,
        "project": plan.project,
        "outputs": plan.outputs,
        "store": backup_to(plan),
        "keep": plan.settings.backup.keep,
        "every_s": every_s,
        "attempt": plan.attempt,
    }
    try:
        pid = pushing.start(agent, order)
        tell(f"the pod backs itself up every {show(every_s)} (pid {pid} there), with the store's credentials")
    except (NotStarted, LinkLost) as e:
        tell(f"the pod does not back itself up: {e}")


def _settle_state(agent: Agent, start: Start) -> resume.Winner | None:
    """Make the pod's files those of the state that the run begins with; what they replace is preserved.

    Returns:
        That state; None for a fresh start.
    """
    plan, tell = start.plan, start.tell
    there = list(transfer.listing(agent, plan.outputs, [plan.name])[0])
    if not plan.options.resume:
        if there and not plan.options.fresh:
            raise plans.outputs_exist(plan.name, "on the pod", there)
        if plan.options.fresh:  # only now: the pod has taken the run
            _keep_here(plan, tell)
            _keep_in_store(start.store, tell)
        if there:
            _keep_on_pod(agent, plan, tell)
        return None
    winner = resume.choose(agent, plan, start.store, tell, start.only_from)
    if winner.place == "store":
        resume.bring_here(plan, winner, tell)
    elif plan.options.preserve:
        resume.preserve_here(plan, start.journal, tell)
    if winner.place == "pod":
        if plan.options.preserve:
            _keep_on_pod(agent, plan, tell, move=False)
        return winner
    if there:
        _keep_on_pod(agent, plan, tell)
    if winner.on_pod:
        pulling.put_in_place(Direct(agent, plan, start.store, tell), winner.manifest, winner.on_pod)
    else:
        upload.send_run(agent, plan, tell)
    return winner


def _was_done(plan: Plan) -> bool:
    ended = record.last_attempt(record.load(plan.root, plan.name)).get("ended") or {}
    return bool(ended.get("cause") == "done")


def _keep_on_pod(agent: Agent, plan: Plan, tell: Callable[[str], None], move: bool = True) -> None:
    """Set aside there what another state replaces, or keep links and copies of what the run goes on from."""
    kept = agent.ask("preserve", outputs=plan.outputs, name=plan.name, stamp=resume.stamp(), move=move)
    tell(f"kept on the pod as {', '.join(map(str, kept.get('preserved', [])))}")


def _digest(agent: Agent, winner: resume.Winner) -> dict[str, str]:
    """SHA-256 of the snapshot that the run goes on from, as it lies on the pod now, by its path."""
    one = winner.candidate
    told = agent.ask("hash", paths=[one.path]).get("sha256") or {}
    return {one.path: str(told.get(one.path) or one.root)}  # a folder's: the digest over its files


def _keep_here(plan: Plan, tell: Callable[[str], None]) -> None:
    kept = preserve.preserve(str(plan.root), plan.outputs, plan.name, resume.stamp(), move=True)
    if kept:
        tell(f"kept here as {', '.join(kept)}")


def _keep_in_store(store: Place, tell: Callable[[str], None]) -> None:
    kept = retention.set_aside(store, resume.stamp())
    if kept:
        tell(f"{len(kept)} backups of the run before are kept aside in the store; remote-run backups lists them")


def backup_to(plan: Plan) -> str:
    """The store: as said, else as for the attempt before, else the settings'."""
    before = record.last_attempt(record.load(plan.root, plan.name)).get("backup_to") if plan.options.resume else ""
    return plan.options.backup_to or str(before or "") or plan.settings.backup.to


def _backup_every_s(plan: Plan) -> float:
    return plan.options.backup_every_s or plan.settings.backup.every


def _regular(plan: Plan, store: Place, tell: Callable[[str], None], launched_s: float) -> Regular:
    spool = vault.spool(plan.root, plan.name)
    every_s = math.inf if plan.settings.backup.push else _backup_every_s(plan)  # the last one is made from here too
    return Regular(store, spool, plan.outputs, plan.attempt, every_s, tell, launched_s)


def snapshot_bytes(plan: Plan) -> int:
    found = layout.snapshots(str(plan.root), plan.outputs)
    return sum(
        (plan.root / path).stat().st_size for path, _h, _w in found if not path.endswith(".previous.safetensors")
    )


def _remember(
    plan: Plan,
    pod: ssh.Pod,
    facts: preflight.Facts,
    access: Access,
    code: upload.Code,
    changed: changes.Changes,
    source: dict[str, Any],
) -> dict[str, Any]:
    """Write the run's record with this attempt added.

    Args:
        source: what it goes on from; empty for a fresh start.
    """
    found = record.load(plan.root, plan.name)
    attempt = {
        "attempt": plan.attempt,
        "target": str(pod.endpoint),
        "target_text": access.target,
        "user": pod.endpoint.user,
        "root": str(facts.root),
        "host_key": pod.host_key(),
        "started_unix_s": time.time(),
        "max_s": plan.options.max_s,
        "price_usd_h": plan.options.price,
        "resume": plan.options.resume,
        "backup_to": backup_to(plan),
        "backup_every_s": _backup_every_s(plan),
        "command": plan.command,
        "env": plan.env,
        "hardware": facts.hardware,
        "require_finite": plan.options.require_finite,
        **source,
        **changed.fields,
    }
    found.update(
        name=plan.name,
        project=plan.project,
        config=plan.config,
        config_text=(plan.root / plan.config).read_text(encoding="utf-8", errors="replace"),
        outputs=plan.outputs,
        snapshots=plan.settings.rules,
        git=record.git_state(plan.root),
        lineage=changed.lineage,
        code={i.path: i.sha256 for i in code.items},
        attempts=[*found.get("attempts", []), attempt],
    )
    # a difference to the commit may tell of files that are not sent
    found = dict(secrets.masked(found, plan.secrets))
    record.save(plan.root, plan.name, found)
    return found

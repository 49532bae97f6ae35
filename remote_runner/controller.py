"""The life of a run, as one sentence.

    read -> preflight -> guard -> (resume) -> upload -> launch -> follow -> last backup -> download -> report

Each verb is a module of that name; what comes after the launch is ending.py. Whatever ends the controller, the
run goes on and `attach` takes it up again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from remote_runner import ending, guard, launch, preflight, record, resume, retention, ssh, stores, upload, vault
from remote_runner import plan as plans
from remote_runner.access import Access
from remote_runner.agent import Agent
from remote_runner.errors import NotStarted
from remote_runner.follow import Running
from remote_runner.link import Link
from remote_runner.plan import Plan
from remote_runner.pod import layout, preserve
from remote_runner.record import Journal
from remote_runner.regular import Regular
from remote_runner.report import Report
from remote_runner.ssh import Endpoint, LinkLost
from remote_runner.vault import Place
from remote_runner.view import View

LAUNCH_DOUBT_S = 120.0


def run(access: Access, plan: Plan, view: View, only_from: str = "") -> Report | None:
    """Take an experiment to a pod and bring its results home.

    Returns:
        The report; None where the run was detached once its deadline was armed.

    Raises:
        RunnerError: each class with its exit code; nothing is lost on any of them.
        KeyboardInterrupt: Ctrl-C while following; the run goes on.
    """
    began = time.monotonic()
    with record.only_controller(plan.root, plan.name):
        journal = Journal(plan.root, plan.name)
        endpoint = access.endpoint(plan.root)
        store = _store(plan)
        _refuse_existing_in_store(plan, store)
        journal.event("start", attempt=plan.attempt, target=str(endpoint), resume=plan.options.resume)
        if plan.options.resume:
            resume.ask_last_target(plan, str(endpoint), access.policy(plan.root), view.tell)
        pod = _connect(endpoint, journal, view.tell)
        started = False
        try:
            agent, running, resumed_from, facts = _start(pod, plan, store, journal, view, access, only_from)
            started = True
        finally:
            if not started:
                pod.close()
        link = Link(endpoint, agent.root, view.tell, agent)
        if plan.options.detach:
            link.close()
            view.tell(f"detached; come back with: remote-run attach {access.words} {plan.name}")
            return None
        report = Report(plan.name, plan.attempt, str(endpoint), cause="unknown", resumed_from=resumed_from)
        report.hardware = facts.hardware
        return ending.finish(
            link, running, plan.root, plan.outputs, _regular(plan, store, view.tell), report, journal, view, began
        )


def _connect(endpoint: Endpoint, journal: Journal, tell: Callable[[str], None]) -> ssh.Pod:
    with journal.phase("connect"):
        return ssh.connect(endpoint, tell)


def _start(
    pod: ssh.Pod,
    plan: Plan,
    store: Place,
    journal: Journal,
    view: View,
    access: Access,
    only_from: str,
) -> tuple[Agent, Running, str, preflight.Facts]:
    """From the open connection to the armed deadline."""
    try:
        with journal.phase("preflight"):
            code = upload.collect(plan)
            facts = preflight.check(pod, plan, code.size, _snapshot_bytes(plan), view.tell)
        with journal.phase("guard"):
            agent = guard.hold(pod, plan, facts, view.tell)
        with journal.phase("upload"):
            resumed_from = _settle_state(agent, plan, store, view.tell, only_from)
            upload.send_code(agent, code, view.tell)
        with journal.phase("launch"):
            entry = _remember(plan, pod, facts, access, code)
            agent, status = _launch(agent, plan, entry, view.tell)
    except LinkLost as e:
        raise NotStarted(f"the connection broke before the launch: {e}", fix="run the command again") from None
    except KeyboardInterrupt:
        raise NotStarted("interrupted before the launch", fix="run the command again") from None
    deadline = status["deadline"]
    view.tell(
        f"started: supervisor pid {status['supervisor']['pid']}, attempt {plan.attempt}, segment {status['segment']}; "
        f"deadline {deadline['at']} armed on the pod"
    )
    journal.event("launched", attempt=plan.attempt, deadline=deadline)
    give_up_s = plan.options.give_up_after_s
    running = Running(plan.name, plan.options.max_s, time.time() + plan.options.max_s, status, give_up_s)
    return agent, running, resumed_from, facts


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
        status = link.use(lambda again: again.ask("state", name=plan.name), lambda: give_up_at).get("status") or {}
        if status.get("attempt") != plan.attempt:
            link.close()
            raise NotStarted("the connection broke before the launch", fix="run the command again") from None
        return link.agent(), status


def _settle_state(agent: Agent, plan: Plan, store: Place, tell: Callable[[str], None], only_from: str) -> str:
    """Make the pod's files those of the state that the run begins with; what they replace is preserved."""
    there = agent.ask("list", outputs=plan.outputs, names=[plan.name])["files"]
    if not plan.options.resume:
        if there and not plan.options.fresh:
            raise plans.outputs_exist(plan.name, "on the pod", [str(f.get("path")) for f in there])
        if plan.options.fresh:  # only now: the pod has taken the run
            _keep_here(plan, tell)
            _keep_in_store(store, tell)
        if there:
            _keep_on_pod(agent, plan, tell)
        return ""
    winner = resume.choose(agent, plan, store, tell, only_from)
    if winner.place == "store":
        resume.bring_here(plan, store, winner, tell)
    if winner.place != "pod":
        if there:
            _keep_on_pod(agent, plan, tell)
        upload.send_run(agent, plan, tell)
    return str(winner)


def _keep_on_pod(agent: Agent, plan: Plan, tell: Callable[[str], None]) -> None:
    kept = agent.ask("preserve", outputs=plan.outputs, name=plan.name, stamp=resume.stamp(), move=True)
    tell(f"kept on the pod as {', '.join(map(str, kept.get('preserved', [])))}")


def _keep_here(plan: Plan, tell: Callable[[str], None]) -> None:
    kept = preserve.preserve(str(plan.root), plan.outputs, plan.name, resume.stamp(), move=True)
    if kept:
        tell(f"kept here as {', '.join(kept)}")


def _keep_in_store(store: Place, tell: Callable[[str], None]) -> None:
    kept = retention.set_aside(store, resume.stamp())
    if kept:
        tell(f"{len(kept)} backups of the run before are kept aside in the store; remote-run backups lists them")


def _store(plan: Plan) -> Place:
    to = plan.options.backup_to or plan.settings.backup.to
    opened = stores.open_store(to, plan.root)
    return Place(store=opened, project=plan.project, name=plan.name, keep=plan.settings.backup.keep)


def _regular(plan: Plan, store: Place, tell: Callable[[str], None]) -> Regular:
    every_s = plan.options.backup_every_s or plan.settings.backup.every
    return Regular(store, vault.spool(plan.root, plan.name), plan.outputs, plan.attempt, every_s, tell)


def _refuse_existing_in_store(plan: Plan, store: Place) -> None:
    if not plan.options.resume and not plan.options.fresh and (found := vault.asked(store)):
        raise plans.outputs_exist(plan.name, "in the store", [m["id"] for m in found])


def _snapshot_bytes(plan: Plan) -> int:
    found = layout.snapshots(str(plan.root), plan.outputs)
    return sum(
        (plan.root / path).stat().st_size for path, _h, _w in found if not path.endswith(".previous.safetensors")
    )


def _remember(plan: Plan, pod: ssh.Pod, facts: preflight.Facts, access: Access, code: upload.Code) -> dict[str, Any]:
    """Write the run's record with this attempt added."""
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
        "resume": plan.options.resume,
        "command": plan.command,
        "env": plan.env,
        "hardware": facts.hardware,
    }
    found.update(
        name=plan.name,
        project=plan.project,
        config=plan.config,
        config_text=(plan.root / plan.config).read_text(encoding="utf-8", errors="replace"),
        outputs=plan.outputs,
        git=record.git_state(plan.root),
        code={i.path: i.sha256 for i in code.items},
        attempts=[*found.get("attempts", []), attempt],
    )
    record.save(plan.root, plan.name, found)
    return found


def dry_run(access: Access, plan: Plan, view: View) -> str:
    """All checks up to the guard; nothing changes here or on the pod.

    Returns:
        What a run would do, in one line.
    """
    code = upload.collect(plan)
    with ssh.connect(access.endpoint(plan.root), view.tell) as pod:
        facts = preflight.check(pod, plan, code.size, _snapshot_bytes(plan), view.tell)
    return (
        f"would send {len(code.items)} files ({code.size / 1e6:.2f} MB) to {facts.root} on {pod.endpoint}, "
        f"then run: {' '.join(plan.command)}"
    )

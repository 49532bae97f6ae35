"""Refuse a second job: take the root's lock on the pod before anything there changes, and look who trains.

The lock comes with a lease that says whose it is. It is held by the program on the pod from here to the job's
end; the supervisor inherits it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from remote_runner import preflight, record, ssh, zipapp
from remote_runner.agent import Agent, Denied, printable
from remote_runner.errors import PreflightFailed, Refused, RunnerError, UsageFault
from remote_runner.hostkeys import Policy
from remote_runner.plan import Plan
from remote_runner.pod import layout
from remote_runner.preflight import Facts
from remote_runner.program import LinkLost
from remote_runner.ssh import Pod
from remote_runner.target import parse

HERE = "this machine"  # where an experiment runs without a pod


def hold(pod: Pod, plan: Plan, facts: Facts, tell: Callable[[str], None]) -> Agent:
    """Start the program on the pod and let it take the lock.

    Raises:
        Refused: somebody holds it, a trainer or another job of ours runs there, or nobody can tell.
    """
    agent = Agent(pod, facts.root)
    lease = {
        "controller": ssh.local_user(),
        "pid": os.getpid(),
        "name": plan.name,
        "config": plan.config,
        "attempt": plan.attempt,
    }
    options = plan.options
    try:
        answer = agent.ask("hold", match=plan.settings.patterns, lease=lease, ignore_running=options.ignore_running)
    except Denied as e:
        agent.close()
        raise refusal(str(pod.endpoint), e) from None
    for process in answer.get("running") or []:
        tell(f"going on although this runs there, as asked: {_show(process)}")
    for line in answer.get("gpu") or []:
        tell(f"the GPU is in use there: {printable(str(line))}")
    ends = {options.on_success, options.on_failure} - {"keep"}
    if ends and not answer.get("owner"):
        tell(f"no provider's key is on the pod: it can't {' or '.join(sorted(ends))} itself, and goes on being billed")
    if isinstance(died := answer.get("died"), dict):
        tell(_died(died))
    return agent


def look(pod: Pod, plan: Plan, facts: Facts, tell: Callable[[str], None]) -> None:
    """See what `hold` would refuse for, without holding or writing anything there.

    Raises:
        Refused: as `hold`.
    """
    ask = {"lease": str(facts.root / layout.LEASE), "match": plan.settings.patterns}
    seen = preflight.answer(pod, zipapp.looking_source(), ask)
    refused = refusal(str(pod.endpoint), Denied(seen)) if seen.get("reason") else None
    if refused is None:
        tell("nothing trains there, and nobody holds the folder")
    elif seen["reason"] == "running" and plan.options.ignore_running:
        tell(f"a start would go on all the same, as asked: {refused}")
    else:
        raise refused


def _died(died: dict[str, Any]) -> str:
    """The last job there has left no exit record: say so once, when the next one takes its place."""
    why = "the pod was restarted" if died.get("fate") == "restarted" else "its supervisor was killed"
    return printable(f"the run {died.get('name')} (attempt {died.get('attempt')}) died without a final status: {why}")


def _show(process: dict[str, Any]) -> str:
    text = "pid {pid}, since {since}, user {user}: {command}"
    return printable(text.format_map({k: process.get(k, "?") for k in ("pid", "since", "user", "command")}))


def _follow(where: str, found: list[dict[str, Any]]) -> str:
    """How to look at what runs there, where it is a run of this tool."""
    runs = {(str(p["run"]), str(p.get("root"))): None for p in found if p.get("run")}
    if where == HERE:
        logs = [f"{root}/{layout.log(name)}" for name, root in runs]
        return printable(f"; its log: {', '.join(logs)}") if logs else "; no run of this tool is among it"
    words = [f"remote-run attach {where} {name} --remote-dir {root}" for name, root in runs]
    return printable(f", or follow it: {'; '.join(words)}") if words else "; no run of this tool is among it"


def ask_last_target(plan: Plan, here: str, policy: Policy, tell: Callable[[str], None]) -> None:
    """Before going on elsewhere: does the pod of the last attempt still train?

    Raises:
        Refused: it does.
        UsageFault: it does not answer, and the user has not said `--abandon`.
    """
    last = record.last_attempt(record.load(plan.root, plan.name))
    there = last.get("target")
    if not there or there == here or last.get("ended") or plan.options.abandon in (there, last.get("target_text")):
        return
    try:
        endpoint = ssh.resolve(parse(last["target_text"]), policy, last.get("user"), None)
        with ssh.connect(endpoint) as pod, Agent(pod, last["root"]) as agent:
            lives = bool(agent.ask("state", name=plan.name).get("supervisor_lives"))
    except (PreflightFailed, LinkLost, RunnerError) as e:
        raise UsageFault(
            f"the last attempt of {plan.name!r} went to {there}, which does not answer ({e}); it may still train there",
            fix=f"if that pod is gone, say so: --abandon {there}",
        ) from None
    if lives:
        raise Refused(
            f"{plan.name!r} still runs on {there}",
            fix=f"pause it first: remote-run pause {there} {plan.name}; or follow it: remote-run attach {there}",
        )
    tell(f"the last attempt, on {there}, is over")


def refusal(where: str, denied: Denied) -> Refused:
    """Why a machine is not taken, as the program there says it."""
    if denied.reason == "held":
        lease = denied.facts.get("lease") or {}
        name = printable(str(lease.get("name", "?")))
        look = f"remote-run attach {where} {name}" if where != HERE else layout.log(name)
        return Refused(
            f"{where} is held by {printable(str(lease.get('controller', 'somebody')))} (pid {lease.get('pid', '?')}) "
            f"since {printable(str(lease.get('since', '?')))} for the run {name!r}",
            fix=f"wait for its end, or look at it: {look}",
        )
    if denied.reason == "running":
        found = [p for p in denied.facts.get("processes", []) if isinstance(p, dict)]
        shown = "\n".join("  " + _show(p) for p in found)
        return Refused(
            f"{where}: a training runs there already; nothing was changed\n{shown}",
            fix=f"wait for it{_follow(where, found)}. If both shall share the machine: --ignore-running",
        )
    if denied.reason == "cannot-look":
        return Refused(
            f"{where}: can't see what runs there, so nothing is started: {printable(str(denied))}",
            fix="log in as root, or look yourself and say --ignore-running",
        )
    return Refused(f"{where}: {printable(str(denied))}", fix="check the folder and its file system")

"""`--test-deadline`: prove on a pod, with a toy workload, that its deadline fires while nobody is connected.

The same lock, supervisor and exit record as a real run, under the name `deadline-test`; two minutes by default.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from remote_runner import guard, preflight, ssh
from remote_runner.access import Access
from remote_runner.agent import Agent, Denied
from remote_runner.errors import NotStarted, UsageFault
from remote_runner.plan import Plan

NAME = "deadline-test"
TEST_S = 120.0
WITHIN_S = 2.0
_TOY = (
    "import signal, sys, time\n"
    "signal.signal(signal.SIGUSR1, lambda *_: sys.exit(75))\n"
    "print('waiting for the deadline', flush=True)\n"
    "while True: time.sleep(1)\n"
)


def run(access: Access, plan: Plan, tell: Callable[[str], None], test_s: float = TEST_S) -> str:
    """Launch the toy, disconnect, come back after its deadline.

    Returns:
        One line that says how exactly it fired.

    Raises:
        NotStarted: the toy did not start, or the deadline did not fire as it was shown.
        RunnerError: as a run's preflight and guard.
    """
    endpoint = access.endpoint(plan.root)
    plan = replace(plan, name=NAME, options=replace(plan.options, max_s=test_s, resume=False))
    outputs = [f"artifacts/{NAME}"]
    with ssh.connect(endpoint, tell) as pod:
        facts = preflight.check(pod, plan, 0, 0, tell)
        agent = guard.hold(pod, plan, facts, tell)
        job = {
            "name": NAME, "attempt": plan.attempt, "config": "", "resume": False, "max_s": test_s, "outputs": outputs,
            "command": ["python", "-c", _TOY], "resume_command": [], "then": [], "setup": None, "env": {},
            "pause": "contract", "python": plan.options.python,
        }  # fmt: skip
        try:
            shown = agent.ask("launch", job=job)["status"]["deadline"]
        except Denied as e:
            raise NotStarted(f"the toy workload did not start: {e}", fix="look at .remote-run/supervisor.log") from None
    tell(f"disconnected; the toy's deadline is {shown['at']}, its pause {test_s - _pause_s(shown):.0f} s before")
    time.sleep(test_s + 3)
    with ssh.connect(endpoint, tell) as pod, Agent(pod, facts.root) as agent:
        status = agent.ask("state", name=NAME).get("status") or {}
        agent.ask("remove", paths=[f"runs/{NAME}-{end}" for end in ("train.log", "status.json", "events.jsonl")])
    ended, pause = status.get("exit") or {}, status.get("pause") or {}
    late_s = float(pause.get("unix_s") or 0) - float(shown["pause_unix_s"])
    if ended.get("cause") != "deadline" or ended.get("code") != 75 or abs(late_s) > WITHIN_S:
        raise NotStarted(
            f"the deadline did not fire as shown: {ended or status.get('state')}, pause off by {late_s:+.1f} s",
            fix="do not leave a run alone on this pod",
        )
    return f"the deadline fired with nobody connected: pause {late_s:+.2f} s from the time shown, exit 75"


def _pause_s(shown: dict[str, float]) -> float:
    try:
        return float(shown["max_s"]) - (float(shown["unix_s"]) - float(shown["pause_unix_s"]))
    except (KeyError, TypeError, ValueError):
        raise UsageFault("the pod showed no deadline", fix="try again") from None

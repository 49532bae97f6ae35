"""Turn the held pod into a running job: send the record, start the supervisor, read its deadline back."""

from __future__ import annotations

import json
import tomllib
from typing import Any

from remote_runner import record as records
from remote_runner.agent import Agent, Denied, field, printable
from remote_runner.errors import NotStarted
from remote_runner.plan import Plan
from remote_runner.pod import layout


def job(plan: Plan) -> dict[str, Any]:
    """What the supervisor is told."""
    options, settings = plan.options, plan.settings
    requirements, editable = _of_pyproject(plan)
    own_python = bool(options.python) or not options.setup
    return {
        "name": plan.name,
        "attempt": plan.attempt,
        "config": plan.config,
        "resume": options.resume,
        "max_s": options.max_s,
        "outputs": plan.outputs,
        "command": plan.command,
        "then": [plan.words(c) for c in settings.then],
        "environment": settings.environment if options.setup else "",
        "requirements": requirements,
        "editable": editable,
        "probe": settings.probe,
        "data": [{"path": d.path, "min_bytes": int(d.min_gb * 1e9), "fetch": d.fetch} for d in settings.data],
        "progress_regex": settings.progress_regex,
        "setup": None if own_python or not settings.setup else plan.words(settings.setup),
        "env": plan.env,
        "inherit_pod_env": settings.inherit_pod_env,
        "run_id": _run_id(plan),
        "pause": settings.pause,
        "done_file": settings.done_file,
        "snapshots": settings.rules,
        "python": options.python,
        "memory_limit_mb": options.memory_limit_mb or settings.memory_limit_mb,
        "resume_command": plan.resume_command,
        "restarts": settings.restarts,
        "preserve": options.preserve,
        "limit": options.limit,
        "on_success": options.on_success,
        "on_failure": options.on_failure,
        "stop_after_s": options.stop_after_s,
        "price": options.price,
        "accept": dict.fromkeys(options.accept),
    }


def _of_pyproject(plan: Plan) -> tuple[list[str], bool]:
    """What a project's pyproject.toml depends on, and whether it is a package itself: pods may lack a TOML reader."""
    path = plan.root / "pyproject.toml"
    if not path.is_file() or (plan.root / "uv.lock").exists():
        return [], False
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    project = table.get("project") or {}
    return [str(d) for d in project.get("dependencies") or []], bool(project) and "build-system" in table


def _run_id(plan: Plan) -> str:
    """One id for all attempts that go on with each other: what a tracker outside calls the run."""
    first = plan.attempt
    for attempt in reversed(records.load(plan.root, plan.name).get("attempts") or []):
        if not plan.options.resume:
            break
        first = str(attempt.get("attempt"))
        if not attempt.get("resume"):
            break
    return f"{plan.name}-{first}"[:64]


def start(agent: Agent, plan: Plan, record: dict[str, Any]) -> dict[str, Any]:
    """Launch the job.

    Returns:
        The supervisor's first status: its pid and start, and the deadline it armed.

    Raises:
        NotStarted: it did not come up, or armed another deadline than was asked for.
    """
    _send_record(agent, plan, record)
    accept = records.last_attempt(record).get("accept") or {}
    asked = {**job(plan), "accept": accept, "lineage": record.get("lineage"), "facts": True}
    try:
        status: dict[str, Any] = field(agent.ask("launch", job=asked, secrets=plan.secrets), "status", dict)
    except Denied as e:
        raise NotStarted(f"the supervisor did not start: {e}", fix="look at .remote-run/supervisor.log there") from None
    deadline = status.get("deadline") or {}
    if status.get("attempt") != plan.attempt or deadline.get("max_s") != plan.options.max_s:
        raise NotStarted(f"the deadline read back from the pod is not the one asked for: {deadline}", fix="try again")
    return status


def _send_record(agent: Agent, plan: Plan, record: dict[str, Any]) -> None:
    import hashlib

    content = json.dumps(record, indent=1, sort_keys=True, ensure_ascii=False).encode()
    one = {
        "path": layout.run_file(plan.name, "-run.json"),
        "size": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
        "mode": 0o644,
        "mtime_ns": 0,
    }
    agent.send({"op": "puts", "files": [one], "durable": True})
    agent.send({"data": True}, content)
    code, *why = field(agent.answer(), "rows", list)[0]
    if code:
        said = printable(str(why))
        raise NotStarted(f"the run's record could not be written on the pod: {said}", fix="look at its disk")

"""What a run would do, as far as it can be told here: `remote-run check`, which `init` ends with."""

from __future__ import annotations

import shlex
from pathlib import Path

from remote_runner import code_files, upload
from remote_runner import plan as plans
from remote_runner.plan import Options


def paths(root: Path) -> list[str]:
    """The files of a project that would travel."""
    return [p for p in code_files.listed(root) if not code_files.left_out(p)]


def check(config: Path, name: str | None) -> list[str]:
    """Read all that a run reads before it connects.

    Returns:
        Lines for people.

    Raises:
        RunnerError: what a run would refuse.
    """
    plan = plans.make(config, name, Options(fresh=True))
    code = upload.collect(plan)
    settings = plan.settings
    lines = [
        f"run:      {plan.name}, in {plan.root}",
        f"start:    {shlex.join(plan.command)}",
        f"resume:   {shlex.join(plan.words(settings.resume_words or [])) or 'the same command, nothing added'}",
        f"outputs:  {', '.join(plan.outputs)}",
        f"pause:    {_pause(settings.pause)}",
        f"sent:     {len(code.items)} files, {code.size / 1e6:.2f} MB",
    ]
    if settings.secrets:
        lines.append(f"secrets:  {', '.join(settings.secrets)} (found)")
    if code.skipped:
        lines.append(f"stays:    {', '.join(code.skipped[:10])}{' …' if len(code.skipped) > 10 else ''}")
    lines.append(f"next:     remote-run HOST:PORT {plan.config} --max-hours 2 --dry-run")
    return lines


def _pause(way: str) -> str:
    if way == "none":
        return "none: it can only be killed, and what came after its last snapshot is lost then"
    return "by the contract" if way == "contract" else f"by {way}"

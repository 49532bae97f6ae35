"""What a run would do, as far as it can be told here: `remote-run check`, which `init` ends with."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

from remote_runner import code_files, upload
from remote_runner import plan as plans
from remote_runner.plan import Options
from remote_runner.pod import layout


def paths(root: Path) -> list[str]:
    """The files of a project that would travel."""
    return [p for p in code_files.listed(root) if not code_files.left_out(p)]


def not_ignored(root: Path) -> list[str]:
    """Our own folders in a project that its git would show as untracked; none without git."""
    folders = [f"{layout.OWN}/", "runs/", "backups/"]
    ask = ["git", "-C", str(root), "check-ignore", *folders]
    try:
        done = subprocess.run(ask, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return []
    return [f for f in folders if f not in done.stdout.split()] if done.returncode in (0, 1) else []


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
        f"sent:     {len(code.items)} files, {shown_size(code.size)}",
    ]
    if settings.secrets:
        lines.append(f"secrets:  {', '.join(settings.secrets)} (found)")
    if code.skipped:
        lines.append(f"stays:    {', '.join(code.skipped[:10])}{' …' if len(code.skipped) > 10 else ''}")
    lines.append(f"next:     remote-run HOST:PORT {plan.config} --max-hours 2 --dry-run")
    return lines


def shown_size(size_bytes: int) -> str:
    """For people: `2.6 kB`, `41.0 MB`."""
    return f"{size_bytes / 1e6:.1f} MB" if size_bytes >= 1e6 else f"{size_bytes / 1e3:.1f} kB"


def _pause(way: str) -> str:
    if way == "none":
        return "none: it can only be killed, and what came after its last snapshot is lost then"
    return "by the contract" if way == "contract" else f"by {way}"

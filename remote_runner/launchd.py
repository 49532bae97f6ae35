"""The same as cron.py on macOS: a launchd agent, which also runs what was missed while the machine slept.

Some folders macOS keeps from background jobs without a word, so those are refused here. Written from Apple's manual
pages and tested as far as text goes; not run on a Mac.
"""

from __future__ import annotations

import os
import plistlib
import subprocess
from pathlib import Path

from remote_runner import cron, standing
from remote_runner.errors import NotStarted, UsageFault

KEPT_FOLDERS = ("Desktop", "Documents", "Downloads", "Library/Mobile Documents", "Library/CloudStorage")


def label(name: str) -> str:
    return f"io.remote-run.backup.{name}"


def path(name: str) -> Path:
    return Path.home() / "Library/LaunchAgents" / f"{label(name)}.plist"


def plist(name: str, every_s: int) -> bytes:
    """The agent's description. Source: launchd.plist(5): StartInterval missed in sleep fires once on wake."""
    log = str(standing.folder() / f"{name}.log")
    return plistlib.dumps(
        {
            "Label": label(name),
            "ProgramArguments": cron.argv(name),
            "StartInterval": every_s,
            "RunAtLoad": False,
            "StandardOutPath": log,
            "StandardErrorPath": log,
            "ProcessType": "Background",
        }
    )


def every_s(schedule: str) -> int:
    """The interval of a schedule of the form '*/N * * * *'.

    Raises:
        UsageFault: another form: launchd has no such thing.
    """
    first, *rest = schedule.split()
    if rest == ["*"] * 4 and first.startswith("*/") and first[2:].isdecimal() and int(first[2:]) > 0:
        return 60 * int(first[2:])
    raise UsageFault(f"{schedule!r}: on macOS only every N minutes can be had", fix="write '*/15 * * * *'")


def refuse_kept_folders(one: standing.Standing, home: Path) -> None:
    """Refuse what a background job may not read or write there.

    Raises:
        UsageFault: names the folder.
    """
    for what in (one.store, one.project_root, one.identity):
        for kept in KEPT_FOLDERS:
            if what and (home / kept) in (Path(what), *Path(what).parents):
                raise UsageFault(
                    f"{what} lies in {home / kept}, which macOS keeps from background jobs",
                    fix="keep projects and stores elsewhere, in ~/work say, or back up to s3:// or sftp://",
                )


def install(one: standing.Standing, schedule: str) -> str:
    """Prove the command, then load the agent.

    Raises:
        NotStarted: the proof failed, or launchctl refused.
    """
    seconds = every_s(schedule)
    refuse_kept_folders(one, Path.home())
    cron.prove(one.name)
    path(one.name).parent.mkdir(parents=True, exist_ok=True)
    path(one.name).write_bytes(plist(one.name, seconds))
    domain = f"gui/{os.getuid()}"
    subprocess.run(["launchctl", "bootout", f"{domain}/{label(one.name)}"], capture_output=True, check=False)
    done = subprocess.run(
        ["launchctl", "bootstrap", domain, path(one.name)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise NotStarted(f"launchctl bootstrap: {done.stderr.strip()}", fix=f"look at {path(one.name)}")
    return str(path(one.name))


def remove(name: str) -> bool:
    """Unload the agent and remove its description; whether there was one."""
    there = path(name).exists()
    if there:
        path(name).unlink()
        domain = f"gui/{os.getuid()}"
        subprocess.run(["launchctl", "bootout", f"{domain}/{label(name)}"], capture_output=True, check=False)
    return there

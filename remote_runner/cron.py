"""A line in the user's crontab that backs up one run, put there once, and taken away when the run is over.

The line names the run and not its address (that is looked up), uses absolute paths alone, and writes a log. What
cron gives a job is little, so the line is proven before it is installed: the same command is run once with an
environment like cron's, where no agent answers and no variable of the shell is set.

On macOS a launchd agent takes its place (launchd.py). Not here: what the line runs (once.py).
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from remote_runner import standing
from remote_runner.errors import NotStarted, UsageFault

_FIELD = re.compile(r"(\*|\d+(-\d+)?)(/\d+)?(,(\*|\d+(-\d+)?)(/\d+)?)*\Z")
_WORDS = ("@hourly", "@daily")
PROOF_S = 1800


def line(name: str, schedule: str) -> str:
    """The crontab's line for a run.

    Raises:
        UsageFault: no schedule of cron.
    """
    if schedule not in _WORDS and (
        len(schedule.split()) != 5 or not all(_FIELD.match(word) for word in schedule.split())
    ):
        raise UsageFault(f"{schedule!r} is no schedule of cron", fix="write five fields, as in '*/15 * * * *'")
    log = standing.folder() / f"{name}.log"
    command = f"{shlex.join(argv(name))} >>{shlex.quote(str(log))} 2>&1"
    return f"{schedule} {command.replace('%', chr(92) + '%')} {_mark(name)}"  # cron reads a bare % as a line's end


def argv(name: str) -> list[str]:
    """The command by absolute paths."""
    return [sys.executable, "-m", "remote_runner.cli", "backup", name]


def _mark(name: str) -> str:
    return f"# remote-run backup {name}"


def with_line(crontab: str, name: str, wanted: str) -> str:
    """A crontab in which a run has exactly this line; whatever else stands there stays byte for byte."""
    lines = without_line(crontab, name)
    if lines and not lines.endswith("\n"):
        lines += "\n"
    return f"{lines}{wanted}\n"


def without_line(crontab: str, name: str) -> str:
    """A crontab without the run's line."""
    kept = [one for one in crontab.splitlines(keepends=True) if not one.rstrip("\n").endswith(" " + _mark(name))]
    return "".join(kept)


def install(name: str, schedule: str) -> str:
    """Prove the command as cron would run it, then put the line in.

    Returns:
        The line.

    Raises:
        NotStarted: there is no crontab command, or the proof failed: nothing was installed.
    """
    wanted = line(name, schedule)
    before = _read()
    prove(name)
    _write(with_line(before, name, wanted))
    return wanted


def remove(name: str) -> bool:
    """Take the run's line out; whether there was one."""
    if shutil.which("crontab") is None:
        return False
    before = _read()
    after = without_line(before, name)
    if after != before:
        _write(after)
    return after != before


def prove(name: str) -> None:
    """Run the command once with what cron would give it.

    Raises:
        NotStarted: it did not end well.
    """
    env = {k: os.environ[k] for k in ("HOME", "LOGNAME", "USER", "XDG_STATE_HOME") if k in os.environ}
    env.update(PATH="/usr/bin:/bin", SHELL="/bin/sh")
    done = subprocess.run(
        argv(name), cwd=Path.home(), env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        errors="replace", timeout=PROOF_S, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip()[-800:]
        raise NotStarted(
            f"run as cron would, the backup ended with {done.returncode}: {said or 'no output'}; nothing was installed",
            fix="use a key without a passphrase (--identity) and store credentials in ~/.aws/credentials: "
            "cron has no agent and none of your shell's variables",
        )


def _read() -> str:
    if shutil.which("crontab") is None:
        raise NotStarted(
            "there is no crontab command on this machine",
            fix="install cron, or use the systemd timer in provisioning/",
        )
    done = subprocess.run(["crontab", "-l"], capture_output=True, text=True, check=False)
    if done.returncode != 0 and "no crontab" not in done.stderr:
        raise NotStarted(f"crontab -l: {done.stderr.strip()}", fix="look whether cron may be used by this user")
    return done.stdout if done.returncode == 0 else ""


def _write(text: str) -> None:
    done = subprocess.run(["crontab", "-"], input=text, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise NotStarted(f"crontab: {done.stderr.strip()}", fix="look whether cron may be used by this user")

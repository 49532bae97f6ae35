"""What this machine must remember to back up a run by its name alone, from cron, with no project around.

    ~/.local/state/remote-run/backups/<name>.json      where the run is, how to log in there, which store
                                      <name>.lock      held while a backup is made
                                      <name>.log       what cron's runs said

A project that starts the run again elsewhere is asked first: its record knows the newer address.

Not here: how a backup is made (backup.py), how it is scheduled (cron.py, launchd.py).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from remote_runner import record
from remote_runner.errors import Refused, UsageFault
from remote_runner.pod import files


@dataclass(frozen=True, kw_only=True)
class Standing:
    """One run's standing order."""

    name: str
    project: str
    target: str
    user: str = ""
    identity: str = ""  # absolute
    host_key: str = ""  # SHA256:…
    pod_root: str
    outputs: list[str]
    store: str  # a URL, or an absolute folder
    keep: int
    project_root: str = ""  # absolute; empty: there is none on this machine
    away: bool = False  # the last try did not reach the pod, and that was said
    done: str = ""  # the attempt whose end is safe in the store


def folder() -> Path:
    """Where standing orders lie."""
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(base).expanduser() / "remote-run" / "backups"


def load(name: str) -> Standing | None:
    """The standing order for a run; None where there is none."""
    try:
        found = json.loads((folder() / f"{name}.json").read_text(encoding="utf-8"))
        known = {f.name for f in fields(Standing)}
        return Standing(**{k: v for k, v in found.items() if k in known})
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as e:
        raise UsageFault(
            f"{folder() / name}.json: {e}", fix=f"say it anew: remote-run backup TARGET {name} --to URL"
        ) from None


def save(one: Standing) -> None:
    folder().mkdir(parents=True, exist_ok=True, mode=0o700)
    files.replace_json(str(folder()), f"{one.name}.json", asdict(one))


def forget(name: str) -> None:
    (folder() / f"{name}.json").unlink(missing_ok=True)


def newest(one: Standing) -> Standing:
    """The order with the address that the project's record has for the run's last attempt."""
    if not one.project_root:
        return one
    last = record.last_attempt(record.load(Path(one.project_root), one.name))
    if not last.get("target_text") or last["target_text"] == one.target:
        return one
    return replace(
        one,
        target=str(last["target_text"]),
        user=str(last.get("user") or ""),
        host_key=str(last.get("host_key") or ""),
        pod_root=str(last.get("root") or one.pod_root),
    )


@contextlib.contextmanager
def only_one(name: str) -> Iterator[None]:
    """Hold the lock of a run's backups on this machine.

    Raises:
        Refused: one is being made already.
    """
    folder().mkdir(parents=True, exist_ok=True, mode=0o700)
    fd = os.open(folder() / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(fd, 32, 0).decode("ascii", "replace").strip()
            raise Refused(f"the backup before is still under way (pid {holder})", fix="") from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(fd)

"""One backup of a run, then the end: for cron, and for a second look from anywhere.

    standing order (or TARGET)  ->  connect  ->  what the pod says of the run  ->  backup  ->  over? then say so

Takes no lease: a run that goes on is not disturbed.

Not here: how it is scheduled (cron.py), what is remembered between two (standing.py).
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from remote_runner import backup, preflight, record, settings, settings_keys, ssh, standing, stores
from remote_runner import plan as plans
from remote_runner.access import Access
from remote_runner.agent import Agent, Denied
from remote_runner.backup import Backup
from remote_runner.errors import BackupFailed, OutOfContact, PreflightFailed, Unverified, UsageFault
from remote_runner.onpod import OnPod
from remote_runner.pod import files, layout
from remote_runner.program import LinkLost
from remote_runner.standing import Standing
from remote_runner.vault import Place


@dataclass(frozen=True, kw_only=True)
class Made:
    """What one run of the command did."""

    backup: Backup
    ended: bool  # the run is over, and this backup has its end


def order(access: Access, name: str, store: str, remote_dir: str, project: str, start: Path) -> Standing:
    """Everything that later backups need, asked of the pod where this machine does not know it.

    Args:
        store: a URL; empty: the settings'.
        start: the folder that the command was given in.

    Raises:
        UsageFault: the pod has no such run, or no store is named.
        PreflightFailed, OutOfContact: it can't be reached.
    """
    plans.check_name(name)
    root = settings.find_root(start.absolute())
    known = record.load(root, name)
    found = settings.load(root, name) if known else None
    last = record.last_attempt(known)
    to = store or str(last.get("backup_to") or "") or (found.backup.to if found else "")
    if not to:
        raise UsageFault("no store is named", fix="say where to: --to URL, or a folder")
    endpoint = access.endpoint(root)
    project = project or str(known.get("project") or root.name)
    try:
        with ssh.connect(endpoint) as pod:
            pod_root = remote_dir or _pod_root(pod, known, project)
            with Agent(pod, PurePosixPath(pod_root)) as agent:
                if agent.ask("state", name=name).get("status") is None:
                    there = ", ".join(str(n) for n in agent.ask("runs").get("names", []))
                    raise UsageFault(
                        f"{endpoint}:{pod_root} has no run {name!r}; there: {there or 'none'}",
                        fix="name one of them, or the folder with --remote-dir",
                    )
                outputs = known.get("outputs") or agent.ask("job")["outputs"]
                host_key = pod.host_key()
    except (LinkLost, Denied) as e:
        raise OutOfContact(f"the connection broke: {e}", fix="try again") from None
    return Standing(
        name=name,
        project=project,
        target=access.target,
        user=endpoint.user,
        identity=str(access.identity.absolute()) if access.identity else "",
        host_key=host_key,
        pod_root=pod_root,
        outputs=[str(o) for o in outputs],
        store=to if "://" in to else str((root / Path(to).expanduser()).absolute()),
        keep=found.backup.keep if found else settings_keys.Backup().keep,
        project_root=str(root) if known else "",
    )


def _pod_root(pod: ssh.Pod, known: dict[str, Any], project: str) -> str:
    last = record.last_attempt(known)
    if last.get("root") and last.get("target") == str(pod.endpoint):
        return str(last["root"])
    found = preflight.probe(pod, project, "")
    if not found.get("root") or not found.get("ours"):
        raise UsageFault(
            f"{pod.endpoint}: no runs of this tool in {found.get('root')}",
            fix="name the folder: --remote-dir DIR, or the project: --project NAME",
        )
    return str(found["root"])


def make(one: Standing) -> Made:
    """Back up a run once.

    Raises:
        Refused: the one before is still under way.
        OutOfContact: the pod does not answer.
        BackupFailed: it did not get into the store.
        PreflightFailed: the pod is another machine now, or refuses the login.
    """
    with standing.only_one(one.name):
        one = standing.newest(one)
        access = Access(
            target=one.target,
            user=one.user or None,
            identity=Path(one.identity) if one.identity else None,
            host_key=one.host_key,
        )
        home = Path(one.project_root) if one.project_root else standing.folder()
        try:
            with ssh.connect(access.endpoint(home)) as pod, Agent(pod, PurePosixPath(one.pod_root)) as agent:
                return _make(agent, one, home)
        except (LinkLost, PreflightFailed) as e:
            if isinstance(e, PreflightFailed) and not e.passing and "no answer" not in str(e):
                raise
            raise OutOfContact(f"{one.name}: no contact with {one.target}: {e}", fix="") from None


def _make(agent: Agent, one: Standing, home: Path) -> Made:
    seen = agent.ask("state", name=one.name)  # before the files: what they hold is not older than this
    status = seen.get("status") or {}
    over = bool(status.get("exit")) or not seen.get("supervisor_lives")
    store = stores.open_store(one.store, home)
    place = Place(store=store, project=one.project, name=one.name, keep=one.keep)
    spool = home / layout.OWN / "incoming" / f"{one.name}.backup-once"
    try:
        made = backup.make(OnPod(agent, one.outputs, one.name), place, spool, str(status.get("attempt", "")), None)
    except (OSError, Unverified, Denied, files.BadPath) as e:
        raise BackupFailed(f"{one.name}: the backup failed: {e}", fix=getattr(e, "fix", "") or "look at it") from e
    finally:
        store.close()
    _write_down(home, one, made)
    return Made(backup=made, ended=over)


def _write_down(home: Path, one: Standing, made: Backup) -> None:
    if one.project_root:
        record.Journal(home, one.name).event("backup", id=made.id, new_bytes=made.new_bytes, took_s=made.took_s)


def tick(name: str) -> tuple[str, int]:
    """What cron calls: one backup by the run's name.

    Returns:
        One line to print, empty when all is well or nothing new is to be said; and the exit code.

    Raises:
        UsageFault: nothing is known of that name. Other errors as `make`.
    """
    one = standing.load(name)
    if one is None:
        raise UsageFault(
            f"nothing is known here of a run {name!r}", fix=f"say where it is: remote-run backup TARGET {name} --to URL"
        )
    try:
        made = make(one)
    except OutOfContact as e:
        if one.away:
            return "", e.exit_code
        standing.save(replace(one, away=True))
        at = time.strftime("%Y-%m-%d %H:%M:%S%z")
        return f"{at} {e}; this is said once, until it answers again", e.exit_code
    if one.away:
        standing.save(replace(one, away=False))
    return ("ended" if made.ended else ""), 0

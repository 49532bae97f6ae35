"""Find a run that was started before, take it up again, bring a backup of it back."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from remote_runner import ending, preflight, rates, record, restoring, resume, retention, settings, ssh, stores, vault
from remote_runner import plan as plans
from remote_runner.access import Access
from remote_runner.agent import Agent
from remote_runner.durations import clock_s
from remote_runner.errors import OutOfContact, Refused, Unverified, UsageFault
from remote_runner.follow import Running
from remote_runner.link import Link
from remote_runner.pod import preserve
from remote_runner.program import LinkLost
from remote_runner.record import Journal
from remote_runner.regular import Regular
from remote_runner.report import Report
from remote_runner.transfer import Channels
from remote_runner.vault import Place
from remote_runner.view import View


@dataclass(frozen=True)
class Known:
    """A run as this project remembers it, or as the pod tells."""

    name: str
    root: Path  # the project here
    outputs: list[str]
    attempt: str


def find(
    access: Access,
    start: Path,
    name: str | None,
    remote_dir: str,
    measured: Callable[[float], None] = lambda _: None,
) -> tuple[Known, Agent]:
    """Connect to the pod and find a run there: by name, or the one that holds it; `measured` as for ssh.connect.

    Raises:
        UsageFault: no run there, or several and no name.
        PreflightFailed: the pod can't be reached.
    """
    root = settings.find_root(start.absolute())
    pod = ssh.connect(access.endpoint(root), measured=measured)
    access.remember(root)
    try:
        agent = Agent(pod, _remote_root(pod, root, name, remote_dir))
        there = agent.ask("runs")
        names = [str(n) for n in there.get("names", [])]
        holder = str((there.get("lease") or {}).get("name"))
        chosen = name or (holder if holder in names else "") or (names[0] if len(names) == 1 else "")
        if chosen not in names:
            raise _no_such_run(f"{pod.endpoint}:{agent.root}", chosen, names)
        plans.check_name(chosen)
        known = record.load(root, chosen)
        outputs = known.get("outputs") or agent.ask("job")["outputs"]
        status = agent.ask("state", name=chosen).get("status") or {}
        return Known(chosen, root, [str(o) for o in outputs], str(status.get("attempt", ""))), agent
    except LinkLost as e:
        pod.close()
        raise OutOfContact(f"the connection broke: {e}", fix="try again") from None
    except BaseException:
        pod.close()
        raise


def ahead(access: Access, start: Path, name: str | None) -> Channels | None:
    """Data connections to where this project has the run on record, begun before the pod was asked anything."""
    root = settings.find_root(start.absolute())
    last = record.last_attempt(record.load(root, name)) if name else {}
    where = access.endpoint(root)
    if not last.get("root") or last.get("target") != str(where):
        return None
    return Channels.ahead(where, PurePosixPath(str(last["root"])))


def _no_such_run(where: str, name: str, there: list[str]) -> UsageFault:
    if not there:
        return UsageFault(f"{where} has no runs yet", fix="start one, or name another folder: --remote-dir DIR")
    what = f"has no run {name!r}" if name else "has several runs, and none of them goes on"
    return UsageFault(f"{where} {what}; there: {', '.join(there)}", fix="name one of them")


def _remote_root(pod: ssh.Pod, root: Path, name: str | None, remote_dir: str) -> PurePosixPath:
    last = record.last_attempt(record.load(root, name)) if name else {}
    if last.get("root") and last.get("target") == str(pod.endpoint) and not remote_dir:
        return PurePosixPath(str(last["root"]))
    found = preflight.probe(pod, root.name, remote_dir)
    if not found.get("root") or not found.get("ours"):
        raise UsageFault(
            f"{pod.endpoint}: no runs of this tool in {found.get('root')}", fix="name the folder: --remote-dir DIR"
        )
    return PurePosixPath(str(found["root"]))


def attach(
    known: Known,
    agent: Agent,
    view: View,
    *,
    backup_to: str = "",
    backup_every_s: float | None = None,
    take_over: bool = False,
    on_interrupt: str = "detach",
) -> Report:
    """Take up a run that goes on or has ended, and finish it.

    Args:
        take_over: at once, though another controller follows it.
        on_interrupt: what Ctrl-C does: "detach" or "pause".

    Raises:
        RunnerError: as `controller.run`. Refused: another controller follows it.
    """
    with record.only_controller(known.root, known.name):
        journal = Journal(known.root, known.name)
        journal.event("attach", attempt=known.attempt, target=str(agent.pod.endpoint))
        seen = agent.ask("state", name=known.name)
        deadline = (seen.get("status") or {}).get("deadline") or {}
        left_s = float(deadline.get("unix_s") or 0) - float(seen.get("now_unix_s") or 0)
        last = record.last_attempt(record.load(known.root, known.name))
        every_s = backup_every_s or last.get("backup_every_s") or settings.load(known.root, known.name).backup.every
        store, spool = place(known.root, known.name, backup_to), vault.spool(known.root, known.name)
        run = Running(
            name=known.name,
            root=known.root,
            outputs=known.outputs,
            link=Link(agent.pod.endpoint, agent.root, view.tell, agent),
            # the first at once: nobody knows how long none was made
            backups=Regular(store, spool, known.outputs, known.attempt, every_s, view.tell, clock_s() - every_s),
            deadline_unix_s=time.time() + left_s,
            take_over=take_over,
            on_interrupt=on_interrupt,
        )
        report = Report(known.name, known.attempt, str(agent.pod.endpoint), cause="unknown")
        if last.get("attempt") == known.attempt:
            report.begin(last)
        return ending.finish(run, report, journal, view)


def place(start: Path, name: str, store: str) -> Place:
    """Where a run's backups lie: as said, else where its last attempt put them, else by its settings."""
    root = settings.find_root(start.absolute())
    found = settings.load(root, plans.check_name(name))
    last = record.last_attempt(record.load(root, name))
    opened = stores.open_store(store or str(last.get("backup_to") or "") or found.backup.to, root)
    return Place(store=opened, project=found.project or root.name, name=name, keep=found.backup.keep)


def restore(start: Path, name: str, store: str, backup_id: str, to: Path | None, tell: Callable[[str], None]) -> str:
    """Bring a backup back, verified; what stands in its places is preserved before it is replaced.

    Returns:
        One line that says what came back.

    Raises:
        UsageFault: no such backup. Unverified: a blob is missing or damaged; nothing was replaced.
    """
    root = settings.find_root(start.absolute())
    where = place(start, name, store)
    found = [m for m in vault.asked(where, tell) if backup_id in ("", m["id"])]
    found = found or [m for m in vault.manifests(where, aside=True) if m["id"] == backup_id]
    if not found:
        which = f"{backup_id} of {name}" if backup_id else f"of {name}"
        raise UsageFault(
            f"no backup {which} in the store; older ones than its settings keep are pruned",
            fix=f"see what there is: remote-run backups {name}; another store: --from URL",
        )
    manifest, into = found[-1], (to or root).absolute()
    outputs = list({*settings.load(root, name).outputs, *record.load(root, name).get("outputs", [])})
    if to is None and (strays := vault.strays(manifest, outputs, name)):
        raise Unverified(
            f"{manifest['id']} names {strays[0]}, which is none of this run's places; nothing was fetched",
            fix="bring it back beside the project and look: --to DIR",
        )
    with record.only_controller(root, name):
        into.mkdir(parents=True, exist_ok=True)
        rates.announce(root, "down", vault.size_of(manifest), len(manifest["files"]), 0.0, tell)
        fetched = restoring.fetch(where, manifest, restoring.incoming(into, name))
        known = record.load(into, name)
        kept = preserve.preserve(str(into), outputs, name, resume.stamp(), move=True)
        if kept:
            tell(f"kept as {', '.join(kept)}")
        restoring.put_in_place(fetched, manifest, into)
        if known:
            record.save(into, name, known)
    size = vault.size_of(manifest)
    return f"{manifest['id']}: {len(manifest['files'])} files, {size / 1e6:.2f} MB, verified, in {into}"


def backups(start: Path, name: str, store: str, check: bool, tell: Callable[[str], None]) -> list[dict[str, Any]]:
    """What the store has of a run, the furthest last; those kept aside first.

    Args:
        check: read every blob; else their sizes count.

    Raises:
        PreflightFailed: the store can't be asked.
    """
    where = place(start, name, store)
    bad: dict[str, str] = {}
    whole = vault.asked(where, bad=bad)
    aside = vault.manifests(where, aside=True, bad=bad)
    sizes = vault.blob_sizes(where)
    rows = [_unreadable(backup_id, why) for backup_id, why in sorted(bad.items())]
    for manifest in [*aside, *whole]:
        faults = vault.damaged(where, manifest) if check else vault.missing(where, manifest, sizes)
        newest = manifest.get("newest") or {}
        for fault in faults:
            tell(f"{manifest['id']}: {fault}")
        rows.append(
            {
                "id": manifest["id"],
                "made_at": manifest["made_at"],
                "stage": newest.get("stage", ""),
                "step": newest.get("step"),
                "files": len(manifest["files"]),
                "bytes": vault.size_of(manifest),
                "new_bytes": manifest.get("new_bytes") or 0,
                "aside": manifest in aside,
                "whole": not faults,
                "verdict": f"DAMAGED: {len(faults)} blobs" if faults else "verified now" if check else "verified",
            }
        )
    return rows


def _unreadable(backup_id: str, why: str) -> dict[str, Any]:
    nothing = {"made_at": "", "stage": "", "step": None, "files": 0, "bytes": 0, "new_bytes": 0, "aside": False}
    return {"id": backup_id, **nothing, "whole": False, "verdict": f"DAMAGED: its manifest can't be read: {why}"}


def prune(start: Path, name: str, store: str, keep: int | None) -> str:
    """Apply the retention of the settings, or `keep`.

    Returns:
        One line that says what went.

    Raises:
        Unverified: no backup is whole; nothing was removed. Refused: one is being made.
    """
    where = place(start, name, store)
    if not vault.asked(where) and not vault.manifests(where, aside=True):
        raise UsageFault(f"no backup of {name} in the store; nothing was removed", fix="another store: --from URL")
    gone = retention.prune(replace(where, keep=keep or where.keep), read=True)
    if gone is None:
        raise Refused("a backup of this run is being made, or a prune is under way", fix="try again in a minute")
    return f"{len(gone[0])} backups and {gone[1]} blobs removed, {len(vault.manifests(where))} backups stay"

"""Let a pod fetch a backup by itself, straight from an object store: signed addresses, no credential.

    store  --sign-->  addresses, valid for an hour  --connection-->  pod fetches, proves (pod/pull.py)
    pod can't, or got other bytes  ->  None is lost: the bytes come through this machine (restoring.py, upload.py)

An address is a secret for its hour: it is held in memory, and taken out of whatever the pod answers.

Not here: which backup it is (resume.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from remote_runner import keeping, vault
from remote_runner.agent import Agent, Denied
from remote_runner.errors import NotStarted
from remote_runner.plan import Plan
from remote_runner.pod import layout, pull
from remote_runner.vault import Place

VALID_S = 3600.0
_WHY = {
    "away": "does not reach the store",
    "refused": "is refused by the store",
    "content": "got other bytes than the backup names",
}


@dataclass
class Direct:
    """The way from one store to one pod."""

    agent: Agent
    plan: Plan
    place: Place
    tell: Callable[[str], None]
    closed: bool = False  # it failed, not through one backup's content: not tried for the next one

    def bring(self, manifest: dict[str, Any]) -> list[dict[str, Any]]:
        """Let the pod fetch and prove a backup; nothing gets its name yet.

        Returns:
            The entries of what is on the pod now; none where it must go through this machine.
        """
        entries, _stayed = wanted(self.plan, manifest)
        sizes = {str(e["sha256"]): int(e["size"]) for e in entries}
        if self.closed or not sizes:
            return []
        came = True
        while came:
            urls: list[str] = self.place.store.sign([self.place.blob(s) for s in sizes], VALID_S)
            if len(urls) != len(sizes):
                self.closed = True
                return []
            blobs = [{"sha256": s, "size": n, "url": u} for (s, n), u in zip(sizes.items(), urls, strict=True)]
            try:
                self.agent.ask("pull", blobs=blobs)
                return entries
            except Denied as e:
                # an address may have run out on the way: while bytes come, new ones are worth it
                came = e.facts.get("kind") == "refused" and bool(e.facts.get("bytes"))
                if not came:
                    self._say(e)
        return []

    def _say(self, denied: Denied) -> None:
        from remote_runner.stores.objects import unsigned

        kind = str(denied.facts.get("kind"))
        self.closed = kind != "content"
        why = _WHY.get(kind, "can't take it")
        self.tell(f"the pod {why} ({unsigned(str(denied))}); the backup goes through this machine")

    def head(self, entry: dict[str, Any]) -> dict[str, Any]:
        """What a snapshot that was brought says of itself, proven there.

        Raises:
            Denied: it does not verify.
        """
        return self.agent.ask("verify", path=pull.part_of(entry["sha256"]))


def wanted(plan: Plan, manifest: dict[str, Any]) -> tuple[list[dict[str, Any]], list[str]]:
    """What of a backup a resume needs, by the rule for what goes up (keeping.py), and what stays in the store."""
    names = [layout.run_file(plan.name, s) for s in ("-train.log", "-events.jsonl")]
    heads = [str(h["path"]) for h in vault.snapshots(manifest)]

    def ours(path: str) -> bool:
        return path in names or any(path.startswith(f"{top}/") or path == top for top in plan.outputs)

    def first(path: str) -> bool:
        return "-training." in path or any(path == h or path.startswith(f"{h}/") for h in heads)

    entries = {str(e["path"]): e for e in manifest["files"] if ours(str(e["path"]))}
    sizes = [(path, int(e["size"])) for path, e in entries.items()]
    paths = keeping.along(sizes, first, plan.options.all_outputs)
    return [entries[p] for p in paths], sorted(set(entries) - set(paths))


def put_in_place(direct: Direct, manifest: dict[str, Any], entries: list[dict[str, Any]]) -> None:
    """Give what the pod has fetched its names.

    Raises:
        NotStarted: its disk refused.
    """
    try:
        direct.agent.ask(
            "pulled",
            files=[[e["path"], e["sha256"], e["mode"]] for e in entries],
            folders=[f for f in manifest["folders"] if any(f"{f}/".startswith(f"{t}/") for t in direct.plan.outputs)],
            mtime_ns=int(manifest["unix_s"] * 1e9),
        )
    except Denied as e:
        raise NotStarted(f"the backup can't be put in place on the pod: {e}", fix="look at its disk") from None
    size = sum(int(e["size"]) for e in entries)
    direct.tell(f"run files: the pod fetched {len(entries)} from the store itself, {size / 1e6:.1f} MB")
    keeping.say_stayed(wanted(direct.plan, manifest)[1], direct.tell)

"""A run's files on its pod, seen over a connection, as a source of backups.

Not here: what is done with them (backup.py), how bytes travel (transfer/).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from remote_runner import transfer, vault
from remote_runner.agent import Agent
from remote_runner.agent import field as answer_field

HASH_AT_ONCE = 64


@dataclass(frozen=True)
class OnPod:
    """See `backup.Source`."""

    agent: Agent
    outputs: list[str]
    name: str

    def listing(self) -> tuple[dict[str, dict[str, Any]], list[str]]:
        found, folders, _others = transfer.listing(self.agent, self.outputs, [self.name])
        return found, folders

    def digests(self, paths: list[str]) -> dict[str, str]:
        found = {}
        for at in range(0, len(paths), HASH_AT_ONCE):
            part = paths[at : at + HASH_AT_ONCE]
            there = answer_field(self.agent.ask("hash", paths=part), "sha256", dict)
            found.update({p: there[p] for p in part if isinstance(there.get(p), str)})
        return found

    def foreign(self) -> dict[str, dict[str, Any]]:
        there = answer_field(self.agent.ask("snapshots", outputs=self.outputs), "snapshots", list)
        rows = [(str(s.get("path")), s.get("header")) for s in there if isinstance(s, dict)]
        return {path: head for path, head in rows if isinstance(head, dict) and vault.is_foreign(head)}

    def bring(self, paths: list[str], into: Path, limits: dict[str, int]) -> Iterator[transfer.Fetched]:
        return transfer.fetch(self.agent, paths, into, limits)

"""How to reach and trust a pod, as the command line says it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from remote_runner import ssh
from remote_runner import target as targets
from remote_runner.hostkeys import Policy
from remote_runner.pod import layout
from remote_runner.ssh import Endpoint


@dataclass(frozen=True, kw_only=True)
class Access:
    """A target and what was said about logging in there."""

    target: str
    user: str | None = None
    identity: Path | None = None
    host_key: str = ""
    accept_new_host_key: bool = False

    @classmethod
    def of(cls, target: str, given: dict[str, Any]) -> Self:
        """From the options of a command."""
        return cls(
            target=target,
            user=given["user"],
            identity=Path(given["identity"]).expanduser() if given["identity"] else None,
            host_key=given["host_key"],
            accept_new_host_key=given["accept_new_host_key"],
        )

    @property
    def words(self) -> str:
        """The target and login as they would be typed again."""
        more = ["--user", self.user] if self.user else []
        more += ["--identity", str(self.identity)] if self.identity else []
        return shlex.join([self.target, *more])

    def endpoint(self, root: Path) -> Endpoint:
        return ssh.resolve(targets.parse(self.target), self.policy(root), self.user, self.identity)

    def policy(self, root: Path) -> Policy:
        own = root / layout.OWN / "known_hosts"
        return Policy(own_file=own, pin=self.host_key, accept_new=self.accept_new_host_key)

"""How to reach and trust a pod, as the command line says it."""

from __future__ import annotations

import contextlib
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from remote_runner import ssh
from remote_runner import target as targets
from remote_runner.hostkeys import Policy
from remote_runner.pod import files, layout
from remote_runner.ssh import Endpoint

_LOGINS = f"{layout.OWN}/logins.json"  # by address: user, path of the key file; no secrets


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
        """Where to connect, with the login that was said now, or else the last time for this address."""
        target = targets.parse(self.target)
        said = files.read_json(str(root), _LOGINS) or {}
        last = said.get(str(target), {}) if isinstance(said, dict) else {}
        user = self.user or (target.user is None and last.get("user")) or None
        identity = (
            self.identity or (target.identity is None and last.get("identity") and Path(last["identity"])) or None
        )
        return ssh.resolve(target, self.policy(root), user, identity)

    def remember(self, root: Path) -> None:
        """Keep what was said about the login at this address, so that no later command must say it again."""
        target = targets.parse(self.target)
        user, identity = self.user or target.user, self.identity or target.identity
        if user or identity:
            said = files.read_json(str(root), _LOGINS)
            said = said if isinstance(said, dict) else {}
            last = said.get(str(target))
            now = {"user": user, "identity": str(identity.absolute()) if identity else None}
            # what was not said this time stays as it was: `root@` in the target says nothing of the key
            said[str(target)] = {**(last if isinstance(last, dict) else {}), **{k: v for k, v in now.items() if v}}
            with contextlib.suppress(OSError):  # a project that can't be written is none of a reader's business
                files.replace_json(str(root), _LOGINS, said)

    def policy(self, root: Path) -> Policy:
        own = root / layout.OWN / "known_hosts"
        return Policy(own_file=own, pin=self.host_key, accept_new=self.accept_new_host_key)

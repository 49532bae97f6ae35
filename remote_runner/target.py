"""How a pod is named on the command line.

`HOST:PORT`, `USER@HOST:PORT`, `[IPv6]:PORT`, an alias of ~/.ssh/config, or the `ssh … -p …` line that a
provider's console shows, pasted in quotes.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from remote_runner.errors import UsageFault


@dataclass(frozen=True, kw_only=True)
class Target:
    """What the user wrote, taken apart; None where ~/.ssh/config or a default decides."""

    text: str
    host: str
    port: int | None = None
    user: str | None = None
    identity: Path | None = None

    def __str__(self) -> str:
        return f"{show_host(self.host)}:{self.port}" if self.port is not None else self.host


def show_host(host: str) -> str:
    """A host as it stands before `:PORT`."""
    return f"[{host}]" if ":" in host else host


def parse(text: str) -> Target:
    """Take a target apart.

    Raises:
        UsageFault: no target, a port that is none, or a provider's proxy that can't run commands.
    """
    target = _from_ssh_line(text) if text.split()[:1] == ["ssh"] else _from_address(text)
    if target.host == "ssh.runpod.io" or target.host.endswith(".ssh.runpod.io"):
        raise UsageFault(
            f"{target.host} is RunPod's proxy: it opens terminals only, no commands and no files",
            fix="use the pod's direct address: expose TCP port 22 and take HOST:PORT from «SSH over exposed TCP»",
        )
    return target


def _from_address(text: str) -> Target:
    user, _, rest = text.rpartition("@")
    if rest.startswith("["):
        host, bracket, port = rest[1:].partition("]")
        if not bracket or (port and not port.startswith(":")):
            raise _not_a_target(text)
        port = port[1:]
    elif rest.count(":") > 1:
        raise UsageFault(f"{text}: an IPv6 address needs brackets", fix=f"write [{rest.rpartition(':')[0]}]:PORT")
    else:
        host, _, port = rest.partition(":")
    if not host or host.startswith("-") or any(c.isspace() or c in "/\\'\"" for c in text):
        raise _not_a_target(text)
    return Target(text=text, host=host, port=_port(port, text) if port else None, user=user or None)


def _from_ssh_line(text: str) -> Target:
    """`ssh root@1.2.3.4 -p 22022 -i ~/.ssh/id_ed25519`; options that only shape a terminal are passed over."""
    words = shlex.split(text)[1:]
    address, port, user, identity = "", None, None, None
    while words:
        word = words.pop(0)
        if word[:2] in ("-p", "-i", "-l", "-L", "-o", "-R", "-D", "-J", "-F"):
            value = word[2:] or (words.pop(0) if words else "")
            if word[:2] == "-p":
                port = _port(value, text)
            elif word[:2] == "-i":
                identity = Path(value).expanduser()
            elif word[:2] == "-l":
                user = value
            elif word[:2] in ("-J", "-F"):
                raise UsageFault(f"{word[:2]} in {text!r} is not read", fix="put it into ~/.ssh/config as a Host entry")
        elif not word.startswith("-") and not address:
            address = word
    if not address:
        raise _not_a_target(text)
    found = _from_address(address)
    return Target(text=text, host=found.host, port=port or found.port, user=found.user or user, identity=identity)


def _port(text: str, whole: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise UsageFault(f"{whole}: {text!r} is no port", fix="a port is a number from 1 to 65535: HOST:PORT")
    return int(text)


def _not_a_target(text: str) -> UsageFault:
    return UsageFault(
        f"{text!r} names no pod",
        fix="write HOST:PORT, USER@HOST:PORT, [IPv6]:PORT or an alias of ~/.ssh/config",
    )

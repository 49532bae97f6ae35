"""Is this the machine we think it is? Decided before any byte of code, data or credentials is sent.

In this order: `--host-key SHA256:…`, the project's own file, the user's and the system's known_hosts (asked
through `ssh-keygen -F`, which knows hashed names, wildcards and @-lines; paramiko's own reader drops a whole
file for one @-line). A known key that differs is always refused. An unknown one is asked about on a terminal,
refused without one, or accepted and pinned when the user said so.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from remote_runner.errors import PreflightFailed

_FOUND = re.compile(r"^# Host .* found: line (\d+)")


@dataclass(frozen=True, kw_only=True)
class Policy:
    """What the user said about host keys."""

    own_file: Path  # the project's, one line per pinned host
    pin: str = ""  # SHA256:… from --host-key
    accept_new: bool = False


@dataclass(frozen=True, kw_only=True)
class Known:
    """One key that a file has for the host."""

    kind: str
    key: str  # base64
    where: str  # file:line
    revoked: bool = False


def fingerprint(key: bytes) -> str:
    """As ssh shows it: `SHA256:` and the digest in base64 without padding."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(key).digest()).decode().rstrip("=")


def name_of(host: str, port: int) -> str:
    """The name of a host in a known_hosts file."""
    return host if port == 22 else f"[{host}]:{port}"


def known(name: str, policy: Policy) -> list[Known]:
    """All keys that the files have for a host, the project's first."""
    user_file = Path("~/.ssh/known_hosts").expanduser()
    found = list(_own(name, policy.own_file))
    for path in (user_file, Path("/etc/ssh/ssh_known_hosts")):
        if path.is_file():
            found += _keygen(name, path)
    return found


def _own(name: str, path: Path) -> Iterator[Known]:
    if not path.is_file():
        return
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        words = line.split()
        if len(words) >= 3 and words[0] == name:
            yield Known(kind=words[1], key=words[2], where=f"{path}:{number}")


def _keygen(name: str, path: Path) -> Iterator[Known]:
    try:
        done = subprocess.run(["ssh-keygen", "-F", name, "-f", path], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        yield from _own(name, path)  # no OpenSSH client here: plain entries only
        return
    number = "?"
    for line in done.stdout.splitlines():
        if found := _FOUND.match(line):
            number = found.group(1)
            continue
        words = line.split()
        revoked = words[:1] == ["@revoked"]
        if revoked:
            words = words[1:]
        if len(words) >= 3 and not words[0].startswith(("@", "#")):
            yield Known(kind=words[1], key=words[2], where=f"{path}:{number}", revoked=revoked)


def check(name: str, kind: str, key: bytes, policy: Policy) -> None:
    """Let the connection go on, or stop it.

    Args:
        name: as in a known_hosts file, `[host]:port`.
        kind: the key's type, `ssh-ed25519`.
        key: its public blob.

    Raises:
        PreflightFailed: another key than the known one, a revoked one, or an unknown one that nobody accepted.
    """
    seen = fingerprint(key)
    if policy.pin:
        if policy.pin.removeprefix("SHA256:").rstrip("=") != seen.removeprefix("SHA256:"):
            raise _changed(name, seen, policy.pin, "--host-key")
        _pin(name, kind, key, policy)
        return
    encoded = base64.b64encode(key).decode()
    entries = known(name, policy)
    for entry in entries:
        if entry.revoked and entry.key == encoded:
            raise PreflightFailed(
                f"{name}: its host key {seen} is marked @revoked in {entry.where}",
                fix="do not use this machine; if the mark is a mistake, remove that line",
            )
    entries = [e for e in entries if not e.revoked]
    if any(e.key == encoded for e in entries):
        return
    if entries:
        raise _changed(name, seen, _show(entries[0]), entries[0].where)
    if policy.accept_new:
        print(f"accepting the new host key of {name}: {seen}", file=sys.stderr)
    elif not _asked(name, kind, seen):
        raise PreflightFailed(
            f"{name}: unknown host key {seen} ({kind})",
            fix=f"{_WHERE_IT_STANDS}. If it is that one, add --host-key {seen}",
        )
    _pin(name, kind, key, policy)


_WHERE_IT_STANDS = (
    "The real one stands in the container's log at the provider, where the image prints its keys as it starts, or in "
    "the provider's web terminal: ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub"
)


def _show(entry: Known) -> str:
    try:
        return fingerprint(base64.b64decode(entry.key))
    except ValueError:
        return "an unreadable key"


def _changed(name: str, seen: str, expected: str, where: str) -> PreflightFailed:
    return PreflightFailed(
        f"{name}: the host key is {seen}, but {where} says {expected}; nothing was sent",
        fix="a re-used address is the usual cause: another pod stands there now. "
        f"{_WHERE_IT_STANDS}. If it is the new one, the same command with --host-key {seen} (and remove the old line: "
        f"ssh-keygen -R '{name}')",
    )


def _asked(name: str, kind: str, seen: str) -> bool:
    if not sys.stdin.isatty():
        return False
    print(f"{name} is not known. Its {kind} host key is {seen}", file=sys.stderr)
    print("Is that what the provider shows? (yes/no) ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("yes", "y")


def _pin(name: str, kind: str, key: bytes, policy: Policy) -> None:
    """Remember a key that the user vouched for; whoever had the address before is forgotten.

    A project that can't be written is told of, and asks again the next time.
    """
    path = policy.own_file
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        old = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
        line = f"{name} {kind} {base64.b64encode(key).decode()}"
        if line in old:
            return
        temp = path.with_name(path.name + f".{os.getpid()}.tmp")
        kept = [entry for entry in old if entry.split()[:1] != [name]]
        temp.write_text("\n".join([*kept, line]) + "\n", encoding="utf-8")
        temp.replace(path)
    except OSError as e:
        print(f"the host key is not pinned: {path}: {e.strerror}", file=sys.stderr)

"""Log in with a key, and say exactly what is wrong with one that does not work.

Order, as ssh has it: the key file that was named (`--identity`, or IdentityFile of ~/.ssh/config), the agent's
keys, the usual files of ~/.ssh. A passphrase is asked for on a terminal only; nothing waits for input without one.

Not here: whether the machine is the right one (hostkeys.py); that was settled before.
"""

from __future__ import annotations

import getpass
import sys
from collections.abc import Iterator
from pathlib import Path

import paramiko

from remote_runner.errors import PreflightFailed

_USUAL = ("id_ed25519", "id_ecdsa", "id_rsa")
_FEW_KEYS = 3  # OpenSSH hangs up after 6 by default (MaxAuthTries), hardened servers after 3


def log_in(transport: paramiko.Transport, user: str, where: str, named: list[Path], only_named: bool) -> None:
    """Authenticate, or explain.

    Args:
        where: the pod, for messages.
        named: key files asked for by name; each must exist and be usable.
        only_named: offer nothing else (`IdentitiesOnly yes`).

    Raises:
        PreflightFailed: no key was accepted, or a named one can't be used.
        paramiko.SSHException: the connection broke.
    """
    offered = []
    for label, key in _candidates(named, only_named):
        offered.append(label)
        try:
            transport.auth_publickey(user, key)
        except paramiko.AuthenticationException as e:
            if transport.is_active() and "timeout" not in str(e):
                continue
            # paramiko has one exception for a key refused and for a server gone: only the first is final
            if len(offered) >= _FEW_KEYS:
                raise PreflightFailed(
                    f"{where} closed the connection after {len(offered)} keys: {', '.join(offered)} (servers take "
                    "only a few tries)",
                    fix="name the right key with --identity FILE, and IdentitiesOnly yes in ~/.ssh/config",
                    passing=True,
                ) from None
            raise paramiko.SSHException(str(e)) from None
        if transport.is_authenticated():
            return
    tried = ", ".join(offered) or "none: no key file, and no key in an agent"
    raise PreflightFailed(
        f"{where} refused the login of {user!r}; keys offered: {tried}",
        fix="add your public key to the pod (the provider's console, or ~/.ssh/authorized_keys there), name the right "
        "key with --identity FILE, or the right user with --user",
    )


def _candidates(named: list[Path], only_named: bool) -> Iterator[tuple[str, paramiko.PKey]]:
    agent_keys = _agent_keys()
    for path in named:
        yield str(path), _load_named(path, agent_keys)
    if only_named:
        return
    for agent_key in agent_keys:
        yield f"agent key {agent_key.comment or agent_key.fingerprint}", agent_key
    for name in _USUAL:
        path = Path("~/.ssh").expanduser() / name
        if path.is_file() and path not in named:
            try:
                yield str(path), paramiko.PKey.from_path(path)
            except (paramiko.SSHException, ValueError, TypeError, OSError):
                continue  # one of the usual files that happens to be unusable is no fault of this run


def _agent_keys() -> list[paramiko.AgentKey]:
    try:
        return list(paramiko.Agent().get_keys())
    except (paramiko.SSHException, OSError):
        return []


def _load_named(path: Path, agent_keys: list[paramiko.AgentKey]) -> paramiko.PKey:
    try:
        head = path.read_bytes()[:100]
    except FileNotFoundError:
        raise PreflightFailed(f"{path}: no such file", fix="name your private key with --identity FILE") from None
    except OSError as e:
        raise PreflightFailed(f"{path}: can't be read: {e.strerror}", fix="check its owner and mode") from None
    if head.startswith((b"ssh-", b"ecdsa-", b"sk-")):
        raise PreflightFailed(f"{path} is a public key", fix=f"name the private one: {path.with_suffix('')}")
    try:
        return paramiko.PKey.from_path(path)
    except (paramiko.PasswordRequiredException, TypeError):  # TypeError: cryptography's word for the same
        return _unlock(path, agent_keys)
    except (paramiko.SSHException, ValueError) as e:
        raise PreflightFailed(f"{path} is no private key that can be read: {e}", fix="name another key") from None


def _unlock(path: Path, agent_keys: list[paramiko.AgentKey]) -> paramiko.PKey:
    """The agent's copy of an encrypted key, or the key itself with a passphrase typed by the user."""
    public = path.with_name(path.name + ".pub")
    if public.is_file():
        words = public.read_text(encoding="utf-8").split()
        for key in agent_keys:
            if len(words) > 1 and key.get_base64() == words[1]:
                return key
    if not sys.stdin.isatty():
        if agent_keys:
            return agent_keys[0]  # without a .pub file nothing tells which of them it is; the server decides
        raise PreflightFailed(
            f"{path} needs a passphrase, and there is neither a terminal to ask for it nor an agent that has the key",
            fix=f"ssh-add {path}",
        )
    for _ in range(3):
        try:
            typed = getpass.getpass(f"passphrase of {path}: ").encode()
            # annotated as str, but handed on as it is to cryptography, which wants bytes (paramiko 5.1)
            return paramiko.PKey.from_path(path, typed)  # type: ignore[arg-type]
        except (paramiko.SSHException, ValueError):
            print("wrong passphrase", file=sys.stderr)
    raise PreflightFailed(f"{path}: wrong passphrase", fix=f"ssh-add {path}, or name another key with --identity")

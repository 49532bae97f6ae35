"""Connections to a pod: the only place, with ssh_keys.py, ssh_library.py and program.py, that knows paramiko.

    connect()  ->  TCP (or a ProxyJump, ProxyCommand)  ->  host key checked  ->  login
    Pod.run()      one command, both streams read at once, both bounded
    Pod.open()     a long-lived program (program.py)

paramiko is loaded when the first connection is made: data connections are begun meanwhile (openssh.py).

Not here: what is said over a program's streams (agent.py).
"""

from __future__ import annotations

import getpass
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import tenacity

from remote_runner import hostkeys, ssh_library
from remote_runner.errors import PreflightFailed, UsageFault
from remote_runner.program import ChannelProgram, LinkLost
from remote_runner.target import Target, show_host

if TYPE_CHECKING:
    import paramiko

CONNECT_S = 15.0
BOOTING_S = 60.0  # how long a pod that drops connections before the login is given
KEEPALIVE_S = 15
_CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "aes128-ctr", "aes256-ctr")

# What goes wrong comes to us as an exception; without a handler its threads would print tracebacks at a user
logging.getLogger("paramiko").addHandler(logging.NullHandler())


class _Passing(Exception):
    """A failure before the login that a booting or busy pod shows."""


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """A target with everything that ~/.ssh/config and the options say about it."""

    host: str
    port: int
    user: str
    policy: hostkeys.Policy
    identities: list[Path] = field(default_factory=list)
    identities_only: bool = False
    proxy_command: str = ""
    jump: str = ""
    alias: str = ""  # what the user called it, where that may be a Host entry of ~/.ssh/config

    def __str__(self) -> str:
        return f"{show_host(self.host)}:{self.port}"


@dataclass(frozen=True)
class Completed:
    """A finished remote command."""

    code: int
    stdout: bytes
    stderr: bytes
    dropped_bytes: int  # of both streams, beyond the limits: read and not kept


def resolve(target: Target, policy: hostkeys.Policy, user: str | None, identity: Path | None) -> Endpoint:
    """Fill a target from ~/.ssh/config; options win, then the target itself, then the file.

    Raises:
        UsageFault: the config file can't be read.
    """
    found: dict[str, object] = {}
    path = Path("~/.ssh/config").expanduser()
    if path.is_file():
        try:
            text = ssh_library.config_text(path)
            paramiko = ssh_library.load(runs_programs="exec" in text.lower())
            found = dict(paramiko.SSHConfig.from_text(text).lookup(target.host))
        except Exception as e:
            raise UsageFault(f"{path}: {e}", fix="mend the file, or give HOST:PORT, --user and --identity") from e
    names = found.get("identityfile", [])
    files = [Path(str(n)).expanduser() for n in (names if isinstance(names, list) else [names])]
    named = [p for p in (identity, target.identity) if p] or [f for f in files if f.is_file()]
    port = target.port or int(str(found.get("port", 22)))
    return Endpoint(
        host=str(found.get("hostname", target.host)),
        port=port,
        user=user or target.user or str(found.get("user", "root")),
        policy=policy,
        identities=named,
        identities_only=str(found.get("identitiesonly", "no")).lower() == "yes",
        proxy_command=str(found.get("proxycommand", "")),
        jump=str(found.get("proxyjump", "")),
        alias=target.host,
    )


def connect(
    endpoint: Endpoint,
    tell: Callable[[str], None] = lambda _: None,
    measured: Callable[[float], None] = lambda _: None,
) -> Pod:
    """Open a connection, log in, and give back the pod.

    A pod that drops connections before the login is tried for a minute with growing pauses; a port that
    refuses, a few times.

    Args:
        measured: gets the round-trip time in seconds as soon as it is known, long before the login is done.

    Raises:
        PreflightFailed: unreachable, wrong or unknown host key, login refused; each with its fix.
    """
    began = time.monotonic()

    def give_up(state: tenacity.RetryCallState) -> bool:
        refused = "refused" in str(state.outcome.exception() if state.outcome else "")
        return time.monotonic() - began > (5.0 if refused else BOOTING_S)

    def say(state: tenacity.RetryCallState) -> None:
        tell(f"{state.outcome.exception() if state.outcome else ''}; trying again")

    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(_Passing),
        wait=tenacity.wait_exponential_jitter(multiplier=0.5, max=10, jitter=0.5),
        stop=give_up,
        before_sleep=say,
        reraise=True,
    )
    try:
        return retrying(_connect_once, endpoint, measured)
    except _Passing as e:
        raise PreflightFailed(
            str(e), fix="check the address and that the pod is up and its port 22 is mapped", passing=True
        ) from e


def _connect_once(endpoint: Endpoint, measured: Callable[[float], None]) -> Pod:
    began = time.monotonic()
    sock = _socket(endpoint)
    rtt_s = time.monotonic() - began if isinstance(sock, socket.socket) else None
    if rtt_s is not None:
        measured(rtt_s)
    paramiko = ssh_library.load()
    from remote_runner import ssh_keys

    transport = paramiko.Transport(sock)
    try:
        _prefer(transport, endpoint)
        transport.banner_timeout = transport.auth_timeout = CONNECT_S
        try:
            transport.start_client(timeout=CONNECT_S)
            key = transport.get_remote_server_key()
        except (paramiko.SSHException, EOFError, OSError) as e:
            raise _Passing(f"{endpoint} closed the connection before the login ({e or 'no answer'})") from None
        name = hostkeys.name_of(endpoint.host, endpoint.port)
        hostkeys.check(name, key.get_name(), key.asbytes(), endpoint.policy)
        try:
            ssh_keys.log_in(transport, endpoint.user, str(endpoint), endpoint.identities, endpoint.identities_only)
        except (paramiko.SSHException, EOFError, OSError) as e:
            raise _Passing(f"{endpoint} closed the connection during the login ({e or 'no answer'})") from None
        transport.set_keepalive(KEEPALIVE_S)
        return Pod(endpoint, transport, rtt_s)
    except BaseException:
        transport.close()
        sock.close()
        raise


def _prefer(transport: paramiko.Transport, endpoint: Endpoint) -> None:
    """The key types we know of this host first, so that a known key is what the server shows; fast ciphers."""
    security = transport.get_security_options()
    known = {entry.kind for entry in hostkeys.known(hostkeys.name_of(endpoint.host, endpoint.port), endpoint.policy)}
    wanted = {"ssh-rsa": "rsa-sha2-512"}
    kinds = {wanted.get(k, k) for k in known}
    security.key_types = sorted(security.key_types, key=lambda k: k not in kinds)  # stable: their order else
    security.ciphers = [c for c in _CIPHERS if c in security.ciphers] or security.ciphers


class _Prompt(socket.socket):
    """A connection that acknowledges at once: sshd holds its small packets back until the last one is acknowledged."""

    def recv(self, *args: int) -> bytes:
        self._hurry()
        return super().recv(*args)

    def send(self, *args: Any) -> int:
        sent = super().send(*args)
        self._hurry()
        return sent

    def _hurry(self) -> None:
        if sys.platform == "linux":
            self.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)  # it holds until something is sent or said


def _socket(endpoint: Endpoint) -> socket.socket | paramiko.Channel | paramiko.ProxyCommand:
    if endpoint.jump and endpoint.jump.lower() != "none":
        return _through(endpoint)
    if endpoint.proxy_command and endpoint.proxy_command.lower() != "none":
        through: paramiko.ProxyCommand = ssh_library.load().ProxyCommand(endpoint.proxy_command)
        return through
    try:
        made = socket.create_connection((endpoint.host, endpoint.port), timeout=CONNECT_S)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else small packets wait for acknowledgements
        return _Prompt(made.family, made.type, made.proto, fileno=made.detach())
    except socket.gaierror:
        raise PreflightFailed(
            f"{endpoint.host}: no such host", fix="check the address in the provider's console", passing=True
        ) from None
    except ConnectionRefusedError:
        raise _Passing(f"refused {endpoint}: nothing listens there") from None
    except TimeoutError:
        raise PreflightFailed(
            f"{endpoint}: no answer within {CONNECT_S:.0f} s",
            fix="check the address, and that the pod is running",
        ) from None
    except OSError as e:
        raise PreflightFailed(
            f"{endpoint}: {e.strerror or e}", fix="check the network here and the address", passing=True
        ) from None


def _through(endpoint: Endpoint) -> paramiko.Channel:
    """A channel by way of the last jump host, each hop checked like any other machine."""
    from remote_runner import target

    hop, _, _rest = endpoint.jump.rpartition(",")[2].partition(" ")
    gateway = connect(resolve(target.parse(hop), endpoint.policy, None, None))
    return gateway.tunnel(endpoint.host, endpoint.port)


class Pod:
    """One logged-in connection.

    Args:
        rtt_s: one round trip to it, None where a hop in between hides it.
    """

    def __init__(self, endpoint: Endpoint, transport: paramiko.Transport, rtt_s: float | None = None) -> None:
        self.endpoint, self.rtt_s = endpoint, rtt_s
        self._transport = transport

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._transport.close()

    def host_key(self) -> str:
        return hostkeys.fingerprint(self._transport.get_remote_server_key().asbytes())

    def host_key_line(self) -> str:
        """Type and key as a known_hosts file has them, without the host."""
        key = self._transport.get_remote_server_key()
        return f"{key.get_name()} {key.get_base64()}"

    def tunnel(self, host: str, port: int) -> paramiko.Channel:
        return self._transport.open_channel("direct-tcpip", (host, port), ("127.0.0.1", 0), timeout=CONNECT_S)

    def sftp(self, timeout_s: float) -> paramiko.SFTPClient:
        """The server's file subsystem: for stores. Nothing of a run goes through it.

        Raises:
            LinkLost: the connection is gone, or the server offers none.
        """
        import paramiko

        try:
            client = paramiko.SFTPClient.from_transport(self._transport)
            assert client is not None
            client.get_channel().settimeout(timeout_s)  # type: ignore[union-attr]
            return client
        except (paramiko.SSHException, EOFError, OSError) as e:
            raise LinkLost(f"{self.endpoint}: no sftp ({e or 'closed'})") from None

    def open(self, command: str) -> ChannelProgram:
        """Start a program and talk to it.

        Raises:
            LinkLost: the connection is gone, or no channel could be opened.
        """
        import paramiko

        try:
            channel = self._transport.open_session(timeout=CONNECT_S)
            channel.exec_command(command)
        except (paramiko.SSHException, EOFError, OSError) as e:
            raise LinkLost(f"{self.endpoint}: {e or 'connection closed'}") from None
        return ChannelProgram(channel, str(self.endpoint))

    def run(self, command: str, stdin: bytes = b"", *, timeout_s: float = 60, keep_bytes: int = 1 << 20) -> Completed:
        """Run one command to its end; both streams are read at once, so neither can block the other.

        Args:
            keep_bytes: of stdout; of stderr the last 16 KiB. What comes beyond is read, counted and dropped.

        Raises:
            LinkLost: broken, or not done after `timeout_s`.
        """
        with self.open(command) as program:
            feeder = threading.Thread(target=program.feed, args=(stdin,), daemon=True)
            feeder.start()
            kept, dropped = bytearray(), 0
            give_up = time.monotonic() + timeout_s
            for block in program.blocks(give_up):
                room = keep_bytes - len(kept)
                kept += block[:room]
                dropped += max(0, len(block) - room)
            code = program.code(max(1.0, give_up - time.monotonic()))
            return Completed(code, bytes(kept), program.stderr(), dropped + program.stderr_dropped_bytes)


def local_user() -> str:
    """Who runs this, for leases and records."""
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError):
        return f"uid {os.getuid()}@{socket.gethostname()}"

"""The system's ssh for bulk bytes: its own process and TCP connection, its ciphers outside this interpreter.

It reaches the machine that the control connection proved and no other: it is given that one host key, in a file
of its own, and asks nothing. Jump hosts, keys, agent and other settings are those of ~/.ssh/config and of the
control connection.

Not here: what is said over it (conversation.py), how many there are (transfer/channels.py).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
from functools import cache
from pathlib import Path
from typing import IO

from remote_runner import dial
from remote_runner.pod import wire
from remote_runner.program import LinkLost
from remote_runner.ssh import CONNECT_S, Endpoint

# a list: one name alone fails where the server lacks it. GCM first: half the processor time of chacha20
_CIPHERS = "aes128-gcm@openssh.com,aes256-gcm@openssh.com,chacha20-poly1305@openssh.com,aes128-ctr,aes256-ctr"
# where ~/.ssh/config says nothing: sntrup761, OpenSSH's first choice up to 9.8, takes a tenth of a second of processor
# time for each connection; its successor against quantum computers takes none worth counting
_EXCHANGES = ("mlkem768x25519-sha256", "curve25519-sha256")
_NAME = "remote-run-pod"  # the pod's name in our known_hosts file
_HOSTS, _CONFIG = "known_hosts", "config"
_F_SETPIPE_SZ = 1031  # Linux; fewer and larger reads between us and ssh
_PIPE_BYTES = 1 << 20
_KEPT_STDERR_BYTES = 16_384
_STALLED_S = 60.0


def available() -> bool:
    return shutil.which("ssh") is not None


def argv(endpoint: Endpoint, folder: Path, command: str) -> list[str]:
    """The ssh command line for one data connection; `folder` as `prepare` left it."""
    options = {
        "BatchMode": "yes",
        "StrictHostKeyChecking": "yes",
        "HostKeyAlias": _NAME,
        "UserKnownHostsFile": _quoted(folder / _HOSTS),
        "GlobalKnownHostsFile": "/dev/null",
        "CheckHostIP": "no",
        "UpdateHostKeys": "no",
        # a shared master would make all of them channels of one TCP connection
        "ControlMaster": "no",
        "ControlPath": "none",
        "ConnectTimeout": str(int(CONNECT_S)),
        "ServerAliveInterval": "15",
        "ServerAliveCountMax": "3",
        "ClearAllForwardings": "yes",
        "ForwardAgent": "no",
        "PermitLocalCommand": "no",
        "RemoteCommand": "none",
        "RequestTTY": "no",
        "Compression": "no",
        "LogLevel": "ERROR",
    }
    if endpoint.identities_only:
        options["IdentitiesOnly"] = "yes"
    if endpoint.jump:
        options["ProxyJump"] = endpoint.jump
    elif endpoint.proxy_command:
        options["ProxyCommand"] = endpoint.proxy_command
    else:
        dialing = [sys.executable, "-I", "-S", dial.__file__, endpoint.host, str(endpoint.port), str(CONNECT_S)]
        options["ProxyCommand"] = shlex.join(dialing).replace("%", "%%")
        options["ProxyUseFdpass"] = "yes"
    words = ["ssh", "-T", "-x", "-F", str(folder / _CONFIG), "-c", _CIPHERS]
    words += ["-p", str(endpoint.port), "-l", endpoint.user]
    for name, value in options.items():
        words += ["-o", f"{name}={value}"]
    if endpoint.alias and endpoint.alias != endpoint.host:
        words += ["-o", f"HostName={endpoint.host}"]
    for identity in endpoint.identities:
        words += ["-i", str(identity)]
    return [*words, "--", endpoint.alias or endpoint.host, command]


def _quoted(path: Path) -> str:
    """A path as the value of an option that is a list of them, with tokens."""
    plain = str(path).replace("%", "%%").replace("\\", "\\\\").replace('"', '\\"')
    return f'"{plain}"'


@cache
def _exchanges() -> str:
    """The line that puts those of ours that this ssh knows before all that it would offer."""
    if not available():
        return ""
    asked = subprocess.run(["ssh", "-Q", "kex"], capture_output=True, text=True, check=False)
    known = [name for name in _EXCHANGES if name in asked.stdout.split()]
    return f"  KexAlgorithms ^{','.join(known)}" if known else ""


def prepare(folder: Path, host_keys: list[str]) -> None:
    """What `argv` needs in a folder of ours; each file is replaced in one step, an ssh may be reading it.

    Args:
        host_keys: of the pod: type and key, as a known_hosts file has them after the host.
    """
    # the first word on a setting counts: the user's, the system's, then ours, in the last pass: a Match final wins too
    config = ["Include ~/.ssh/config", "Include /etc/ssh/ssh_config", "Match final all", _exchanges()]
    for name, lines in ((_HOSTS, [f"{_NAME} {key}" for key in host_keys]), (_CONFIG, config)):
        fresh = folder / f"{name}.new"
        fresh.write_text("".join(f"{line}\n" for line in lines), encoding="ascii")
        fresh.replace(folder / name)


class Process:
    """A program on the pod behind an ssh of its own: stdin and stdout as a byte stream."""

    def __init__(self, words: list[str], where: str) -> None:
        self._where = where
        # A group of its own: Ctrl-C is ours to handle, and it ends when our end of its stdin does.
        self._out, out = socket.socketpair()  # can be asked for whole blocks, as a pipe can't
        out.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _PIPE_BYTES)  # as much of it as the system allows
        try:
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=out.fileno(),
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
                env={**os.environ, "SHELL": "/bin/sh"},  # which ssh runs a ProxyCommand with, ours too
            )
        except BaseException:
            self._out.close()
            raise
        finally:
            out.close()
        assert self._process.stdin and self._process.stderr
        self._in = self._process.stdin.fileno()
        with contextlib.suppress(OSError):
            fcntl.fcntl(self._in, _F_SETPIPE_SZ, _PIPE_BYTES)
        os.set_blocking(self._in, False)
        # a whole block is waited for no longer than this; what came of it until then is taken
        self._out.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", wire.BLOCK_S, 0))
        self._closed = False
        self._stderr = bytearray()
        self._drain = threading.Thread(target=self._read_stderr, args=(self._process.stderr,), daemon=True)
        self._drain.start()

    def _read_stderr(self, stream: IO[bytes]) -> None:
        """To its end; it is closed here alone: its number must not be another file's while it is read."""
        with stream, contextlib.suppress(OSError):
            while data := os.read(stream.fileno(), 4096):
                self._stderr += data
                del self._stderr[:-_KEPT_STDERR_BYTES]

    def close(self) -> None:
        """End it; twice is once. Whoever is reading sees the end before the descriptor's number is free again."""
        self._closed = True
        if self._process.returncode is None:  # not waited for, so the number is still its group's
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)  # what ssh connects through as well
        self._process.wait()
        self._drain.join(1)
        for stream in (self._process.stdin, self._out):
            if stream is not None:
                stream.close()

    def write(self, data: bytes) -> None:
        """Send all of it.

        Raises:
            LinkLost: ssh ended, or nothing moved for a minute.
        """
        view = memoryview(data)
        while view:
            if self._closed:
                raise LinkLost(f"{self._where}: the data connection was closed")
            try:
                view = view[os.write(self._in, view) :]
            except BlockingIOError:
                self._wait_for_room()
            except (OSError, ValueError):
                raise LinkLost(f"{self._where}: the data connection ended{self._why()}") from None

    def write_file(self, fd: int, offset: int, length: int) -> int:
        """Send a piece of a file, on Linux without taking it into this process.

        Returns:
            How much of it there was.

        Raises:
            LinkLost: as `write`.
        """
        done = 0
        while done < length:
            if self._closed:
                raise LinkLost(f"{self._where}: the data connection was closed")
            try:
                moved = self._sent(fd, offset + done, length - done)
            except BlockingIOError:
                self._wait_for_room()
                continue
            except BrokenPipeError:
                raise LinkLost(f"{self._where}: the data connection ended{self._why()}") from None
            except (OSError, ValueError) as e:
                if self._closed:
                    raise LinkLost(f"{self._where}: the data connection was closed") from None
                raise e from None
            if not moved:
                break
            done += moved
        return done

    def _sent(self, fd: int, offset: int, length: int) -> int:
        if sys.platform == "linux":
            try:
                return os.sendfile(self._in, fd, offset, length)
            except OSError as e:
                if e.errno not in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
                    raise
        block = os.pread(fd, min(_PIPE_BYTES, length), offset)
        self.write(block)
        return len(block)

    def _wait_for_room(self) -> None:
        try:
            ready = select.select([], [self._in], [], _STALLED_S)[1]
        except (OSError, ValueError):
            raise LinkLost(f"{self._where}: the data connection was closed") from None
        if not ready:
            raise LinkLost(f"{self._where}: nothing could be sent for {_STALLED_S:.0f} s") from None

    def read(self, timeout_s: float, certain: int = 0) -> bytes:
        """Some bytes; none when it ended.

        Args:
            certain: bytes that are on their way: a whole block of them is waited for.

        Raises:
            LinkLost: nothing came for `timeout_s`.
        """
        if self._closed:
            raise LinkLost(f"{self._where}: the data connection was closed")
        try:
            if not select.select([self._out], [], [], timeout_s)[0]:
                raise LinkLost(f"{self._where}: no answer for {timeout_s:.0f} s")
            if certain:
                return self._out.recv(min(certain, wire.BLOCK_BYTES), socket.MSG_WAITALL)
            return self._out.recv(_PIPE_BYTES)
        except (OSError, ValueError):
            raise LinkLost(f"{self._where}: the data connection was closed") from None

    def ready(self) -> bool:
        """Whether something can be read at once."""
        return bool(select.select([self._out], [], [], 0)[0])

    def stderr(self) -> bytes:
        self._drain.join(0.5)
        return bytes(self._stderr)

    def _why(self) -> str:
        said = self.stderr().decode("utf-8", "replace").strip()
        return f": {said[-300:]}" if said else ""

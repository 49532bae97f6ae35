"""Test pods: a real OpenSSH server each, in a pid namespace of its own where we are root.

Killing the namespace's first process is losing the pod, and trainers of other tests are invisible to its guard.
By hand: python tests/pods.py FOLDER prints how to reach one and keeps it up until Ctrl-C.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

SSHD = shutil.which("sshd") or "/usr/sbin/sshd"
NAMESPACED = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"] if os.getuid() == 0 else []


def wait_for(condition: Callable[[], object], what: str, timeout_s: float = 60) -> object:
    """Await a condition; its first true value."""
    give_up = time.monotonic() + timeout_s
    while time.monotonic() < give_up:
        if found := condition():
            return found
        time.sleep(0.05)
    raise AssertionError(f"not within {timeout_s:.0f} s: {what}")


def free_port() -> int:
    """A port that outgoing connections don't get: a server that is killed must find it free when it comes back."""
    while True:
        port = random.randrange(10_000, 32_000)
        with socket.socket() as s, contextlib.suppress(OSError):
            s.bind(("127.0.0.1", port))
            return port


def keygen(path: Path, passphrase: str = "") -> Path:
    if not path.exists():
        subprocess.run(["ssh-keygen", "-qt", "ed25519", "-N", passphrase, "-f", path], check=True)
    return path


@dataclass
class TestPod:
    """One pod: its disk is `home`, its address 127.0.0.1:`port`."""

    __test__ = False

    folder: Path
    options: list[str] = field(default_factory=list)
    setenv: dict[str, str] = field(default_factory=dict)
    rc: str = ""
    before: str = ""  # shell commands in the pod's own mount namespace, ahead of its server
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def key(self) -> Path:
        return self.folder / "id"

    @property
    def address(self) -> str:
        return f"root@127.0.0.1:{self.port}" if os.getuid() == 0 else f"127.0.0.1:{self.port}"

    @property
    def root(self) -> Path:
        """Where runs lie by default on this pod."""
        return self.home / "remote-run" / "project"

    def start(self) -> TestPod:
        self.home.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o700)
        keygen(self.folder / "hostkey")
        keygen(self.key)
        (self.home / ".bashrc").write_text(self.rc)
        env = {"HOME": str(self.home), **self.setenv}
        lines = [
            f"Port {self.port}",
            "ListenAddress 127.0.0.1",
            f"HostKey {self.folder}/hostkey",
            f"AuthorizedKeysFile {self.key}.pub",
            "StrictModes no",
            "UsePAM no",
            "PermitRootLogin yes",
            "PasswordAuthentication no",
            "PidFile none",
            "SetEnv " + " ".join(f'"{k}={v}"' for k, v in env.items()),
            *([] if any("Subsystem" in o for o in self.options) else ["Subsystem sftp internal-sftp"]),
            *(o for o in self.options if o != "Subsystem none"),
        ]
        config = self.folder / "sshd_config"
        config.write_text("\n".join(lines) + "\n")
        if os.getuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)
        log = (self.folder / "log").open("ab")
        server = [SSHD, "-D", "-e", "-f", str(config)]
        if self.before:
            server = ["sh", "-c", f'{self.before}\nexec "$@"', "sh", *server]
        self.process = subprocess.Popen([*NAMESPACED, *server], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        wait_for(self.listens, f"sshd on port {self.port}: {(self.folder / 'log').read_text()[-500:]}", 20)
        return self

    def listens(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1) as s:
            return s.recv(4) == b"SSH-"
        return False

    def trust(self, home: Path, alias: str) -> None:
        """What a user has in `home`: a name for this server, a key that ssh finds, and the host in known_hosts."""
        ssh = home / ".ssh"
        ssh.mkdir(parents=True, exist_ok=True, mode=0o700)
        lines = f"Host {alias}\n  HostName 127.0.0.1\n  Port {self.port}\n  User root\n  IdentityFile {self.key}\n"
        (ssh / "config").write_text(lines)
        public = (self.folder / "hostkey.pub").read_text()
        (ssh / "known_hosts").write_text(f"[127.0.0.1]:{self.port} {public}")

    def lose(self) -> None:
        """The pod vanishes: every process on it dies at once."""
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait(10)
            self.process = None

    def pids(self) -> list[int]:
        """All processes of the pod but the server, as this machine numbers them."""
        assert self.process is not None
        found: list[int] = []
        todo = [self.process.pid]
        while todo:
            with contextlib.suppress(OSError):
                for task in Path(f"/proc/{todo.pop()}/task").iterdir():
                    inner = [int(p) for p in (task / "children").read_text().split()]
                    found += inner
                    todo += inner
        return found

    def commands(self) -> dict[int, list[str]]:
        found = {}
        for pid in self.pids():
            with contextlib.suppress(OSError):
                argv = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1]
                if argv:
                    found[pid] = [os.fsdecode(a) for a in argv]
        return found

    def trainers(self, word: str = "ncm_mlx") -> list[int]:
        return [pid for pid, argv in self.commands().items() if word in argv and "train" in argv]


@contextlib.contextmanager
def running(folder: Path, **given: object) -> Iterator[TestPod]:
    pod = TestPod(folder, **given)  # type: ignore[arg-type]
    try:
        yield pod.start()
    finally:
        pod.lose()


if __name__ == "__main__":
    with running(Path(sys.argv[1]).absolute()) as here:
        print(f"{here.address} --identity {here.key}", flush=True)
        signal.pause()


@contextlib.contextmanager
def command_lines_with(mark: bytes) -> Iterator[list[bytes]]:
    """Every command line on this machine that held `mark` during the block, our own test runner's aside."""
    stop, found = threading.Event(), list[bytes]()

    def watch() -> None:
        while not stop.is_set():
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    line = path.read_bytes()
                except OSError:
                    continue
                if mark in line and b"pytest" not in line:
                    found.append(line)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield found
    finally:
        stop.set()
        watcher.join()

"""Two hosts and one long wire: a controller and a pod in network namespaces, a real OpenSSH server on the pod.

    10.88.1.1  controller --wan0-- relay (rate, delay, loss, cut) --wan0--  pod  10.88.1.2
    10.88.0.1             --lan0-- veth, unshaped                --lan0--       10.88.0.2

The relay passes whole packets, so that TCP's windows, slow start and loss recovery are the kernel's own; it needs
no netem, which many small kernels lack. Needs root, a C compiler, iproute2, util-linux and openssh-server.

By hand: python tests/wan/lab.py PROFILE -- COMMAND ...   on the controller; ssh -F $WAN_SSH_CONFIG pod works there
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PORT = 2222
WAN = {"ctl": "10.88.1.1", "pod": "10.88.1.2"}
LAN = {"ctl": "10.88.0.1", "pod": "10.88.0.2"}
NEEDED = {
    "ip": "iproute2",
    "cc": "gcc",
    "sshd": "openssh-server",
    "ssh-keygen": "openssh-client",
    "nsenter": "util-linux",
}


@dataclass(frozen=True)
class Profile:
    """A link, each direction alike."""

    name: str
    mbit_s: float = 0  # 0: as fast as this machine
    rtt_ms: float = 0
    loss_percent: float = 0
    queue_mib: float = 128  # what waits for the wire before the tail is dropped: never, in practice
    congestion: str = ""  # TCP's control of both hosts, as `cubic`; empty: this machine's own


PROFILES = {
    "lan": Profile("lan"),
    "A": Profile("A", 1000, 40),
    "B": Profile("B", 1000, 120, 0.01),
    "C": Profile("C", 100, 80, 0.1),
}


def missing() -> str:
    """Why there can be no lab here; empty where there can."""
    if os.geteuid():
        return "needs root"
    tools = [package for tool, package in NEEDED.items() if not shutil.which(tool)]
    if not tools and not Path("/dev/net/tun").exists():
        return "needs /dev/net/tun"
    return f"needs {', '.join(tools)}" if tools else ""


@contextlib.contextmanager
def running(profile: Profile, *sshd_options: str, folder: Path | None = None) -> Iterator[Lab]:
    """A lab, gone with everything on its pod at the end.

    Args:
        folder: for keys, logs and the pod's home; on a memory disk the disk is no part of what is measured.
    """
    with contextlib.ExitStack() as stack:
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="wan-")))
        lab = Lab(folder, profile)
        try:
            lab.up(list(sshd_options))
            yield lab
        finally:
            lab.down()


class Lab:
    """One pair of hosts."""

    def __init__(self, folder: Path, profile: Profile) -> None:
        self.folder, self.profile = folder, profile
        self._name = "rr" + secrets.token_hex(3)
        self._relay: subprocess.Popen[bytes] | None = None
        self._is_cut = False

    # --- using it ----------------------------------------------------------

    @property
    def address(self) -> str:
        shaped = self.profile.mbit_s or self.profile.rtt_ms or self.profile.loss_percent
        return (WAN if shaped else LAN)["pod"]

    @property
    def key(self) -> Path:
        return self.folder / "id"

    @property
    def known_hosts(self) -> Path:
        return self.folder / "known_hosts"

    @property
    def ssh_config(self) -> Path:
        """For `ssh -F`: the host `pod`."""
        return self.folder / "config"

    @property
    def home(self) -> Path:
        """Root's home on the pod; here it has this name."""
        return self.folder / "home"

    def on(self, host: str, *argv: object) -> list[str]:
        """The argv that runs a command on `ctl` or `pod`."""
        return ["nsenter", f"--net=/run/netns/{self._name}-{host}", "--", *map(str, argv)]

    def shape(self, profile: Profile) -> None:
        """Change the link; open connections live on."""
        self.profile = profile
        self._write_link()

    def cut(self) -> None:
        """Drop every packet from now on."""
        self._is_cut = True
        self._write_link()

    def heal(self) -> None:
        self._is_cut = False
        self._write_link()

    def pod_pids(self) -> list[int]:
        """Every process in the pod's namespace."""
        done = subprocess.run(["ip", "netns", "pids", f"{self._name}-pod"], capture_output=True, text=True, check=False)
        return [int(p) for p in done.stdout.split()]

    # --- up ----------------------------------------------------------------

    def up(self, sshd_options: list[str]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        for host in WAN:
            _ip("netns", "add", f"{self._name}-{host}")
            _run(self.on(host, "sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=1"))
            _ip("-n", f"{self._name}-{host}", "link", "set", "lo", "up")
        peer = ("peer", "name", "lan0", "netns", f"{self._name}-pod")
        _ip("-n", f"{self._name}-ctl", "link", "add", "lan0", "type", "veth", *peer)
        self._start_relay()
        for host in WAN:
            for device, address in (("lan0", LAN[host]), ("wan0", WAN[host])):
                _ip("-n", f"{self._name}-{host}", "addr", "add", f"{address}/24", "dev", device)
                _ip("-n", f"{self._name}-{host}", "link", "set", device, "up", "mtu", "1500", "txqueuelen", "10000")
                if self.profile.congestion:  # by route: the sysctl takes no other than the machine's own here
                    net = address.rpartition(".")[0] + ".0/24"
                    words = ("dev", device, "src", address, "scope", "link", "proto", "kernel")
                    congestion = ("congctl", self.profile.congestion)
                    _ip("-n", f"{self._name}-{host}", "route", "replace", net, *words, *congestion)
        self._start_sshd(sshd_options)

    def _start_relay(self) -> None:
        self._write_link()
        binary = self.folder / "relay"
        _run(["cc", "-O2", "-Wall", "-o", str(binary), str(Path(__file__).with_name("relay.c"))])
        words = [str(binary), str(self.folder / "link"), f"{self._name}-ctl", f"{self._name}-pod"]
        with (self.folder / "relay.log").open("ab") as log:
            self._relay = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, start_new_session=True
            )
        assert self._relay.stdout is not None
        if self._relay.stdout.readline() != b"ready\n":
            raise RuntimeError((self.folder / "relay.log").read_text())

    def _write_link(self) -> None:
        link = self.profile
        fresh = self.folder / "link.new"
        fields = (link.mbit_s, link.rtt_ms / 2, link.loss_percent, link.queue_mib, int(self._is_cut))
        fresh.write_text(" ".join(f"{f:g}" for f in fields) + "\n")
        fresh.rename(self.folder / "link")
        if self._relay is not None and self._relay.poll() is None:
            self._relay.send_signal(signal.SIGHUP)

    def _start_sshd(self, options: list[str]) -> None:
        for name in ("host_key", "id"):
            if not (self.folder / name).exists():
                _run(["ssh-keygen", "-qt", "ed25519", "-N", "", "-C", name, "-f", str(self.folder / name)])
        public = " ".join((self.folder / "host_key.pub").read_text().split()[:2])
        self.known_hosts.write_text("".join(f"[{a}]:{PORT} {public}\n" for a in (LAN["pod"], WAN["pod"])))
        self.ssh_config.write_text(
            f"Host pod\n  HostName {self.address}\n  Port {PORT}\n  User root\n  IdentityFile {self.key}\n"
            f"  IdentitiesOnly yes\n  UserKnownHostsFile {self.known_hosts}\n  BatchMode yes\n"
        )
        config = self.folder / "sshd_config"
        lines = [  # of two lines with one name the first counts: those of the caller
            *options,
            f"Port {PORT}",
            f"HostKey {self.folder}/host_key",
            f"AuthorizedKeysFile {self.key}.pub",
            f"PidFile {self.folder}/sshd.pid",
            "PermitRootLogin prohibit-password",
            "PasswordAuthentication no",
            "UsePAM no",
            "StrictModes no",
            "PrintMotd no",
            "UseDNS no",
            "Subsystem sftp internal-sftp",
        ]
        config.write_text("\n".join(lines) + "\n")
        Path("/run/sshd").mkdir(exist_ok=True)
        self.home.mkdir(exist_ok=True)
        # A home of its own: none of this machine's start-up files and keys.
        mount = 'mount --bind "$1" "$2" && shift 2 && exec "$@"'
        server = [shutil.which("sshd") or "sshd", "-f", str(config), "-E", str(self.folder / "sshd.log")]
        home = str(Path("~root").expanduser())
        _run(self.on("pod", "unshare", "--mount", "sh", "-c", mount, "sh", self.home, home, *server))
        give_up = time.monotonic() + 10
        while not (self.folder / "sshd.pid").exists():
            if time.monotonic() > give_up:
                raise RuntimeError((self.folder / "sshd.log").read_text())
            time.sleep(0.02)

    # --- down --------------------------------------------------------------

    def down(self) -> None:
        """Remove everything but the folder."""
        if self._relay is not None:
            self._relay.terminate()
            self._relay.wait(10)
        for pid in self.pod_pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        known = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False).stdout
        for host in WAN:
            if re.search(rf"^{self._name}-{host}\b", known, re.MULTILINE):
                _ip("netns", "del", f"{self._name}-{host}")


def _run(argv: list[str]) -> None:
    subprocess.run(argv, check=True)


def _ip(*words: str) -> None:
    _run(["ip", *words])


def main(argv: list[str]) -> int:
    name, dashes, *command = argv
    if dashes != "--" or name not in PROFILES:
        print(__doc__, file=sys.stderr)
        return 2
    with running(PROFILES[name]) as lab:
        env = {**os.environ, "WAN_SSH_CONFIG": str(lab.ssh_config)}
        return subprocess.run(lab.on("ctl", *command), env=env, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

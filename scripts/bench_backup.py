"""Bytes and seconds of a backup, against rsync, rclone and restic, on one series of snapshots.

    scripts/bench_backup.py [--snapshots 20] [--mb 16] [--round-trip-ms 0]

A run folder with a codec that does not change, a generator whose latest becomes previous at each step, and a log that
grows. After each step every tool brings the folder from a real sshd to a folder here, through a relay that counts. Ours
is measured twice: as it runs while a run is followed (one connection), and as cron runs it (a new process each time).
Peers that are not installed are left out. Nothing is warmed or repeated: each figure is one run; say on which machine.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import pods
import rotating

from remote_runner import backup, ssh, vault
from remote_runner.access import Access
from remote_runner.agent import Agent
from remote_runner.onpod import OnPod
from remote_runner.stores import open_store
from remote_runner.vault import Place


class Relay:
    """A port that leads to another; bytes are counted both ways, and held back by half the round trip each way."""

    def __init__(self, port: int, round_trip_s: float) -> None:
        self.count, self._to, self._delay_s = 0, port, round_trip_s / 2
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._server.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            here, _ = self._server.accept()
            there = socket.create_connection(("127.0.0.1", self._to))
            for source, sink in ((here, there), (there, here)):
                threading.Thread(target=self._pass_on, args=(source, sink), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(1 << 18):
                self.count += len(data)
                if self._delay_s:
                    time.sleep(self._delay_s)
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            return


@dataclass
class Tool:
    name: str
    once: Callable[[], None]
    seconds: float = 0.0
    sent: int = 0


COLD = """
import gc, sys
from pathlib import Path
from remote_runner import backup, ssh
from remote_runner.access import Access
from remote_runner.agent import Agent
from remote_runner.onpod import OnPod
from remote_runner.stores import open_store
from remote_runner.vault import Place
port, key, source, work = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4])
access = Access(target="root@127.0.0.1:" + port, identity=key, accept_new_host_key=True)
place = Place(store=open_store("cold", work), project="bench", name="run", keep=1000)
with ssh.connect(access.endpoint(work)) as pod, Agent(pod, source) as agent:
    backup.make(OnPod(agent, ["artifacts/run"], "run"), place, work / "spool-cold", "bench", None)
gc.freeze()  # as the command line does
"""


def quiet(*argv: object, **env: str) -> None:
    done = subprocess.run(
        [str(a) for a in argv], env={**os.environ, **env}, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{argv}: {done.stdout}{done.stderr}")


def _shell(pod: pods.TestPod, relay: Relay, work: Path) -> str:
    trust = f"-oUserKnownHostsFile={work}/known -oStrictHostKeyChecking=no -oLogLevel=ERROR"
    return f"ssh -p {relay.port} -i {pod.key} {trust}"


def tools(pod: pods.TestPod, relay: Relay, source: Path, work: Path) -> list[Tool]:
    shell = _shell(pod, relay, work)
    found = [_ours(pod, relay, source, work), _ours_cold(pod, relay, source, work)]
    if shutil.which("rsync"):
        target = work / "rsync"
        found.append(
            Tool(
                "rsync -a --fuzzy",
                lambda: quiet("rsync", "-a", "--fuzzy", "-e", shell, f"root@127.0.0.1:{source}/", target),
            )
        )
    if shutil.which("rclone"):
        remote = f":sftp,host=127.0.0.1,port={relay.port},user=root,key_file={pod.key},shell_type=unix:{source}"
        argv = ["rclone", "sync", "--config", "/dev/null", "--track-renames", "--checksum", remote, work / "rclone"]
        found.append(Tool("rclone sync --track-renames", lambda: quiet(*argv)))
    if shutil.which("restic"):
        found.append(_restic(pod, relay, source, work))
    return found


def _ours(pod: pods.TestPod, relay: Relay, source: Path, work: Path) -> Tool:
    access = Access(target=f"root@127.0.0.1:{relay.port}", identity=pod.key, accept_new_host_key=True)
    agent = Agent(ssh.connect(access.endpoint(work)), source)  # type: ignore[arg-type]
    place = Place(store=open_store("ours", work), project="bench", name="run", keep=1000)
    last: list[backup.Backup | None] = [None]

    def once() -> None:
        last[0] = backup.make(OnPod(agent, ["artifacts/run"], "run"), place, work / "spool", "bench", last[0])

    return Tool("remote-run, while following", once)


def _ours_cold(pod: pods.TestPod, relay: Relay, source: Path, work: Path) -> Tool:
    argv = [sys.executable, "-c", COLD, relay.port, pod.key, source, work]
    return Tool("remote-run, a new process", lambda: quiet(*argv))


def _restic(pod: pods.TestPod, relay: Relay, source: Path, work: Path) -> Tool:
    """restic reads files where they lie, so it runs on the pod's side and pushes; the same bytes, the other way."""
    command = f"{_shell(pod, relay, work)} root@127.0.0.1 -s sftp"
    repo = ["-r", f"sftp:root@127.0.0.1:{work}/restic", "-o", f"sftp.command={command}"]
    env = {"RESTIC_PASSWORD": "bench", "RESTIC_CACHE_DIR": str(work / "cache")}
    quiet("restic", *repo, "init", **env)
    return Tool("restic backup", lambda: quiet("restic", *repo, "backup", source, **env))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--snapshots", type=int, default=20)
    parser.add_argument("--mb", type=float, default=16.0, help="of one generator snapshot")
    parser.add_argument("--round-trip-ms", type=float, default=0.0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-backup-") as folder:
        work = Path(folder)
        os.environ["HOME"] = folder
        with pods.running(work / "pod") as pod:
            source = work / "pod/home/run"
            (source / "runs").mkdir(parents=True)
            size = int(given.mb * 1e6 / 4)
            rotating.save(source, "codec", 10, size=size // 4)
            relay = Relay(pod.port, given.round_trip_ms / 1000)
            every = tools(pod, relay, source, work)
            for step in range(1, given.snapshots + 1):
                rotating.save(source, "generator", step, size=size)
                with (source / "runs/run-train.log").open("a") as log:
                    log.write(f"generator step {step}\n" * 100)
                for tool in every:
                    before, began = relay.count, time.monotonic()
                    tool.once()
                    tool.seconds += time.monotonic() - began
                    tool.sent += relay.count - before
                done = ", ".join(f"{tool.name} {tool.seconds:.1f} s" for tool in every)
                print(f"{step}/{given.snapshots}: {done}", file=sys.stderr, flush=True)
            made = Place(store=open_store("ours", work), project="bench", name="run", keep=1000)
            damaged = [d for m in vault.manifests(made) for d in vault.damaged(made, m)]
    print(
        f"{given.snapshots} snapshots of {given.mb:g} MB, round trip {given.round_trip_ms:g} ms, "
        f"load {os.getloadavg()[0]:.1f}"
    )
    for tool in every:
        print(f"{tool.name:28} {tool.sent / 1e6:9.2f} MB {tool.seconds:8.2f} s")
    print(json.dumps({"damaged": damaged}))


if __name__ == "__main__":
    main()

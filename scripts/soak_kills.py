"""Kill -9 in the middle of backups: of the controller, of the store's server, of the link; no manifest may lie.

    scripts/soak_kills.py [--backups 100] [--seed N]

Each round makes one backup of a run on a real sshd pod into a folder, an S3 server or an sftp server, each in turn, and
strikes one of the three at a random moment of it. Whatever the store holds then, every blob that a manifest names must
be there with the right bytes; and the next backup must work without anybody's help. Needs root for the pods.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import pods
import rotating
import s3server
from relay import Relay

from remote_runner import vault
from remote_runner.stores import open_store
from remote_runner.vault import Place

TESTS = Path(__file__).parents[1] / "tests"
KINDS = ("folder", "s3", "sftp")
BLOWS = [
    (kind, victim)
    for victim in ("store", "link", "controller")
    for kind in KINDS
    if (kind, victim) != ("folder", "store")
]
FLOATS = 2_400_000  # a snapshot of 9.6 MB: more than one part of an upload

# Marks of the dead are believed for seconds instead of a minute: the rounds are to be many.
WORKER = """
import sys
from pathlib import Path
from remote_runner import backup, retention, ssh
from remote_runner.access import Access
from remote_runner.agent import Agent
from remote_runner.onpod import OnPod
from remote_runner.stores import open_store
from remote_runner.vault import Place
port, key, source, work, url = sys.argv[1], *map(Path, sys.argv[2:5]), sys.argv[5]
retention.BEAT_S, retention.DEAD_AFTER_S = 0.5, 3.0
access = Access(target="root@127.0.0.1:" + port, identity=key, accept_new_host_key=True)
place = Place(store=open_store(url, work), project="soak", name="run", keep=4)
with ssh.connect(access.endpoint(work)) as pod, Agent(pod, source) as agent:
    print("begin", flush=True)
    made = backup.make(OnPod(agent, ["artifacts/run"], "run"), place, work / "spool", "soak", None)
print("made", made.id, flush=True)
"""

FRONT = """
import sys, threading
sys.path.insert(0, sys.argv[1])
import s3server
class Behind:
    port = int(sys.argv[2])
gate = s3server.Gate(Behind, int(sys.argv[3]))
threading.Event().wait()
"""


@dataclass
class Scene:
    """A pod with a run, three stores, and a link that can be cut."""

    work: Path
    pod: pods.TestPod
    host: pods.TestPod  # the sftp server
    s3: s3server.S3Server
    front_port: int = field(default_factory=pods.free_port)
    front: subprocess.Popen[bytes] | None = None
    step: int = 0
    usual_s: dict[str, float] = field(default_factory=lambda: dict.fromkeys(KINDS, 1.0))

    @property
    def source(self) -> Path:
        return self.pod.home / "run"

    def start_front(self) -> None:
        """The process that S3 requests reach; what is behind it keeps its objects in memory, and is left alive."""
        argv = [sys.executable, "-c", FRONT, str(TESTS), str(self.s3.port), str(self.front_port)]
        self.front = subprocess.Popen(argv, stdin=subprocess.DEVNULL)

    def url(self, kind: str) -> str:
        if kind == "s3":
            return self.s3.url("kept", f"http://127.0.0.1:{self.front_port}")
        return str(self.work / "kept") if kind == "folder" else f"sftp://vault{self.host.folder}/kept"

    def place(self, kind: str) -> Place:
        """The store, seen past everything that is killed."""
        url = {"folder": str(self.work / "kept"), "s3": self.s3.url("kept"), "sftp": str(self.host.folder / "kept")}
        return Place(store=open_store(url[kind], self.work), project="soak", name="run", keep=4)

    def begin(self, kind: str, port: int) -> subprocess.Popen[str]:
        argv = [sys.executable, "-c", WORKER, port, self.pod.key, self.source, self.work, self.url(kind)]
        worker = subprocess.Popen(
            [str(a) for a in argv], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert worker.stdout is not None
        worker.stdout.readline()
        return worker

    def save(self) -> None:
        self.step += 1
        rotating.save(self.source, "generator", self.step, size=FLOATS)


def lies(scene: Scene, kind: str) -> list[str]:
    """Every blob of every manifest, read: what is missing or wrong."""
    place = scene.place(kind)
    return [fault for manifest in vault.manifests(place) for fault in vault.damaged(place, manifest)]


def strike(scene: Scene, kind: str, victim: str, at_s: float) -> dict[str, Any]:
    """One backup, one blow."""
    scene.save()
    relay = Relay(scene.pod.port)
    worker = scene.begin(kind, relay.port)
    time.sleep(at_s)  # the moment is the point
    struck = worker.poll() is None
    if victim == "controller":
        worker.kill()
    elif victim == "link":
        relay.close()
    elif kind == "sftp":
        scene.host.lose()
        scene.host.start()
    elif scene.front is not None:
        scene.front.send_signal(signal.SIGKILL)
        scene.front.wait()
        scene.start_front()
    out, err = worker.communicate(timeout=180)
    relay.close()
    return {"kind": kind, "victim": victim, "struck": struck, "made": "made" in out, "said": err.strip()[-200:]}


def soak(backups: int, seed: int, work: Path) -> dict[str, Any]:
    rng = random.Random(seed)
    s3 = s3server.S3Server(work).start()
    with pods.running(work / "pod") as pod, pods.running(work / "host") as host:
        host.trust(work, "vault")
        scene = Scene(work, pod, host, s3)
        (scene.source / "runs").mkdir(parents=True)
        scene.start_front()
        try:
            return {"backups": backups, "seed": seed, **_rounds(scene, backups, rng)}
        finally:
            if scene.front is not None:
                scene.front.kill()
                scene.front.wait()
            s3.stop()


def _rounds(scene: Scene, backups: int, rng: random.Random) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    for number in range(backups):
        kind, victim = BLOWS[number % len(BLOWS)]
        row = strike(scene, kind, victim, rng.uniform(0, 1.2 * scene.usual_s[kind]))
        row["lies"] = lies(scene, kind)
        began_s = time.monotonic()
        scene.save()
        after = scene.begin(kind, scene.pod.port)
        worked_s = time.monotonic()
        _, err = after.communicate(timeout=180)
        row["next"] = err.strip()[-300:] if after.returncode else ""
        scene.usual_s[kind] = min(3.0, time.monotonic() - worked_s)
        row["lies"] += lies(scene, kind)
        rows.append(row)
        print(f"{number + 1}/{backups} {time.monotonic() - began_s:.1f} s: {row}", file=sys.stderr, flush=True)
    return {
        "struck": sum(r["struck"] for r in rows),
        "by": {f"{k} {v}": sum((r["kind"], r["victim"]) == (k, v) and r["struck"] for r in rows) for k, v in BLOWS},
        "made_all_the_same": sum(r["made"] for r in rows),
        "lies": [fault for r in rows for fault in r["lies"]],
        "next_failed": [r for r in rows if r["next"]],
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backups", type=int, default=100)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    given = parser.parse_args()
    os.environ.update(s3server.KEYS)
    with tempfile.TemporaryDirectory(prefix="soak-kills-") as folder:
        os.environ["HOME"] = folder
        found = soak(given.backups, given.seed, Path(folder))
    print(json.dumps(found, indent=1))
    return 1 if found["lies"] or found["next_failed"] else 0


if __name__ == "__main__":
    sys.exit(main())

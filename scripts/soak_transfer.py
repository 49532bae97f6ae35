"""Strike transfers over a long link at random moments, many times, and show that none ends wrong.

    python scripts/soak_transfer.py                  10 moments for each direction, short cuts: some minutes
    python scripts/soak_transfer.py --moments 200    what the project promises: hours; --minutes 4 takes as many as fit

Each round sends or fetches a run over profile B, one strike comes when a random share of it has moved: the link is
cut for 1, 10 or 90 s, sshd's sessions or the program on the pod are killed, the controller is killed, the disk of the
end that writes is full, a byte is flipped by the pod's program. The call must end done and verified, or with a code
of the design; no wrong byte may stand under a final name; the next call must finish the job. Needs root.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

TESTS = Path(__file__).parents[1] / "tests"
sys.path[:0] = [str(TESTS)]

import transfer_peers as peers  # noqa: E402
from wan import lab as wan  # noqa: E402

STRIKES = ("cut 1", "cut 10", "cut 90", "sessions", "program", "controller", "disk full", "flip")
CODES = {0, 3, 5, 6, 7}


LARGE_BYTES = 2 << 30


class Disk:
    """A memory disk with a size of its own; mounted before the pod is up, or the pod would not see it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={LARGE_BYTES}", "tmpfs", folder], check=True)

    def leave(self, free_bytes: int) -> None:
        """Make so little room that only this much can be written."""
        used = sum(p.stat().st_blocks * 512 for p in self.folder.rglob("*"))
        self._resize(used + free_bytes)

    def grow(self) -> None:
        self._resize(LARGE_BYTES)

    def _resize(self, size_bytes: int) -> None:
        subprocess.run(["mount", "-o", f"remount,size={size_bytes}", self.folder], check=True)

    def close(self) -> None:
        subprocess.run(["umount", "-l", self.folder], check=False)


class Round:
    """One transfer, struck once, then finished."""

    def __init__(self, lab: wan.Lab, disks: dict[str, Disk], name: str, way: str, mb: int) -> None:
        self.lab, self.disks, self.way, self.total = lab, disks, way, mb << 20
        self.here, self.there = (disks[end].folder / name for end in ("here", "there"))
        for path in (self.here, self.there):
            path.mkdir()
        self.source, self.target = (self.there, self.here) if way == "down" else (self.here, self.there)
        peers.fill(self.source / peers.OUTPUT, large_mb=mb)
        self.moved = 0
        self.movers: list[subprocess.Popen[str]] = []

    def start(self, **more: object) -> subprocess.Popen[str]:
        spec = {
            "host": self.lab.address, "port": wan.PORT, "user": "root", "known_hosts": self.lab.folder / "known",
            "key": self.lab.key, "here": self.here, "there": self.there, "way": self.way, **more,
        }  # fmt: skip
        argv = [sys.executable, str(TESTS / "transfer_move.py"), json.dumps(spec, default=str)]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent)])}
        mover = subprocess.Popen(
            self.lab.on("ctl", *argv), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
        )
        threading.Thread(target=self._count, args=(mover,), daemon=True).start()
        self.movers.append(mover)
        return mover

    def _count(self, mover: subprocess.Popen[str]) -> None:
        assert mover.stdout is not None
        for line in mover.stdout:
            self.moved = int(line.split()[1])

    def wrong(self, all_of_it: bool) -> str:
        expected, found = peers.tree(self.source), peers.tree(self.target)
        bad = [path for path, sha256 in found.items() if not path.endswith(".part") and expected.get(path) != sha256]
        if bad:
            return f"wrong bytes under {bad}"
        return "not complete" if all_of_it and len(found) < len(expected) else ""

    def run(self, strike: str, at: float) -> str:
        """What went wrong; empty when nothing did."""
        full = self.disks["here" if self.way == "down" else "there"] if strike == "disk full" else None
        if full is not None:
            full.leave(int(self.total * at) + 65_536)
        try:
            mover = self.start(flip=strike == "flip")
            while self.moved < at * self.total and mover.poll() is None:
                time.sleep(0.01)
            self._strike(strike, mover)
            code = mover.wait(600)
            said = mover.stderr.read() if mover.stderr else ""
            self.lab.heal()
            if strike != "controller" and (code not in CODES or "Traceback" in said):
                return f"ended with {code}: {said[-2000:]}"
            if fault := self.wrong(all_of_it=code == 0):
                return fault
            if full is not None:
                full.grow()
            mover = self.start()
            code = mover.wait(600)
            if code:
                return f"the second call ended with {code}: {mover.stderr.read()[-2000:] if mover.stderr else ''}"
            return self.wrong(all_of_it=True)
        finally:
            for mover in self.movers:
                mover.kill()  # one that has ended is left alone
            for disk in self.disks.values():
                disk.grow()
            shutil.rmtree(self.here)
            shutil.rmtree(self.there)

    def _strike(self, strike: str, mover: subprocess.Popen[str]) -> None:
        if strike.startswith("cut"):
            self.lab.cut()
            threading.Timer(float(strike.split()[1]), self.lab.heal).start()
        elif strike == "controller":
            mover.kill()
        elif strike in ("sessions", "program"):
            word = "sshd: root" if strike == "sessions" else str(self.there)
            for pid in self.lab.pod_pids():
                with contextlib.suppress(OSError):
                    if word in Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " "):
                        os.kill(pid, signal.SIGKILL)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--moments", type=int, default=10, help="for each direction")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no further moment after these")
    parser.add_argument("--strike", nargs="*", choices=STRIKES)
    parser.add_argument("--mb", type=int, default=48)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    args = parser.parse_args()
    if why := wan.missing():
        print(f"no emulated link here: {why}", file=sys.stderr)
        return 1
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the link and its hosts are taken down all the same
    strikes = args.strike or [s for s in STRIKES if args.moments >= 50 or s != "cut 90"]
    chance, done, faults = random.Random(args.seed), Counter[str](), 0
    print(f"seed {args.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="soak-") as folder, contextlib.ExitStack() as stack:
        disks = {end: Disk(Path(folder) / end) for end in ("here", "there")}
        for disk in disks.values():
            stack.callback(disk.close)
        lab = stack.enter_context(wan.running(wan.PROFILES["B"]))
        give_up = time.monotonic() + 60 * args.minutes
        for number in range(args.moments):
            if time.monotonic() > give_up:
                break
            for way in ("down", "up"):
                strike, at = strikes[number % len(strikes)], chance.random()
                fault = Round(lab, disks, f"{number}{way}", way, args.mb).run(strike, at)
                done[f"{strike}, {way}"] += 1
                faults += bool(fault)
                print(f"{number + 1}/{args.moments} {way} {strike} at {at:.2f}: {fault or 'well'}", flush=True)
    print(f"seed {args.seed}: {sum(done.values())} strikes, {faults} wrong: {dict(done)}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())

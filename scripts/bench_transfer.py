"""Transfers against the tools people use, on emulated links, both directions, everything on a memory disk.

    python scripts/bench_transfer.py                    small sizes, profiles lan and A: a few minutes
    python scripts/bench_transfer.py --full             the sizes of docs/benchmarks.md, all profiles: about two hours
    python scripts/bench_transfer.py --profile B --work large small --peer rsync --mb 256 --rows rows.jsonl
    python scripts/bench_transfer.py --show rows.jsonl  the table of what several calls measured

Needs root (tests/wan/lab.py). Peers that are not installed are named and left out. One row is one cold start to
the end of the process, connections included; we verify every byte, the peers don't. The table goes to stdout.
`warm` is the small files once connections are there, as while a run is followed: ours alone, to hold against `small`.
With --on DIR the files lie on the disk of that folder, and the time of its syncs is in the figures.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / "tests"), str(Path(__file__).parent)]

from bench_transfer_ours import OUTPUT  # noqa: E402
from bench_transfer_peers import PEERS, Case  # noqa: E402
from wan import lab as wan  # noqa: E402

WORK = ("large", "small", "warm", "folder", "unchanged", "changed", "half")
OURS = str(Path(__file__).with_name("bench_transfer_ours.py"))
_INSTALLED = {
    k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"
}  # as after an install: compiled once
MOST_S = 120  # longer ones are ended and shown as such
TCP_SHARE = 1448 / 1514  # of a full packet is payload: what no program can pass


@dataclass(frozen=True)
class Row:
    """One measurement."""

    profile: str
    work: str
    way: str
    tool: str
    seconds: float
    moved_bytes: int  # what had to travel
    cpu_here_s: float
    cpu_pod_s: float
    peak_here_mb: float = 0
    note: str = ""
    mb: int = 0  # of the large file


# --- data ----------------------------------------------------------------------


def make(folder: Path, work: str, mb: int) -> int:
    """The files of a piece of work; the bytes that have to travel."""
    chance = random.Random(1)
    folder.mkdir(parents=True)
    if work in ("small", "warm"):
        words = [b"step", b"loss", b"0.125", b"rate", b"epoch", b"solved"]
        for number in range(3000):
            size = chance.randrange(1_000, 40_000)
            half = b" ".join(chance.choices(words, k=size // 12))
            (folder / f"{number:04}.json").write_bytes((half + chance.randbytes(size // 2))[:size])
    else:
        sizes = {"large": [mb], "half": [mb * 2 // 5]}.get(work, [mb * 2 // 5, mb * 2 // 5])
        for number, size in enumerate(sizes):
            weights(folder / f"part{number}.safetensors", size, number)
        for number in range(200) if len(sizes) == 2 else ():
            (folder / f"{number:03}.log").write_bytes(b"step %d loss 0.5\n" % number * chance.randrange(100, 2000))
    return sum(p.stat().st_size for p in folder.iterdir())


def weights(path: Path, mb: int, seed: int) -> None:
    """Float32 noise, as weights look to a compressor."""
    import numpy as np

    chance = np.random.default_rng(seed)
    with path.open("wb") as f:
        for _ in range(mb):
            f.write(chance.standard_normal(1 << 18, dtype=np.float32).tobytes())


# --- one run -------------------------------------------------------------------


def cpu_of(pid: int) -> float:
    """Processor time of a process's ended children, theirs included."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")


def measure(lab: wan.Lab, argv: list[str], stdin: str | None = None) -> tuple[float, float, float, str, int]:
    """Run one command on the controller: seconds, its processor time, the pod's, its output, its code.

    One that takes longer than MOST_S is ended, with code 124.
    """
    sshd = int((lab.folder / "sshd.pid").read_text())
    pod, own = cpu_of(sshd), os.times()
    began = time.monotonic()
    done = subprocess.run(
        ["timeout", str(MOST_S), *lab.on("ctl", *argv)], input=stdin, capture_output=True, text=True, check=False,
        env={**_INSTALLED, "HOME": str(lab.folder)},
    )  # fmt: skip
    seconds, now = time.monotonic() - began, os.times()
    time.sleep(0.3)  # sshd takes a moment to see that its child has ended
    cpu = now.children_user + now.children_system - own.children_user - own.children_system
    return seconds, cpu, cpu_of(sshd) - pod, done.stdout + done.stderr, done.returncode


def spec_of(lab: wan.Lab, case: Case, stop_at: int = 0) -> str:
    own = lab.folder / "own_known_hosts"
    own.write_text(lab.known_hosts.read_text())
    return json.dumps(
        {
            "host": lab.address,
            "port": wan.PORT,
            "key": str(lab.key),
            "known_hosts": str(own),
            "here": str(case.here),
            "there": str(case.there),
            "way": case.way,
            "stop_at": stop_at,
            "warm": case.work == "warm",
        },
        default=str,
    )


def rows(lab: wan.Lab, work: str, way: str, mb: int, peers: list[str]) -> Iterator[Row]:
    """All tools on one piece of work."""
    for tool in ["remote-run", *(peers if work != "warm" else [])]:
        with tempfile.TemporaryDirectory(prefix="bench-", dir=lab.folder) as folder:
            case = Case(lab=lab, work=work, way=way, here=Path(folder) / "here", there=Path(folder) / "there")
            (case.here / ".remote-run").mkdir(parents=True)  # as in every project: digests are remembered there
            case.there.mkdir()
            source, target = (case.there, case.here) if way == "down" else (case.here, case.there)
            moved = make(source / OUTPUT, work, mb)
            _has_the_program(case.there)
            run = _us(lab, case) if tool == "remote-run" else PEERS[tool](case)
            if run is None:
                continue
            if work in ("unchanged", "changed"):
                time.sleep(2.5)  # of younger files no digest is remembered
                run()  # the first time, not measured
                time.sleep(2.5)
                moved = 0
                if work == "changed":
                    moved = (source / OUTPUT / "part1.safetensors").stat().st_size
                    weights(source / OUTPUT / "part1.safetensors", moved >> 20, 77)
            elif work == "half":
                moved //= 2
                _break_off(lab, case, tool, source, target, moved)
            seconds, cpu, pod, said, code = run()
            note = "" if code == 0 else "ended" if code == 124 else f"failed ({code}): {said.strip()[-200:]}"
            told = json.loads(said) if tool == "remote-run" and not code else {}
            peak, seconds = told.get("peak_mb", 0), told.get("seconds", seconds)
            if not note and _differ(source / OUTPUT, target / OUTPUT):
                note = "WRONG BYTES"
            yield Row(lab.profile.name, work, way, tool, seconds, moved, cpu, pod, peak, note, mb)


def _has_the_program(root: Path) -> None:
    """As any pod has it where a run was started: the first command to a new one sends it, 150 kB."""
    from remote_runner import zipapp

    app = zipapp.build()
    (root / ".remote-run").mkdir()
    (root / ".remote-run" / app.name).write_bytes(app.content)


def _us(lab: wan.Lab, case: Case, stop_at: int = 0) -> Callable[[], tuple[float, float, float, str, int]]:
    return lambda: measure(lab, [sys.executable, OURS, spec_of(lab, case, stop_at)])


def _break_off(lab: wan.Lab, case: Case, tool: str, source: Path, target: Path, moved: int) -> None:
    if tool == "remote-run":
        _us(lab, case, moved)()
        return
    (target / OUTPUT).mkdir(parents=True)
    name = next((source / OUTPUT).iterdir()).name
    with (source / OUTPUT / name).open("rb") as f:
        (target / OUTPUT / name).write_bytes(f.read(moved))


def _differ(source: Path, target: Path) -> bool:
    return bool(subprocess.run(["diff", "-rq", source, target], capture_output=True, check=False).returncode)


# --- the table -------------------------------------------------------------------


def table(found: list[Row]) -> Iterator[str]:
    """Markdown: one line a measurement, with its ratio to the fastest peer of the same work."""
    yield "| link | work | way | tool | s | share of the link | CPU here, s | CPU pod, s | against the best peer | |"
    yield "|---|---|---|---|---:|---:|---:|---:|---:|---|"
    for row in found:
        key = (row.profile, row.work, row.way, row.mb)
        same = [r for r in found if (r.profile, r.work, r.way, r.mb) == key and not r.note]
        best = min((r.seconds for r in same if r.tool != "remote-run"), default=0)
        rate = wan.PROFILES[row.profile].mbit_s
        least_s = row.moved_bytes * 8 / 1e6 / (rate * TCP_SHARE) if rate else 0
        share = f"{least_s / row.seconds:.0%}" if least_s else "-"
        against = f"{best / row.seconds:.2f} x" if row.tool == "remote-run" and best else ""
        note = row.note or (f"peak {row.peak_here_mb:.0f} MB" if row.peak_here_mb else "")
        yield (
            f"| {row.profile} | {row.work} | {row.way} | {row.tool} | {row.seconds:.2f} | {share} "
            f"| {row.cpu_here_s:.2f} | {row.cpu_pod_s:.2f} | {against} | {note} |"
        )


def _one_link(profile: wan.Profile, args: argparse.Namespace, found: list[Row]) -> None:
    """All rows of one profile, appended as they are measured."""
    profile = replace(profile, congestion=args.congestion)
    with (
        tempfile.TemporaryDirectory(prefix="wan-", dir=args.on) as folder,
        wan.running(profile, folder=Path(folder)) as lab,
    ):
        for work in args.work:
            for way in args.way:
                for row in rows(lab, work, way, args.mb or (1024 if args.full else 128), args.peer):
                    found.append(row)
                    if args.rows:
                        with args.rows.open("a") as f:
                            f.write(json.dumps(asdict(row)) + "\n")
                    said = f"{row.profile} {row.work} {row.way} {row.tool}: {row.seconds:.2f} s {row.note}"
                    print(said, file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--profile", nargs="*", choices=wan.PROFILES)
    parser.add_argument("--work", nargs="*", choices=WORK, default=WORK)
    parser.add_argument("--way", nargs="*", choices=("down", "up"), default=("down", "up"))
    parser.add_argument("--peer", nargs="*", choices=PEERS, default=list(PEERS))
    parser.add_argument("--mb", type=int, help="size of the large file; two files of the folder have 2/5 of it each")
    parser.add_argument("--on", type=Path, default=Path("/dev/shm"), metavar="DIR", help="where the files lie")
    parser.add_argument("--congestion", default="", help="TCP's control of both hosts: cubic; else this machine's own")
    parser.add_argument("--rows", type=Path, metavar="FILE", help="append what is measured, one object a line")
    parser.add_argument("--show", type=Path, metavar="FILE", help="print the table of such a file, and nothing more")
    args = parser.parse_args()
    if args.show:
        print("\n".join(table([Row(**json.loads(line)) for line in args.show.read_text().splitlines()])))
        return 0
    if why := wan.missing():
        print(f"no emulated link here: {why}", file=sys.stderr)
        return 1
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the link and its hosts are taken down all the same
    found: list[Row] = []
    try:
        for name in args.profile or (list(wan.PROFILES) if args.full else ["lan", "A"]):
            _one_link(wan.PROFILES[name], args, found)
    except KeyboardInterrupt:
        print("interrupted: what was measured until here", file=sys.stderr)
    absent = [t for t in args.peer if not shutil.which(t.split()[0]) and t not in ("paramiko", "fabric", "tar")]
    load = os.getloadavg()[1]
    print(f"{platform.platform()}, {os.cpu_count()} cores, load {load:.1f}; absent: {', '.join(absent) or 'none'}\n")
    print("\n".join(table(found)))
    return 1 if any(r.note for r in found if r.tool == "remote-run") else 0


if __name__ == "__main__":
    sys.exit(main())

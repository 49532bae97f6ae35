#!/usr/bin/env python3
"""What the tool costs around a workload that ends at once, against a bare rsync + ssh + rsync script.

    python scripts/bench_overhead.py [--runs 5]

On loopback and with 40 ms of round trip; the same project, the same sshd. Shows seconds (median, least, most),
the phases of one run, log-ins, and how many round trips pass before the workload starts: the time up to the
launch with the long link less that without it, divided by the round trip.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO / "tests"))

import pods  # noqa: E402
import proxy  # noqa: E402
from projects import Project  # noqa: E402

ROUND_TRIP_S = 0.04
BEFORE_THE_START = ("connect", "preflight", "guard", "upload", "launch")


def project_in(folder: Path) -> Project:
    """A small project: some code, and a workload that writes one file and ends."""
    made = Project.create(folder)
    for number in range(40):
        (folder / f"module_{number}.py").write_text(f"# module {number}\n" * 200)
    (folder / "train.py").write_text(
        "import pathlib\np = pathlib.Path('artifacts/toy')\np.mkdir(parents=True, exist_ok=True)\n"
        "(p / 'weights.bin').write_bytes(bytes(1_000_000))\n"
    )
    made.config()
    return made


def remote_run(pod: pods.TestPod, port: int, folder: Path) -> tuple[float, dict[str, float]]:
    """Seconds of one whole run, and of its phases."""
    project = project_in(folder)
    address = f"{pod.address.rpartition(':')[0]}:{port}"
    argv = project.command(
        address, "configs/toy.json", "--identity", pod.key, "--accept-new-host-key", "--python", sys.executable,
        "--remote-dir", pod.home / folder.name, "--json",
    )  # fmt: skip
    began = time.perf_counter()
    done = project.run(argv)
    took_s = time.perf_counter() - began
    assert done.returncode == 0, done.stderr
    return took_s, json.loads(done.stdout)["phases_s"]


def script(pod: pods.TestPod, port: int, folder: Path) -> float:
    """Seconds of what people do by hand; it checks no host key and proves nothing."""
    project = project_in(folder)
    to = pod.home / folder.name
    host = pod.address.rpartition(":")[0]
    ssh = f"ssh -p {port} -i {pod.key} -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"
    steps = [
        ["rsync", "-a", "--exclude", ".git", "-e", ssh, f"{project.root}/", f"{host}:{to}/"],
        [*ssh.split(), host, f"cd {to} && {sys.executable} train.py configs/toy.json"],
        ["rsync", "-a", "-e", ssh, f"{host}:{to}/artifacts/", f"{project.root}/artifacts/"],
    ]
    began = time.perf_counter()
    for step in steps:
        subprocess.run(step, check=True, stdin=subprocess.DEVNULL)
    return time.perf_counter() - began


def logins(pod: pods.TestPod) -> int:
    return (pod.folder / "log").read_text().count("Accepted publickey")


def show(name: str, seconds: list[float]) -> None:
    low, middle, high = min(seconds), statistics.median(seconds), max(seconds)
    print(f"{name:28} {middle:6.2f} s  ({low:.2f} to {high:.2f}, {len(seconds)} runs)")


def measure(pod: pods.TestPod, port: int, runs: int, folder: Path, label: str) -> dict[str, float]:
    """Both in turn, so that a machine that changes its speed changes it for both."""
    ours, theirs, phases = [], [], []
    before = logins(pod)
    for number in range(runs):
        took_s, parts = remote_run(pod, port, folder / f"{label}-run-{number}")
        ours.append(took_s)
        phases.append(parts)
    per_run = (logins(pod) - before) / runs
    for number in range(runs):
        theirs.append(script(pod, port, folder / f"{label}-script-{number}"))
    print(f"\n{label}")
    show("  remote-run", ours)
    show("  rsync + ssh + rsync", theirs)
    more_s = statistics.median(ours) - statistics.median(theirs)
    print(f"  more than the script: {more_s:.2f} s; log-ins {per_run:.0f} against 3")
    middle = {name: statistics.median(p.get(name, 0.0) for p in phases) for name in phases[0]}
    print("  phases: " + ", ".join(f"{name} {seconds:.2f} s" for name, seconds in middle.items()))
    return middle


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        pods.running(Path(folder) / "pod", options=["LogLevel VERBOSE"]) as pod,
    ):
        os.environ["HOME"] = folder
        near = measure(pod, pod.port, given.runs, Path(folder), "loopback")
        with proxy.delayed(pod.port, ROUND_TRIP_S) as port:
            far = measure(pod, port, given.runs, Path(folder), "40-ms")
    trips = sum(far.get(n, 0.0) - near.get(n, 0.0) for n in BEFORE_THE_START) / ROUND_TRIP_S
    print(f"\nround trips before the workload starts: {trips:.1f}")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Hold the supervisor to its word, many times over and under full load. Needs root (pod namespaces) and sshd.

    scripts/soak_supervisor.py deadline --rounds 20     pause and end within 2 s of the times that status had shown,
                                                        every core busy, the controller killed in half of the rounds
    scripts/soak_supervisor.py pairs --rounds 20        two controllers started together: one 0, one 4
    scripts/soak_supervisor.py network --freeze-s 300   the network silent for so long while a run is followed: the
                                                        controller ends with 0, a log that was shown has every line

A few rounds by default; prints one line a round and a summary, exit 1 when one round broke its word.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import pods
import relay
from projects import Project

WITHIN_S = 2.0
LIMIT_S = 16
SETTINGS = '[runs."*"]\ncommand = ["python", "timed.py"]\npause = "contract"\n'
TIMED = """
import json, os, signal, sys, time
asked = []
signal.signal(signal.SIGUSR1, lambda *_: asked.append(time.time()))
os.makedirs("artifacts/toy", exist_ok=True)
print("up", flush=True)
while not asked:
    sum(range(1000))
with open("artifacts/toy/state.tmp", "w") as f:
    json.dump({"asked": asked[0]}, f); f.flush(); os.fsync(f.fileno())
os.replace("artifacts/toy/state.tmp", "artifacts/toy/state.json")
while os.environ.get("DEAF") == "1":
    time.sleep(1)
sys.exit(75)
"""


@contextlib.contextmanager
def busy_cores() -> Iterator[None]:
    """Something on every core that never waits."""
    spin = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for one in spin:
            one.kill()
            one.wait()


def one_deadline(number: int) -> tuple[bool, str]:
    dead, deaf = number % 2 == 1, number % 4 >= 2
    with tempfile.TemporaryDirectory(prefix="soak-") as folder, pods.running(Path(folder) / "pod") as pod:
        project = Project.create(Path(folder) / "project")
        (project.root / "timed.py").write_text(TIMED)
        (project.root / "remote-run.toml").write_text(SETTINGS + f'env = {{ DEAF = "{int(deaf)}" }}\n')
        running = project.start(project.on(pod, project.config(), "--max-hours", LIMIT_S / 3600))
        log, status = pod.root / "runs/toy-train.log", pod.root / "runs/toy-status.json"
        pods.wait_for(lambda: log.exists() and "up" in log.read_text(), "the workload", 120)
        shown = json.loads(status.read_text())["deadline"]
        if dead:
            running.kill()
        pods.wait_for(lambda: json.loads(status.read_text())["exit"], "the end", 120)
        running.communicate(timeout=120)
        ended: dict[str, Any] = json.loads(status.read_text())["exit"]
        state = pod.root / "artifacts/toy/state.json"
        if not state.exists():
            events = (pod.root / "runs/toy-events.jsonl").read_text()
            return False, f"no state was saved: {ended}\n{log.read_text()}\n{events}"
        saved = json.loads(state.read_text())
        pause_s = saved["asked"] - shown["pause_unix_s"]
        end_s = ended["ended_unix_s"] - (shown["unix_s"] if deaf else saved["asked"])
        good = abs(pause_s) <= WITHIN_S and abs(end_s) <= WITHIN_S and ended["cause"] == "deadline"
        good = good and (dead or running.returncode == 75)
        end = "kill at the deadline" if deaf else "end after the pause"
        return good, f"controller {'killed' if dead else 'there'}: pause {pause_s:+.2f} s, {end} {end_s:+.2f} s"


def one_pair(number: int) -> tuple[bool, str]:
    with tempfile.TemporaryDirectory(prefix="soak-") as folder, pods.running(Path(folder) / "pod") as pod:
        # long enough that on a busy machine the second still meets the first
        pair = [Project.create(Path(folder) / side / "project") for side in "ab"]
        started = [one.start(one.on(pod, one.config("toy", steps=240, step_s=0.05))) for one in pair]
        said = [process.communicate(timeout=300)[0] for process in started]
        codes = sorted(process.returncode for process in started)
        return codes == [0, 4], f"exit codes {codes}" + ("" if codes == [0, 4] else f"\n{said}")


COUNTS = """
import os, time
from pathlib import Path
out = Path("artifacts/toy")
out.mkdir(parents=True, exist_ok=True)
end = time.time() + float(os.environ["LASTS_S"])
i = 0
while time.time() < end:
    print(f"line {i:06}", flush=True)
    i += 1
    time.sleep(0.1)
(out / "lines").write_text(str(i))
"""


def one_cut(freeze_s: float) -> tuple[bool, str]:
    """A network that passes nothing on for a while, and closes nothing."""
    with (
        tempfile.TemporaryDirectory(prefix="soak-") as folder,
        pods.running(Path(folder) / "pod") as pod,
        relay.to(pod.port) as way,
    ):
        project = Project.create(Path(folder) / "project")
        (project.root / "counts.py").write_text(COUNTS)
        env = f'env = {{ LASTS_S = "{freeze_s + 90:.0f}" }}'
        (project.root / "remote-run.toml").write_text(
            f'[runs."*"]\ncommand = ["python", "counts.py"]\npause = "contract"\n{env}\n'
        )
        through = {pod.address: pod.address.replace(str(pod.port), str(way.port))}
        start = [through.get(w, w) for w in project.on(pod, project.config(), "--backup-every", "30s")]
        began, running = time.monotonic(), project.start(start)
        log = pod.root / "runs/toy-train.log"
        pods.wait_for(lambda: log.exists() and "line 000020" in log.read_text(), "the workload", 60)
        shown = Path(folder) / "shown"
        with shown.open("wb") as sink:
            logs = [through.get(w, w) for w in project.at("logs", pod, "toy", "-f", "--tail", 1 << 20)]
            follows = subprocess.Popen(logs, cwd=project.root, stdout=sink, stderr=subprocess.DEVNULL)
        pods.wait_for(lambda: b"line" in shown.read_bytes(), "the log is shown", 30)
        way.freeze()
        time.sleep(freeze_s)
        way.thaw()
        thawed = time.monotonic()
        said, _ = running.communicate(timeout=600)
        follows.wait(120)
        count = int((pod.root / "artifacts/toy/lines").read_text())
        lines = [row for row in shown.read_text().splitlines() if row.startswith("line ")]
        there = log.read_bytes()
        whole = lines == [f"line {i:06}" for i in range(count)]
        home = (project.root / "runs/toy-train.log").read_bytes() == there and there.count(b"segment") == 1
        good = running.returncode == 0 and whole and home and follows.returncode == 0
        contact = [row.partition(" ")[2] for row in said.splitlines() if "contact" in row]
        text = (
            f"silent for {freeze_s:.0f} s: exit {running.returncode}, {len(lines)} of {count} lines shown, each once "
            f"and in order: {whole}, log at home equal: {home}; ended {time.monotonic() - thawed:.0f} s after the "
            f"thaw, {time.monotonic() - began:.0f} s in all; said: {' / '.join(contact)}"
        )
        return good, text if good else f"{text}\n{said}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["deadline", "pairs", "network"])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--parallel", type=int, default=2)
    parser.add_argument("--freeze-s", type=float, default=30, help="of network")
    given = parser.parse_args()
    one: Callable[[int], tuple[bool, str]] = {
        "deadline": one_deadline, "pairs": one_pair, "network": lambda _number: one_cut(given.freeze_s)
    }[given.what]  # fmt: skip
    load = busy_cores() if given.what == "deadline" else contextlib.nullcontext()
    with tempfile.TemporaryDirectory() as home, load, concurrent.futures.ThreadPoolExecutor(given.parallel) as pool:
        os.environ["HOME"] = home
        os.environ.pop("SSH_AUTH_SOCK", None)
        bad = 0
        for number, (good, text) in enumerate(pool.map(one, range(given.rounds))):
            bad += not good
            print(f"{number + 1:3} {'ok ' if good else 'BAD'} {text}", flush=True)
    print(f"{given.rounds - bad} of {given.rounds} rounds kept the word")
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())

"""The supervisor and its keeper on real processes: pauses, kills, limits, restarts, and what is left afterwards."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pods import NAMESPACED, wait_for
from projects import TRAINER
from supervised import Box, box

from remote_runner.checkpoint import header

PAUSABLE = """
import os, signal, subprocess, sys, time
{before}
asked = []
signal.signal(signal.SIGUSR1, lambda *_: asked.append(1))
print("ready", os.getpid(), flush=True)
{after}
while not asked:
    time.sleep(0.02)
print("paused: full training state saved", flush=True)
{late}
sys.exit(75)
"""


def pausable(before: str = "", after: str = "", late: str = "") -> str:
    return PAUSABLE.format(before=before, after=after, late=late)


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Box]:
    with box(tmp_path / "root") as made:
        yield made


def nothing_left(here: Box) -> bool:
    return not here.processes()


def test_a_pause_waits_for_the_handler(here: Box) -> None:
    """The interpreter takes its time; a signal before that would have killed it."""
    here.start("python", here.script("t.py", pausable(before="print('starting', flush=True); time.sleep(1.5)")))
    here.wait_for_log("starting")
    here.pause()
    ended = here.end()
    assert (ended["cause"], ended["code"], ended["signal"]) == ("paused", 75, None)
    wait_for(lambda: nothing_left(here), "the end of all processes", 5)


@pytest.mark.parametrize("wrapper", ["bash", "env", "nested"])
def test_a_wrapper_without_a_handler_is_passed_over(here: Box, wrapper: str) -> None:
    here.script("t.py", pausable())
    here.script("run.sh", f"{sys.executable} t.py\ncode=$?\necho wrapper saw $code\nexit $code\n")
    words = {
        "bash": ["bash", "run.sh"],
        "env": ["env", "A=1", "nice", sys.executable, "t.py"],
        "nested": ["sh", "-c", "bash run.sh; exit $?"],
    }[wrapper]
    here.start(*words)
    here.wait_for_log("ready")
    here.pause()
    assert here.end()["code"] == 75
    assert ("wrapper saw 75" in here.log()) == (wrapper != "env")


def test_compilers_and_data_workers_are_not_signalled(here: Box) -> None:
    """One child would die of the signal, the other inherits the handler and must not see it either."""
    after = """
compiler = subprocess.Popen(["sleep", "60"])
if os.fork() == 0:
    while os.getppid() != 1 and not asked:
        time.sleep(0.02)
    print("worker was signalled" if asked else "worker is alone", flush=True)
    os._exit(0)
"""
    late = "time.sleep(1.2); print('compiler', compiler.poll(), flush=True)"
    here.start("python", here.script("t.py", pausable(after=after, late=late)))
    here.wait_for_log("ready")
    here.pause()
    assert here.end()["code"] == 75
    assert "compiler None" in here.log()
    assert "worker was signalled" not in here.log()
    wait_for(lambda: nothing_left(here), "the end of all processes", 5)


def test_a_stop_kills_what_does_not_pause(here: Box) -> None:
    """A stubborn trainer with a child in a session of its own; nothing is left."""
    stubborn = """
import os, signal, subprocess, time
for n in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT): signal.signal(n, lambda *_: None)
subprocess.Popen(["sleep", "77"], start_new_session=True)
print("ready", flush=True)
while True: time.sleep(1)
"""
    first = here.start("python", here.script("t.py", stubborn))
    here.wait_for_log("ready")
    request = here.root / ".remote-run/request.json"
    request.write_text(json.dumps({"attempt": first["attempt"], "by": "test", "grace_s": 1.5}))
    here.pause()
    wait_for((here.root / "artifacts/x/.pause").exists, "the pause file")
    wait_for(lambda: (here.root / "artifacts/x/.pause").read_text() == "now", "the word now, half the grace gone", 5)
    ended = here.end()
    assert (ended["cause"], ended["signal"]) == ("paused", signal.SIGKILL)
    assert "no pause within" in ended["evidence"]
    wait_for(lambda: nothing_left(here), "the end of all processes", 5)
    assert not (here.root / "artifacts/x/.pause").exists()


def test_then_is_skipped_after_a_pause_and_done_after_success(here: Box) -> None:
    then = [["sh", "-c", "echo evaluated"], ["sh", "-c", "echo measured"]]
    here.start("python", here.script("t.py", pausable()), then=then)
    here.wait_for_log("ready")
    here.pause()
    assert here.end()["cause"] == "paused"
    assert "\nevaluated" not in here.log()
    here.lose()
    here.start("sh", "-c", "echo trained", then=then, attempt="a2")
    wait_for(lambda: here.status()["attempt"] == "a2" and here.status()["exit"], "the second end")
    assert here.status()["exit"]["cause"] == "done"
    assert here.log().index("\ntrained") < here.log().index("\nevaluated") < here.log().index("\nmeasured")


LEAVES_A_WORKER = """
import os, subprocess, time
subprocess.Popen(["sleep", "88"], start_new_session=True)  # not in our group, dies with nobody
print("ready", flush=True)
while True: time.sleep(1)
"""


def test_killing_the_supervisor_leaves_no_orphan_and_a_record(here: Box) -> None:
    here.start("python", here.script("t.py", LEAVES_A_WORKER))
    here.wait_for_log("ready")
    here.kill("supervise")
    ended = here.end(10)
    assert ended["cause"] == "supervisor-lost"
    assert "SIGKILL" in ended["evidence"]
    wait_for(lambda: nothing_left(here), "the end of all processes", 5)
    assert here.lock_is_free()


def test_killing_the_keeper_costs_the_net_alone(here: Box) -> None:
    here.start("python", here.script("t.py", pausable()))
    here.wait_for_log("ready")
    here.kill("keep")
    wait_for(lambda: here.events("keeper gone"), "the supervisor notices", 10)
    assert not here.lock_is_free()
    here.pause()
    assert here.end()["code"] == 75
    wait_for(here.lock_is_free, "the lock is free", 5)


def test_killing_both_ends_the_trainer(here: Box) -> None:
    here.start("python", here.script("t.py", pausable()))
    here.wait_for_log("ready")
    for pid in (here.pid("keep"), here.pid("supervise")):
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: nothing_left(here), "the end of all processes", 5)
    assert here.lock_is_free()
    assert here.status()["exit"] is None


def test_the_deadline_ends_a_tree_that_does_not_listen(here: Box) -> None:
    deaf = "trap '' USR1 TERM INT; sleep 99 & echo ready; while :; do sleep 1; done"
    first = here.start("bash", "-c", deaf, max_s=4.0)
    ended = here.end(20)
    assert ended["cause"] == "deadline"
    assert abs(ended["ended_unix_s"] - first["deadline"]["unix_s"]) < 2
    pause = here.events("pausing")[0]
    assert pause["cause"] == "deadline"
    assert abs(pause["t"] - first["deadline"]["pause_unix_s"]) < 2
    wait_for(lambda: nothing_left(here), "the end of all processes", 5)


@pytest.mark.parametrize(
    ("how", "cause", "code", "number", "says"),
    [
        ("os.kill(os.getpid(), 9)", "killed", None, 9, "out of memory?"),
        ("os.kill(os.getpid(), 11)", "killed", None, 11, "SIGSEGV"),
        ("os._exit(137)", "failed", 137, None, "exit code 137"),
        ("os._exit(3)", "failed", 3, None, "exit code 3"),
        ("os._exit(65)", "non-finite", 65, None, ""),
        ("os._exit(74)", "cannot-save", 74, None, ""),
        ("os._exit(78)", "refused", 78, None, ""),
        ("os._exit(75)", "preempted", 75, None, "by itself"),
    ],
)
def test_ends_are_told_apart(here: Box, how: str, cause: str, code: int | None, number: int | None, says: str) -> None:
    here.start("python", "-c", f"import os; {how}")
    ended = here.end()
    assert (ended["cause"], ended["code"], ended["signal"]) == (cause, code, number)
    assert says in ended["evidence"]


def test_a_program_that_is_not_there_is_told(here: Box) -> None:
    here.start("/no/such/program")
    ended = here.end()
    assert (ended["cause"], ended["code"]) == ("failed", 127)
    assert "/no/such/program" in ended["evidence"]


def test_memory_over_the_limit_is_a_kill_with_figures(here: Box) -> None:
    """The memory is a grandchild's: the tree counts, not the leader."""
    greedy = "import time; held = bytearray(150_000_000); print('held', flush=True); time.sleep(60)"
    here.start("sh", "-c", f'{sys.executable} -c "{greedy}"; true', memory_limit_mb=100)
    here.wait_for_log("held")
    ended = here.end(10)
    assert ended["cause"] == "memory"
    assert "the limit is 100 MB" in ended["evidence"]
    assert float(ended["evidence"].split("held ")[1].split(" MB")[0]) > 150
    wait_for(lambda: nothing_left(here), "the end of all processes", 5)


@pytest.fixture
def small_group(tmp_path: Path) -> Iterator[Path]:
    """A cgroup with 80 MB: v1's memory controller, else v2's."""
    for top, limit in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
        group = Path(top) / f"remote-run-test-{os.getpid()}"
        try:
            group.mkdir()
            (group / limit).write_text("80000000")
        except OSError:
            continue
        yield group
        wait_for(lambda group=group: not (group / "cgroup.procs").read_text().strip(), "an empty cgroup", 10)
        group.rmdir()
        return
    pytest.skip("needs root and a cgroup with a memory controller")


def test_a_kill_by_the_kernel_for_memory_is_proven(tmp_path: Path, small_group: Path) -> None:
    enter = ("sh", "-c", f'echo $$ > {small_group}/cgroup.procs; exec "$@"', "sh")
    greedy = "import os; print('ready', flush=True); held = [os.urandom(1 << 20) for _ in range(300)]"
    with box(tmp_path / "root", before=enter) as here:
        here.start("python", "-c", greedy)
        ended = here.end()
        assert (ended["cause"], ended["signal"]) == ("out-of-memory", 9)
        assert "oom_kill 0 -> 1" in ended["evidence"]
    with box(tmp_path / "other", before=enter) as here:  # the same signal without the kernel's count
        here.start("sh", "-c", "kill -9 $$")
        assert here.end()["cause"] == "killed"


@pytest.mark.skipif(not NAMESPACED, reason="needs root to mount a small disk")
def test_a_disk_about_to_fill_is_a_warning_then_a_pause(tmp_path: Path) -> None:
    fill = """
state = open("artifacts/x/model.bin", "wb")
while not asked and os.statvfs(".").f_bavail * os.statvfs(".").f_frsize > 2e6:
    state.write(bytes(250_000)); state.flush(); time.sleep(0.05)
"""
    (tmp_path / "disk").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=40m", "none", tmp_path / "disk"], check=True)
    try:
        with box(tmp_path / "disk/root") as here:
            here.start("python", here.script("t.py", pausable(after=fill)))
            wait_for(lambda: here.events("disk"), "the warning")
            ended = here.end()
            assert (ended["cause"], ended["code"]) == ("disk", 75)
            assert "MB free" in here.events("pausing")[0]["why"]
            assert "about to fill" in here.status()["warning"]
    finally:
        subprocess.run(["umount", "-l", tmp_path / "disk"], check=True)


@pytest.mark.skipif(not NAMESPACED, reason="needs root to mount a small disk")
def test_a_full_disk_does_not_end_the_supervisor(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=20m", "none", tmp_path / "disk"], check=True)
    try:
        with box(tmp_path / "disk/root") as here:
            here.start("sh", "-c", "head -c 40000000 /dev/zero > artifacts/x/junk; sleep 7; echo over; exit 3")
            wait_for(lambda: os.statvfs(here.root).f_bavail == 0, "a full disk")
            wait_for(lambda: "sleep" not in {a[0] for a in here.processes().values()}, "the workload's end", 20)
            time.sleep(0.5)  # the supervisor is trying to write its end
            (here.root / "artifacts/x/junk").unlink()
            assert here.end(10)["code"] == 3
    finally:
        subprocess.run(["umount", "-l", tmp_path / "disk"], check=True)


def crashing(here: Box, config: str) -> None:
    here.script("train.py", TRAINER)
    (here.root / "configs").mkdir()
    (here.root / "configs/x.json").write_text(config)


def test_a_crash_is_resumed_where_restarts_are_left(here: Box) -> None:
    crashing(here, '{"seed": 1, "steps": 20, "fail_at": 12}')
    words = ["python", "train.py", "configs/x.json"]
    mended = f"sed -i 's/, \"fail_at\": 12//' configs/x.json; exec {sys.executable} train.py configs/x.json --resume"
    here.start(*words, resume_command=["sh", "-c", mended], restarts=2, preserve=True)
    ended = here.end()
    assert ended["cause"] == "done"
    restart = here.events("restart")
    assert [(r["number"], r["at_step"], r["after"]["code"]) for r in restart] == [(1, 10, 3)]
    assert (here.status()["segment"], here.status()["restarts"]) == (2, 1)
    assert header.describe(here.root / "artifacts/x/toy-training.safetensors")["step"] == 20
    (kept,) = (here.root / "artifacts").glob("x-interrupted-*")
    assert header.describe(kept / "toy-training.safetensors")["step"] == 10
    digest = hashlib.sha256((kept / "toy-training.safetensors").read_bytes()).hexdigest()
    assert here.events("preserved")[0]["sha256"]["artifacts/x/toy-training.safetensors"] == digest


def test_a_crash_is_never_resumed_twice_from_one_step(here: Box) -> None:
    crashing(here, '{"seed": 1, "steps": 20, "fail_at": 12}')
    here.start("python", "train.py", "configs/x.json", restarts=5)
    ended = here.end()
    assert (ended["cause"], ended["code"]) == ("failed", 3)
    assert len(here.events("restart")) == 1  # 0 -> 10, then again no further than 10
    assert "no verified snapshot beyond" in here.events("not restarted")[0]["why"]


def test_a_refusal_is_never_restarted(here: Box) -> None:
    crashing(here, '{"seed": 1, "steps": 20, "fail_at": 12, "fail_with": 65}')
    here.start("python", "train.py", "configs/x.json", restarts=5)
    assert here.end()["cause"] == "non-finite"
    assert not here.events("restart")


def test_a_successor_keeps_the_deadline(here: Box) -> None:
    crashing(here, '{"seed": 1, "steps": 100000, "step_s": 0.02}')
    first = here.start("python", "train.py", "configs/x.json", restarts=1, max_s=20.0, preserve=True)
    wait_for((here.root / "artifacts/x/toy-training.safetensors").exists, "a snapshot")
    here.kill("supervise")
    wait_for(lambda: here.events("successor"), "the successor")
    wait_for(lambda: (here.status()["segment"], here.status()["state"]) == (2, "running"), "training again")
    again = here.status()
    assert again["supervisor"]["pid"] != first["supervisor"]["pid"]
    assert abs(again["deadline"]["unix_s"] - first["deadline"]["unix_s"]) < 0.5
    assert list((here.root / "artifacts").glob("x-interrupted-*/toy-training.safetensors"))
    assert (again["segment"], again["restarts"]) == (2, 1)
    ended = here.end(30)
    assert (ended["cause"], ended["code"]) == ("deadline", 75)
    assert ended["ended_unix_s"] < first["deadline"]["unix_s"] + 1


def test_the_workload_holds_nothing_of_ours(here: Box) -> None:
    """Its own session and group, stdin from nowhere, both streams in the log, no lock and no pipe."""
    here.start("python", here.script("t.py", pausable()))
    here.wait_for_log("ready")
    trainer = here.pid("t.py")
    links = {fd.name: str(fd.readlink()) for fd in Path(f"/proc/{trainer}/fd").iterdir()}
    log = str(here.root / "runs/x-train.log")
    assert links == {"0": "/dev/null", "1": log, "2": log}
    assert os.getsid(trainer) == os.getpgid(trainer) == trainer
    ours = {int(fd.name): str(fd.readlink()) for fd in Path(f"/proc/{here.pid('supervise')}/fd").iterdir()}
    assert ours[1] == ours[2] == str(here.root / ".remote-run/supervisor.log")
    assert not [link for link in ours.values() if link.startswith(("socket:", "/dev/pts"))]

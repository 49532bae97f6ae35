"""`remote-run backup` on a real pod: once, from cron, with the pod away, from a machine that has no project."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from pods import NAMESPACED, TestPod, wait_for
from projects import Project

from remote_runner import standing, vault
from remote_runner.stores import open_store
from remote_runner.vault import Place


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def stored(folder: Path, project: str = "project") -> list[dict[str, Any]]:
    place = Place(store=open_store(str(folder), folder), project=project, name="toy", keep=100)
    assert not any(vault.damaged(place, m) for m in vault.manifests(place))
    return vault.manifests(place)


def detach(project: Project, pod: TestPod, **values: object) -> None:
    config = project.config(**{"steps": 100_000, "step_s": 0.05, **values})
    done = project.run(project.on(pod, config, "--detach"))
    assert done.returncode == 0, done.stderr
    wait_for((pod.root / "artifacts/toy/toy-training.safetensors").exists, "the first snapshot")


def test_once_by_address_then_by_name_quietly(project: Project, pod: TestPod, tmp_path: Path) -> None:
    detach(project, pod)
    done = project.run(project.at("backup", pod, "configs/toy.json", "--to", tmp_path / "kept"))
    assert done.returncode == 0, done.stderr
    first = stored(tmp_path / "kept")
    snapshot = pod.root / "artifacts/toy/toy-training.safetensors"
    before = snapshot.stat().st_ino
    wait_for(lambda: snapshot.stat().st_ino != before, "another snapshot")
    done = project.run(project.command("backup", "toy"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    second = stored(tmp_path / "kept")
    assert len(second) == 2
    assert second[-1]["newest"]["step"] > first[-1]["newest"]["step"]
    done = project.run(project.at("status", pod, "toy", "--json"))
    at_risk = json.loads(done.stdout)["risk"]
    assert at_risk["step"] is None, "the status looks into the store that the run was started with"
    assert project.run(project.at("stop", pod, "toy")).returncode == 0


def test_a_machine_without_the_project_needs_the_pod_alone(project: Project, pod: TestPod, tmp_path: Path) -> None:
    detach(project, pod, steps=30)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    bare = Project(elsewhere)
    refused = bare.run(bare.at("backup", pod, "toy", "--to", tmp_path / "kept"))
    assert refused.returncode == 2
    assert "--project" in refused.stderr
    done = bare.run(bare.at("backup", pod, "toy", "--to", tmp_path / "kept", "--project", "project"))
    assert done.returncode == 0, done.stderr
    assert stored(tmp_path / "kept")
    assert bare.run(bare.command("backup", "toy")).returncode == 0
    wrong = bare.run(bare.at("backup", pod, "other", "--to", tmp_path / "kept", "--project", "project"))
    assert wrong.returncode == 2
    assert "has no run 'other'; there: toy" in wrong.stderr


def test_a_pod_that_is_away_is_said_once(project: Project, pod: TestPod, tmp_path: Path) -> None:
    detach(project, pod)
    assert project.run(project.at("backup", pod, "toy", "--to", tmp_path / "kept")).returncode == 0
    pod.lose()
    first = project.run(project.command("backup", "toy"))
    assert first.returncode == 6
    assert first.stderr.count("\n") == 1
    assert "no contact" in first.stderr
    again = project.run(project.command("backup", "toy"))
    assert (again.returncode, again.stderr) == (6, "")
    said = project.run(project.command("status", "toy"))
    assert said.returncode == 6
    assert "at risk: everything, there is no backup yet" in said.stdout, "of the store that the run was started with"
    assert f"--resume --abandon 127.0.0.1:{pod.port}" in said.stderr
    pod.start()
    back = project.run(project.command("backup", "toy"))
    assert (back.returncode, back.stderr) == (0, "")


def test_one_under_way_makes_the_next_step_aside(project: Project, pod: TestPod, tmp_path: Path) -> None:
    detach(project, pod)
    assert project.run(project.at("backup", pod, "toy", "--to", tmp_path / "kept")).returncode == 0
    with (standing.folder() / "toy.lock").open("r+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        done = project.run(project.command("backup", "toy"))
    assert done.returncode == 4
    assert done.stderr.count("\n") == 1
    assert "skipped: the backup before is still under way" in done.stderr
    assert len(stored(tmp_path / "kept")) == 1


def test_who_attaches_copies_at_once(project: Project, pod: TestPod, tmp_path: Path) -> None:
    """However long nobody followed: the interval does not begin anew."""
    detach(project, pod)
    controller = project.start(
        project.at("attach", pod, "toy", "--backup-to", tmp_path / "kept", "--backup-every", "1h")
    )
    wait_for(lambda: (tmp_path / "kept").exists() and stored(tmp_path / "kept"), "a backup", 30)
    assert project.run(project.at("stop", pod, "toy")).returncode == 0
    controller.communicate(timeout=60)


def test_a_store_that_refuses_is_one_line_and_8(project: Project, pod: TestPod, tmp_path: Path) -> None:
    detach(project, pod)
    (tmp_path / "kept").write_text("a file where the folder should be")
    done = project.run(project.at("backup", pod, "toy", "--to", tmp_path / "kept"))
    assert done.returncode == 8
    assert "Traceback" not in done.stderr
    assert "kept" in done.stderr


def test_a_replacement_pod_is_found_by_the_name(project: Project, pod: TestPod, make_pod: Any, tmp_path: Path) -> None:
    detach(project, pod)
    assert project.run(project.at("backup", pod, "toy", "--to", tmp_path / "kept")).returncode == 0
    pod.lose()
    (tmp_path / "second").mkdir()
    for name in ("id", "id.pub"):  # one user, one key, two pods
        shutil.copy(pod.folder / name, tmp_path / "second" / name)
    second = make_pod("second")
    done = project.run(
        project.on(
            second, "configs/toy.json", "--resume", "--detach", "--backup-to", tmp_path / "kept",
            "--abandon", f"127.0.0.1:{pod.port}",
        )
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    before = len(stored(tmp_path / "kept"))
    # the key comes from the order, the address and the host key from the project's record
    done = project.run(project.command("backup", "toy"))
    assert done.returncode == 0, done.stderr
    assert len(stored(tmp_path / "kept")) == before + 1


CRON = r"""
set -eu
mkdir -p /root/.local/state && mount --bind "$1" /root/.local/state
mount -t tmpfs none /var/spool/cron && mkdir -m 1730 /var/spool/cron/crontabs
mount -t tmpfs none /run
echo '7 7 * * * true # mine' | crontab -
shift
"$@" --install-cron '* * * * *' >/dev/null
"$@" --install-cron '* * * * *'
crontab -l
exec cron -f
"""


def test_a_real_cron_backs_up_until_the_run_is_over(
    project: Project, pod: TestPod, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.getuid() != 0 or shutil.which("cron") is None:
        pytest.skip("needs root and Debian's cron")
    monkeypatch.delenv("XDG_STATE_HOME")
    # an end within the first minute: the tick after it sees the run over, and takes its own line out
    detach(project, pod, steps=200)
    home = tmp_path / "cron-home"
    home.mkdir()
    argv = project.at("backup", pod, "toy", "--to", tmp_path / "kept")
    crontab = tmp_path / "out"
    with crontab.open("w") as out:
        cron = subprocess.Popen(
            [*NAMESPACED, "--mount", "sh", "-c", CRON, "sh", home, *argv],
            cwd=project.root, env={**os.environ, "HOME": "/root", "PYTHONPATH": ""}, stdout=out,
            stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    try:
        wait_for(lambda: "# mine" in crontab.read_text() or cron.poll() is not None, "the crontab", 60)
        assert cron.poll() is None, crontab.read_text()
        lines = crontab.read_text().splitlines()
        assert sum("remote-run backup toy" in line for line in lines) == 2, "echoed once, listed once"
        proofs = len(stored(tmp_path / "kept"))
        log = home / "remote-run/backups/toy.log"
        wait_for(lambda: log.exists() and "no more backups" in log.read_text(), "cron's last run", 150)
        assert len(stored(tmp_path / "kept")) > proofs
        assert (stored(tmp_path / "kept")[-1]["newest"] or {})["step"] == 200
        left = subprocess.run(
            ["nsenter", "-t", str(_inner(cron.pid)), "-m", "crontab", "-l"], capture_output=True, text=True, check=True
        ).stdout
        assert "# mine" in left
        assert "remote-run" not in left
    finally:
        cron.send_signal(signal.SIGKILL)
        cron.wait()


def _inner(pid: int) -> int:
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def test_status_says_what_is_at_risk(project: Project, pod: TestPod, tmp_path: Path) -> None:
    config = project.config(steps=100_000, step_s=0.05)
    controller = project.start(project.on(pod, config, "--backup-to", tmp_path / "kept", "--backup-every", "2s"))
    steps = lambda: [(m["newest"] or {}).get("step") for m in stored(tmp_path / "kept")]  # noqa: E731
    wait_for(lambda: (tmp_path / "kept").exists() and len(set(steps())) >= 3, "backups of two snapshots, after none")
    seen = json.loads(project.run(project.at("status", pod, "toy", "--json")).stdout)
    at_risk = seen["risk"]
    assert at_risk["every_s"] == 2.0
    assert 0 < at_risk["snapshot_every_s"] < 5
    terms = ("every_s", "snapshot_every_s", "save_s", "transfer_s")
    assert at_risk["bound_s"] == pytest.approx(sum(at_risk[t] for t in terms))
    assert at_risk["steps"] == max(0, seen["status"]["progress"]["step"] - at_risk["step"])
    text = project.run(project.at("status", pod, "toy")).stdout
    assert "at risk: " in text
    assert "bound: " in text
    assert project.run(project.at("stop", pod, "toy")).returncode == 0
    controller.communicate(timeout=60)


@pytest.mark.parametrize(("command", "code"), [("backups", 0), ("prune", 2), ("restore", 2)])
def test_a_run_that_the_store_has_nothing_of_is_named(
    project: Project, tmp_path: Path, command: str, code: int
) -> None:
    done = project.run(project.command(command, "nope", "--from", (tmp_path / "mistyped").as_uri()))
    assert (done.returncode, done.stdout) == (code, "")
    assert "no backup of nope in the store" in done.stderr
    assert not (tmp_path / "mistyped").exists()

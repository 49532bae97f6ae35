"""Bringing a run home: nothing good is lost to something older, and what changes meanwhile comes whole."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from pathlib import Path

import pytest
import rotating
from pods import TestPod
from projects import Project

from remote_runner import download, rates, ssh
from remote_runner.access import Access
from remote_runner.agent import Agent
from remote_runner.checkpoint import header

LATEST = "artifacts/run/generator-training.safetensors"


class Home:
    """A pod's root with files, and what is here."""

    def __init__(self, project: Project, pod: TestPod) -> None:
        self.root, self.pod_root = project.root, pod.home / "run-root"
        self.pod_root.mkdir()
        self.pod = ssh.connect(
            Access(target=pod.address, identity=pod.key, accept_new_host_key=True).endpoint(self.root)
        )
        self.agent = Agent(self.pod, self.pod_root)  # type: ignore[arg-type]
        self.said: list[str] = []

    def bring(self, keep: str = "") -> download.Home:
        return download.bring_home(self.agent, self.root, "run", ["artifacts/run"], self.said.append, keep)


def test_what_is_further_here_is_preserved_first(project: Project, pod: TestPod) -> None:
    at = Home(project, pod)
    rotating.save(at.root, "generator", 50)
    rotating.save(at.pod_root, "generator", 20)
    assert at.bring().fetched == 1
    assert header.describe(at.root / LATEST)["step"] == 20
    kept = next((at.root / "artifacts").glob("run-interrupted-*"))
    assert header.verify_digests(kept / "generator-training.safetensors")["step"] == 50
    assert "further than the pod's state" in at.said[0]


def test_a_state_of_another_lineage_is_preserved_first(project: Project, pod: TestPod) -> None:
    at = Home(project, pod)
    rotating.save(at.root, "generator", 50, seed=1)
    rotating.save(at.pod_root, "generator", 60, seed=2)
    at.bring()
    kept = next((at.root / "artifacts").glob("run-interrupted-*"))
    assert header.verify_digests(kept / "generator-training.safetensors")["step"] == 50
    assert "another lineage" in at.said[0]


def test_going_on_is_no_reason_to_preserve(project: Project, pod: TestPod) -> None:
    at = Home(project, pod)
    rotating.save(at.root, "generator", 50)
    rotating.save(at.pod_root, "generator", 60)
    at.bring()
    assert not list((at.root / "artifacts").glob("run-interrupted-*"))


def test_a_damaged_file_does_not_replace_the_good_one_here(project: Project, pod: TestPod) -> None:
    at = Home(project, pod)
    rotating.save(at.pod_root, "generator", 60)
    at.bring()
    bad = bytearray((at.pod_root / LATEST).read_bytes())
    bad[-1] ^= 1
    (at.pod_root / LATEST).write_bytes(bad)
    home = at.bring()
    assert list(home.unverified) == [LATEST]
    assert header.verify_digests(at.root / LATEST)["step"] == 60


def test_a_second_download_fetches_what_is_missing_alone(project: Project, pod: TestPod) -> None:
    at = Home(project, pod)
    folder = at.pod_root / "artifacts/run"
    folder.mkdir(parents=True)
    for number in range(20):
        (folder / f"part-{number}").write_bytes(os.urandom(1000))
    assert at.bring().fetched == 20
    for number in (3, 7):
        (at.root / f"artifacts/run/part-{number}").unlink()
    (at.root / "artifacts/run/part-9").write_bytes(b"damaged here later")
    assert at.bring().fetched == 3


def test_the_rule_leaves_old_checkpoints_and_says_so(project: Project, pod: TestPod) -> None:
    at = Home(project, pod)
    folder = at.pod_root / "artifacts/run"
    folder.mkdir(parents=True)
    for step in (90, 200, 1000):
        (folder / f"step_{step}.dat.bin").write_bytes(b"x" * step)
        (folder / f"step_{step}.bin").write_bytes(b"x" * step)
    (folder / "notes.txt").write_text("x")
    home = at.bring("newest:1")
    assert "artifacts/run/step_90.bin" in home.stayed
    assert (at.root / "artifacts/run/step_1000.bin").exists()
    assert (at.root / "artifacts/run/notes.txt").exists()
    assert not (at.root / "artifacts/run/step_200.bin").exists()
    assert "stay on the pod" in at.said[0]


def test_a_file_written_in_place_meanwhile_comes_in_one_version(project: Project, pod: TestPod) -> None:
    """Each version is one byte repeated: a mixture would show."""
    at = Home(project, pod)
    folder = at.pod_root / "artifacts/run"
    folder.mkdir(parents=True)
    path, stop = folder / "table.dat", threading.Event()
    path.write_bytes(b"a" * 6_000_000)

    def rewrite() -> None:
        for letter in b"bcdefghijklmnop":
            with path.open("r+b") as f:
                for _ in range(6):
                    f.write(bytes([letter]) * 1_000_000)
                    f.flush()
            if stop.is_set():
                return

    writer = threading.Thread(target=rewrite)
    writer.start()
    try:
        at.bring()
    finally:
        writer.join()
        stop.set()
    at.bring()
    content = (at.root / "artifacts/run/table.dat").read_bytes()
    assert len(set(content)) == 1
    assert content == path.read_bytes()


def test_links_devices_and_pipes_are_told_of_and_never_followed(project: Project, pod: TestPod, tmp_path: Path) -> None:
    at = Home(project, pod)
    folder = at.pod_root / "artifacts/run"
    folder.mkdir(parents=True)
    (tmp_path / "outside").write_text("not yours")
    (folder / "link").symlink_to(tmp_path / "outside")
    (folder / "up").symlink_to("../..")
    os.mkfifo(folder / "pipe")
    (folder / "real").write_text("x")
    home = at.bring()
    assert sorted(home.left) == [f"artifacts/run/{n}" for n in ("link", "pipe", "up")]
    assert sorted(p.name for p in (at.root / "artifacts/run").iterdir()) == ["real"]


def test_awkward_names_arrive_and_what_is_no_utf8_is_named(project: Project, pod: TestPod) -> None:
    at = Home(project, pod)
    folder = at.pod_root / "artifacts/run"
    folder.mkdir(parents=True)
    names = ["a b", "-rf", "new\nline", "$(touch PWNED)", "back\\slash", "caf\u00e9", "cafe\u0301", "A", "a", "*"]
    for number, name in enumerate(names):
        (folder / name).write_bytes(b"x" * number)
    (Path(os.fsdecode(os.fsencode(folder) + b"/bad-\xff"))).write_bytes(b"x")
    home = at.bring()
    here = {p.name: p.stat().st_size for p in (at.root / "artifacts/run").iterdir()}
    assert here == {name: number for number, name in enumerate(names)}
    assert home.left in (["artifacts/run/bad-\\xff"], ["artifacts/run/bad-\\udcff"])


def test_a_full_disk_here_is_said_and_the_rest_comes_later(project: Project, pod: TestPod, tmp_path: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("mounting a small disk needs root")
    at = Home(project, pod)
    folder = at.pod_root / "artifacts/run"
    folder.mkdir(parents=True)
    (folder / "big").write_bytes(os.urandom(10_000_000))
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", small], check=True)
    try:
        at.root = small
        try:
            at.bring()
            raise AssertionError("a 10 MB file fits on no 4 MB disk")
        except download.Unverified as e:
            assert "10.0 MB are to come" in str(e)
            assert str(small) in str(e)
        assert not (small / "artifacts/run/big").exists()
        subprocess.run(["mount", "-o", "remount,size=64m", small], check=True)
        assert at.bring().fetched == 1
        assert (small / "artifacts/run/big").read_bytes() == (folder / "big").read_bytes()
    finally:
        shutil.rmtree(small / "artifacts", ignore_errors=True)
        subprocess.run(["umount", small], check=True)


def test_a_folder_that_is_no_run_of_ours(project: Project, pod: TestPod, tmp_path: Path) -> None:
    theirs = pod.home / "workspace/checkpoints"
    (theirs / "deep").mkdir(parents=True)
    for step in (90, 200):
        (theirs / f"deep/step {step}.dat").write_bytes(os.urandom(step * 1000))
    before = sorted(p.relative_to(pod.home).as_posix() for p in pod.home.rglob("*"))
    argv = project.command(
        "download", pod.address, "--from", theirs, "--to", tmp_path / "got", "--identity", pod.key,
        "--accept-new-host-key",
    )  # fmt: skip
    done = project.run(argv)
    assert done.returncode == 0, done.stderr
    assert "2 files verified, 2 of them fetched" in done.stdout
    for step in (90, 200):
        name = f"deep/step {step}.dat"
        assert (tmp_path / "got/checkpoints" / name).read_bytes() == (theirs / name).read_bytes()
    assert sorted(p.relative_to(pod.home).as_posix() for p in pod.home.rglob("*")) == before, "nothing is written there"
    assert "0 of them fetched" in project.run(argv).stdout
    assert project.run(project.command("verify", tmp_path / "got/checkpoints")).returncode == 0
    (tmp_path / "got/checkpoints/deep/step 90.dat").write_bytes(b"later")
    assert project.run(project.command("verify", tmp_path / "got/checkpoints")).returncode == 7
    refused = project.run([*argv[:5], "relative", *argv[6:]])
    assert refused.returncode == 2


def sparse(path: Path, size: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as f:
        f.truncate(size)


def test_beyond_fifty_gigabytes_the_newest_two_and_the_best_come_and_the_rest_is_listed(
    project: Project, pod: TestPod, tmp_path: Path
) -> None:
    theirs = pod.home / "workspace/checkpoints"
    for name, size in (("step_1.pt", 51 << 30), ("best_1.pt", 10), ("step_2.pt", 20), ("step_3.pt", 30)):
        sparse(theirs / name, size)
    (theirs / "log.txt").write_text("x")
    words = [pod.address, "--from", theirs, "--to", tmp_path / "got"]
    argv = project.command("download", *words, "--identity", pod.key, "--accept-new-host-key")
    done = project.run(argv)
    assert done.returncode == 0, done.stderr
    assert "1 checkpoints stay on the pod, 54.76 GB; download --keep all brings them" in done.stderr
    assert "54760.8 MB  checkpoints/step_1.pt" in done.stderr
    here = {p.name for p in (tmp_path / "got/checkpoints").iterdir()}
    assert here == {"best_1.pt", "step_2.pt", "step_3.pt", "log.txt", "SHA256SUMS"}
    asked = on_terminal([*argv, "--keep", ""], "n\n", project.root)
    assert "5 files, 55 GB: bring all of them? [y/N]" in asked
    assert "1 checkpoints stay on the pod" in asked


def on_terminal(argv: list[str], answer: str, cwd: Path) -> str:
    """Run a command whose stdin is a terminal; all that it says."""
    ours, theirs = os.openpty()
    try:
        os.write(ours, answer.encode())
        done = subprocess.run(
            argv, cwd=cwd, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60,
            check=True,
        )  # fmt: skip
    finally:
        os.close(ours)
        os.close(theirs)
    return done.stdout


def test_a_large_transfer_first_says_bytes_time_and_cost(
    project: Project, pod: TestPod, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rates, "ANNOUNCE_BYTES", 4_000_000)
    at = Home(project, pod)
    folder = at.pod_root / "artifacts/run"
    folder.mkdir(parents=True)
    (folder / "one.dat").write_bytes(os.urandom(5_000_000))
    download.bring_home(at.agent, at.root, "run", ["artifacts/run"], at.said.append, "", None, 1.5)
    assert at.said[0] == (
        "1 files, 0.0 GB are to come here: about 0:00 at 50.0 MB/s (a guess: none was measured yet), "
        "0.00 USD of pod time"
    )
    (folder / "two.dat").write_bytes(os.urandom(5_000_000))
    at.said.clear()
    at.bring()
    assert "(as the last one), the pod's price is not known" in at.said[0]


def test_the_settings_say_which_checkpoints_come(project: Project, pod: TestPod) -> None:
    settings = project.root / "remote-run.toml"
    settings.write_text(settings.read_text() + '\ndownload = { keep = "newest:1" }\n')
    trainer = project.root / "train.py"
    more = 'for n in (10, 20, 30):\n    (folder / f"weights_{n}.bin").write_bytes(b"\\0" * n)\n'
    trainer.write_text(trainer.read_text() + more)
    done = project.run(project.on(pod, project.config()))
    assert done.returncode == 0, done.stderr
    assert "2 checkpoints stay on the pod" in done.stderr
    assert sorted(p.name for p in (project.root / "artifacts/toy").glob("*.bin")) == ["weights_30.bin"]
    (pod.root / "artifacts/toy/weights_40.bin").write_bytes(b"\0")
    assert project.run(project.at("download", pod, "toy")).returncode == 0
    assert (project.root / "artifacts/toy/weights_40.bin").exists()

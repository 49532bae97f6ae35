"""An ordinary repository on a provider's stock image: the first run works, is killed, and goes on."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
import stock_image
from pods import wait_for
from projects import Project
from stock_image import StockPod
from wheels import wheel

REPO = Path(__file__).parent / "pytorch_yaml"


@pytest.fixture
def stock(tmp_path: Path) -> StockPod:
    if why := stock_image.missing():
        pytest.skip(why)
    pod = StockPod(tmp_path / "pod")
    pod.start()
    return pod


def inside(pod: StockPod, command: str) -> subprocess.CompletedProcess[str]:
    """What a login there says, without this tool."""
    trust = ["-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"]
    ssh = ["ssh", "-p", str(pod.port), "-i", str(pod.key), *trust]
    return subprocess.run([*ssh, "root@127.0.0.1", command], capture_output=True, text=True, timeout=60)


def test_the_first_run_works_is_killed_and_goes_on(project: Project, stock: StockPod) -> None:
    try:
        _is_what_it_says(stock)
        shutil.rmtree(project.root)
        shutil.copytree(REPO, project.root)
        (project.root / "wheels").mkdir()
        wheel(project.root / "wheels", "tiny", "1.5", requires="torch>=2")
        (project.root / "requirements.txt").write_text("--no-index\n--find-links wheels\ntiny\n")
        assert project.run(project.command("init")).returncode == 0
        settings = project.root / "remote-run.toml"
        settings.write_text(settings.read_text() + 'probe = ["torch"]\n')
        config = "configs/small.yaml"
        controller = project.start(project.on(stock, config, "--max-hours", "1h", python=False))
        snapshots = lambda: len(list(stock.root.glob("outputs/small/ckpt_*.pt"))) >= 2  # noqa: E731
        wait_for(lambda: snapshots() or controller.poll() is not None, "two snapshots", 180)
        assert controller.poll() is None, controller.communicate()[0]
        trainer = next(pid for pid, argv in stock.commands().items() if "train.py" in argv)
        os.kill(trainer, signal.SIGKILL)
        out, _ = controller.communicate(timeout=60)
        assert controller.returncode == 1, out
        assert "a network disk" in out
        done = project.run(project.on(stock, config, "--resume", "--json", python=False))
        assert done.returncode == 0, done.stderr + done.stdout
        assert "resuming from pod: snapshot step" in done.stderr
        assert json.loads(done.stdout)["cause"] == "done"
        log = (project.root / "runs/small-train.log").read_text()
        assert "on /venv/main/bin/python {'torch': " in log
        assert (project.root / "outputs/small/final.pt").exists()
        assert log.count("set-up: $ ") == 1  # the second start installs nothing
    finally:
        stock.lose()


def _is_what_it_says(pod: StockPod) -> None:
    assert inside(pod, "true").stdout.startswith("Welcome")
    assert "not found" in inside(pod, "rsync --version").stderr
    has_torch = "-c 'import importlib.util as u; print(u.find_spec(\"torch\") is not None)'"
    assert inside(pod, f"python3 {has_torch}").stdout.endswith("False\n")
    assert inside(pod, f"/venv/main/bin/python {has_torch}").stdout.endswith("True\n")
    assert inside(pod, "touch /workspace/a && ln /workspace/a /workspace/b").returncode == 1
    assert "No locks available" in inside(pod, "flock /workspace/a true").stderr
    assert "externally-managed" in inside(pod, "cat /usr/lib/python3*/EXTERNALLY-MANAGED").stdout
    assert "No space left" in inside(pod, "head -c 4000000 /dev/zero > ~/x; rm -f ~/x /workspace/a").stderr

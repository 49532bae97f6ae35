"""The workload's Python on a pod whose image has one of its own, out of a login's sight."""

from __future__ import annotations

import json
import os
import subprocess
import venv
from pathlib import Path

import pytest
from pods import TestPod
from projects import Project
from wheels import package, wheel

from remote_runner.pod import environment

SETTINGS = 'command = "python main.py"\noutputs = ["out/{name}"]\npause = "none"\n'
MAIN = """
import json, os, pathlib, sys
out = pathlib.Path("out/toy"); out.mkdir(parents=True, exist_ok=True)
told = {"python": sys.executable, "env": dict(os.environ), "path": sys.path}
for name in ("torch", "tiny"):
    try:
        told[name] = __import__(name).__version__
    except ImportError:
        told[name] = None
(out / "told.json").write_text(json.dumps(told))
"""


# the shell stays the first process, as a container's start script does; sshd itself overwrites its variables
STAYS = '"$@" & wait; exit'


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """An image's python: a venv that a login does not have on its PATH, with a torch of its own build."""
    folder = tmp_path / "image"
    venv.create(folder, with_pip=False, symlinks=True)
    site = next((folder / "lib").glob("python3*")) / "site-packages"
    package(site, "torch", "2.0+image")
    return folder


@pytest.fixture
def image_pod(image: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TestPod:
    """Its first process has the image's PATH and the provider's variables, as a container's has."""
    monkeypatch.setenv("PATH", f"{image}/bin:{os.environ['PATH']}")
    monkeypatch.setenv("DATA_URL", "https://host/?a=1&b=2=3")
    pod = TestPod(tmp_path / "pod", before=STAYS).start()
    monkeypatch.undo()
    monkeypatch.setenv("HOME", str(tmp_path / "user-home"))
    return pod


def told(project: Project) -> dict[str, object]:
    found: dict[str, object] = json.loads((project.root / "out/toy/told.json").read_text())
    return found


def adopt(project: Project, settings: str = "") -> str:
    (project.root / "main.py").write_text(MAIN)
    (project.root / "remote-run.toml").write_text(SETTINGS + settings)
    return project.config()


def test_the_images_python_is_found_and_the_containers_variables(
    project: Project, image: Path, image_pod: TestPod
) -> None:
    config = adopt(project, 'probe = ["torch"]\nenv = { MINE = "x" }\n')
    try:
        done = project.run(project.on(image_pod, config, python=False))
        assert done.returncode == 0, done.stderr + done.stdout
    finally:
        image_pod.lose()
    seen = told(project)
    env = seen["env"]
    assert isinstance(env, dict)
    assert seen["torch"] == "2.0+image"
    assert str(seen["python"]).startswith(str(image))
    assert (env["DATA_URL"], env["MINE"], env["WANDB_RESUME"]) == ("https://host/?a=1&b=2=3", "x", "allow")
    assert env["HOME"] == str(image_pod.home)
    assert env["PATH"].startswith(f"{image}/bin:")
    assert str(env["WANDB_RUN_ID"]).startswith("toy-")


def test_requirements_go_on_top_and_the_images_torch_stays(project: Project, image: Path, image_pod: TestPod) -> None:
    config = adopt(project)
    (project.root / "wheels").mkdir()
    wheel(project.root / "wheels", "tiny", "1.5", requires="torch>=1")
    wheel(project.root / "wheels", "torch", "2.1")  # newer than the image's, and must not win
    (project.root / "requirements.txt").write_text("--no-index\n--find-links wheels\ntorch\ntiny\n")
    try:
        done = project.run(project.on(image_pod, config, python=False))
        assert done.returncode == 0, done.stderr + done.stdout
        assert (told(project)["torch"], told(project)["tiny"]) == ("2.0+image", "1.5")
        assert ".remote-run/environment/bin/python" in str(told(project)["python"])
        again = project.run(project.on(image_pod, config, "--fresh", python=False))
        assert again.returncode == 0, again.stderr
        assert "pip, as it was made before" in (project.root / "runs/toy-train.log").read_text()
        (project.root / "requirements.txt").write_text("--no-index\n--find-links wheels\ntorch==2.1\n")
        pinned = project.run(project.on(image_pod, config, "--fresh", python=False))
        assert pinned.returncode == 0, pinned.stderr
        assert told(project)["torch"] == "2.1"
    finally:
        image_pod.lose()
    assert not list((image / "lib").rglob("tiny*"))


def test_what_no_python_has_ends_before_the_launch(project: Project, pod: TestPod) -> None:
    config = adopt(project, 'probe = ["no_such_module"]\n')
    done = project.run(project.on(pod, config, python=False))
    assert done.returncode == 5, done.stdout
    assert "imports no_such_module" in done.stdout
    assert not (project.root / "out/toy/told.json").exists()


def test_a_pod_with_a_gpu_never_trains_on_the_cpu_unasked(project: Project, make_pod: object, tmp_path: Path) -> None:
    """A driver that lists a card, and a torch without CUDA: refused with the right wheel, unless asked for."""
    bin_folder = tmp_path / "gpu-bin"
    bin_folder.mkdir()
    smi = bin_folder / "nvidia-smi"
    smi.write_text(
        '#!/bin/sh\ncase "$*" in *query-gpu=name,compute_cap*) echo "NVIDIA H100 80GB HBM3, 9.0";; *query*) ;;'
        ' *) echo "| NVIDIA-SMI 550  Driver Version: 550  CUDA Version: 12.4 |";; esac\n'
    )
    smi.chmod(0o755)
    before = os.environ["PATH"]
    os.environ["PATH"] = f"{bin_folder}:{before}"
    try:
        pod = make_pod("gpu", before=STAYS)  # type: ignore[operator]
    finally:
        os.environ["PATH"] = before
    config = adopt(project)
    refused = project.run(project.on(pod, config))
    assert refused.returncode == 5, refused.stdout
    assert "is a CPU build, and the pod has NVIDIA H100" in refused.stdout
    assert "download.pytorch.org/whl/cu124" in refused.stdout
    adopt(project, 'env = { CUDA_VISIBLE_DEVICES = "" }\n')
    asked = project.run(project.on(pod, config, "--fresh"))
    assert asked.returncode == 0, asked.stderr + asked.stdout


def test_the_commands_of_tools_that_bring_their_own_lock() -> None:
    image = environment.Image("/venv/main/bin/python", {"torch": "2.8.0"}, [])
    assert environment.uv_commands("uv", image) == [["uv", "sync", "--frozen", "--python", "/venv/main/bin/python"]]
    made = environment.conda_commands("/usr/bin/micromamba", "environment.yml", "/r/.remote-run/environment")
    prefix = ["--prefix", "/r/.remote-run/environment", "--file", "environment.yml"]
    assert made == [["/usr/bin/micromamba", "create", "--yes", *prefix]]
    made = environment.conda_commands("/opt/conda/bin/conda", "environment.yml", "/r/.remote-run/environment")
    assert made == [["/opt/conda/bin/conda", "env", "create", "--yes", *prefix]]


def test_torch_is_held_unless_a_line_pins_it() -> None:
    image = environment.Image("python", {"torch": "2.8.0+cu128", "torchvision": "0.23.0"}, [])
    assert environment.constraints(image, "torch>=2\nnumpy\n") == "torch==2.8.0+cu128\ntorchvision==0.23.0\n"
    assert environment.constraints(image, "torch==2.4.0\n") == "torchvision==0.23.0\n"


def test_a_venv_on_an_images_venv_sees_its_packages(tmp_path: Path, image: Path) -> None:
    """--system-site-packages would show those of the python below. Nothing is written to the image (PEP 668)."""
    found = environment.look_at(str(image / "bin/python"))
    environment._make_venv(found, str(tmp_path / "env"))
    seen = subprocess.run(
        [tmp_path / "env/bin/python", "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True
    )
    assert seen.stdout.strip() == "2.0+image"

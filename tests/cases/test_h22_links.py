"""Links in the project: real files arrive, nothing from outside does, nothing twice, and it ends."""

from __future__ import annotations

import os

from pods import TestPod
from projects import Project

LINKS = {
    "loop": ".",
    "src/up": "../..",
    "dangling": "no/such/file",
    "outside_link": "../outside/private_key",
    "outside_dir": "../outside",
    "artifacts/toy/latest": "step-200",
    "self": "self",
}


def test_links_are_left_here_and_named(project: Project, pod: TestPod) -> None:
    outside = project.root.parent / "outside"
    outside.mkdir()
    (outside / "private_key").write_text("SECRET-DO-NOT-COPY\n")
    (project.root / "src").mkdir()
    (project.root / "src" / "main.py").write_text("print('hello')\n")
    config = project.config()
    assert project.run(project.on(pod, config)).returncode == 0
    for name, to in LINKS.items():
        (project.root / name).symlink_to(to)
    done = project.run(project.on(pod, config, "--resume"), timeout_s=60)
    assert done.returncode == 0, done.stderr
    assert (pod.root / "src" / "main.py").read_text() == "print('hello')\n"
    for name in ("loop", "dangling", "outside_link", "outside_dir", "self"):
        assert f"{name} (a link)" in done.stderr
        assert not os.path.lexists(pod.root / name)
    for path in pod.home.rglob("*"):
        assert not path.is_file() or b"SECRET-DO-NOT-COPY" not in path.read_bytes()


def test_keys_caches_and_environments_stay_here(project: Project, pod: TestPod) -> None:
    kept_here = (".env", ".env.local", "id_rsa", "deploy.pem", "__pycache__/x.pyc", ".venv/bin/python")
    for name in kept_here:
        path = project.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("TOKEN=SECRET\n")
    (project.root / "innocent.txt").write_text("-----BEGIN OPENSSH PRIVATE KEY-----\nxx\n")
    done = project.run(project.on(pod, project.config()))
    assert done.returncode == 0, done.stderr
    for name in (*kept_here, ".git", "innocent.txt"):
        assert not (pod.root / name).exists(), name
    assert "innocent.txt (a private key)" in done.stderr

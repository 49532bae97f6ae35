"""Secrets: in the workload's environment, and nowhere else on both machines."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from pods import NAMESPACED, TestPod, wait_for
from projects import Project

VALUES = {"API_KEY": "SECRET-aaa-111", "FROM_FILE": "SECRET-bbb-222", "FROM_COMMAND": "SECRET-ccc-333"}
MAIN = """
import base64, hashlib, json, os, pathlib, sys, time
out = pathlib.Path("out/toy"); out.mkdir(parents=True, exist_ok=True)
names = ["API_KEY", "FROM_FILE", "FROM_COMMAND"]
print("here they are:", {n: os.environ[n] for n in names}, flush=True)
print(os.environ["API_KEY"], file=sys.stderr, flush=True)
half = len(os.environ["API_KEY"]) // 2
for part in (os.environ["API_KEY"][:half], os.environ["API_KEY"][half:] + "\\n"):
    os.write(1, part.encode())
    time.sleep(0.1)
print("header", base64.b64encode(f"me:{os.environ['API_KEY']}".encode()).decode(), flush=True)
print("all of it:", dict(os.environ), flush=True)
(out / "seen.json").write_text(json.dumps({n: hashlib.sha256(os.environ[n].encode()).hexdigest() for n in names}))
while not pathlib.Path("go-on").exists():
    time.sleep(0.05)
raise RuntimeError("failed with " + os.environ["FROM_FILE"])
"""
SETTINGS = """
command = "python main.py"
outputs = ["out/{name}"]
secrets = ["API_KEY", "FROM_FILE", "FROM_COMMAND"]
secrets_command = "sh keys.sh"
"""


def holders(processes: dict[int, list[str]]) -> list[list[str]]:
    """Processes with a value in their arguments or their environment."""
    found = []
    for pid, argv in processes.items():
        text = " ".join(argv)
        try:
            text += Path(f"/proc/{pid}/environ").read_bytes().decode("utf-8", "replace")
        except OSError:
            continue
        if "SECRET-" in text:
            found.append(argv)
    return found


def test_values_are_found_nowhere(project: Project, pod: TestPod) -> None:
    (project.root / "main.py").write_text(MAIN)
    (project.root / "remote-run.toml").write_text(SETTINGS)
    (project.root / ".env").write_text(f"export FROM_FILE='{VALUES['FROM_FILE']}'\n")
    # split, so that the file that is sent does not hold the value itself
    (project.root / "keys.sh").write_text("echo OTHER=x\nprintf 'FROM_COMMAND=SEC'; echo RET-ccc-333\n")
    identity = ["-c", "user.name=a", "-c", "user.email=a@localhost"]
    for words in (["add", "."], ["commit", "-qm", "first"]):  # .env too, as some do; the difference to it is recorded
        subprocess.run(["git", *identity, *words], cwd=project.root, check=True)
    with (project.root / ".env").open("a") as f:
        f.write(f"# {VALUES['API_KEY']}\n")
    controller = project.start(project.on(pod, project.config(), "--verbose"), API_KEY=VALUES["API_KEY"])
    wait_for((pod.root / "out/toy/seen.json").exists, "the workload")
    assert [argv[1:] for argv in holders(pod.commands())] == [["main.py"]]
    (pod.root / "go-on").touch()
    out, _ = controller.communicate(timeout=60)
    assert controller.returncode == 1, out
    assert "SECRET-" not in out
    log = (project.root / "runs/toy-train.log").read_text()
    assert "here they are: {'API_KEY': '***', 'FROM_FILE': '***', 'FROM_COMMAND': '***'}" in log
    assert "RuntimeError: failed with ***" in log
    assert base64.b64encode(b"SECRET-aaa-111").rstrip(b"=").decode() not in log
    assert base64.b64encode(f"me:{VALUES['API_KEY']}".encode()).decode() not in log
    left = [
        path
        for folder in (project.root, pod.home)
        for path in folder.rglob("*")
        if path.is_file() and b"SECRET-" in path.read_bytes()
    ]
    git = project.root / ".git"  # the user's own: it was committed
    assert [p for p in left if git not in p.parents] == [project.root / ".env"]
    code = ["tar", "-xzOf", project.root / "runs/toy-code.tar.gz"]
    packed = subprocess.run(code, capture_output=True, check=True).stdout
    assert b"SECRET-" not in packed
    assert b"+# ***" in packed  # the difference is there
    seen = json.loads((project.root / "out/toy/seen.json").read_text())
    assert len(set(seen.values())) == 3


@pytest.mark.parametrize(
    ("secrets", "env", "says"),
    [
        ('["NOWHERE", "API_KEY"]', {"API_KEY": "SECRET-aaa-111"}, "that are nowhere: NOWHERE"),
        ('["API_KEY"]', {"API_KEY": "abc"}, "shorter than 6 characters"),
    ],
)
def test_a_missing_one_is_named_before_anything(
    project: Project, pod: TestPod, secrets: str, env: dict[str, str], says: str
) -> None:
    (project.root / "remote-run.toml").write_text(f'command = "python main.py"\nsecrets = {secrets}\n')
    done = project.run(project.on(pod, project.config()), **env)
    assert done.returncode == 3
    assert says in done.stderr
    assert not pod.root.exists()


def test_a_command_that_fails_shows_nothing_it_printed(project: Project, pod: TestPod) -> None:
    (project.root / "remote-run.toml").write_text(
        'command = "python main.py"\nsecrets = ["A_KEY"]\nsecrets_command = "sh keys.sh"\n'
    )
    (project.root / "keys.sh").write_text("echo A_KEY=SECRET-ddd; echo SECRET-ddd >&2; exit 4\n")
    done = project.run(project.on(pod, project.config()))
    assert done.returncode == 3
    assert "secrets_command ended with 4" in done.stderr
    assert "SECRET-" not in done.stderr


def test_a_file_that_holds_one_is_not_sent(project: Project, pod: TestPod) -> None:
    (project.root / "main.py").write_text("key = 'SECRET-eee-555'\n")
    (project.root / "remote-run.toml").write_text('command = "python main.py"\nsecrets = ["A_KEY"]\n')
    done = project.run(project.on(pod, project.config()), A_KEY="SECRET-eee-555")
    assert done.returncode == 2
    assert "main.py holds the value of the secret A_KEY" in done.stderr
    assert "SECRET-" not in done.stderr
    assert not pod.root.exists()


def test_the_providers_own_keys_reach_neither_workload_nor_log(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first process of a container has them; what else it has under such a name is inherited, and masked."""
    keys = {"RUNPOD_API_KEY": "SECRET-rp-1", "CONTAINER_API_KEY": "SECRET-va-1", "HF_TOKEN": "SECRET-hf-1"}
    for name, value in {**keys, "DATA_URL": "https://a/b"}.items():
        monkeypatch.setenv(name, value)
    pod = TestPod(tmp_path / "pod", before='"$@" & wait; exit').start()
    for name in keys:
        monkeypatch.delenv(name)
    (project.root / "main.py").write_text(
        "import os, pathlib\npathlib.Path('out').mkdir(exist_ok=True)\nprint(dict(os.environ))\n"
        "print(open('/proc/1/environ').read())\n"
        "pathlib.Path('out/names').write_text(' '.join(os.environ))\n"
    )
    (project.root / "remote-run.toml").write_text('command = "python main.py"\noutputs = ["out"]\n')
    try:
        done = project.run(project.on(pod, project.config(), "-v"))
        assert done.returncode == 0, done.stderr
        names = (project.root / "out/names").read_text().split()
        assert "HF_TOKEN" in names
        assert "DATA_URL" in names
        assert not {"RUNPOD_API_KEY", "CONTAINER_API_KEY"} & set(names)
        assert "SECRET-" not in done.stderr + done.stdout
        assert "'HF_TOKEN': '***'" in (project.root / "runs/toy-train.log").read_text()
        left = [
            p for f in (project.root, pod.home) for p in f.rglob("*") if p.is_file() and b"SECRET-" in p.read_bytes()
        ]
        assert left == []
    finally:
        pod.lose()


@pytest.mark.skipif(not NAMESPACED, reason="needs root: a pid namespace with a first process of its own")
@pytest.mark.parametrize("named", [False, True])
def test_the_providers_own_key_is_not_the_workloads(
    project: Project, make_pod: Callable[..., TestPod], monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    """Neither from the container's first process nor from the login, unless the settings name it."""
    monkeypatch.setenv("CONTAINER_API_KEY", "pods-own-1")
    monkeypatch.setenv("OF_THE_IMAGE", "yes")
    # a shell as the first process: sshd writes its title over the environment that it was given
    pod = make_pod(setenv={"RUNPOD_API_KEY": "pods-own-2"}, before='"$@"; exit')
    monkeypatch.delenv("CONTAINER_API_KEY")
    (project.root / "main.py").write_text(
        "import os; print({n: os.environ.get(n) for n in ('CONTAINER_API_KEY', 'RUNPOD_API_KEY', 'OF_THE_IMAGE')})\n"
        "print('last letters:', os.environ.get('RUNPOD_API_KEY', '')[-4:])\n"
    )
    secrets = 'secrets = ["RUNPOD_API_KEY"]' if named else ""
    (project.root / "remote-run.toml").write_text(f'command = "python main.py"\n{secrets}\n')
    done = project.run(project.on(pod, project.config()), **({"RUNPOD_API_KEY": "of-the-user"} if named else {}))
    assert done.returncode == 0, done.stderr
    log = (project.root / "runs/toy-train.log").read_text()
    key = "'***'" if named else "None"
    assert f"{{'CONTAINER_API_KEY': None, 'RUNPOD_API_KEY': {key}, 'OF_THE_IMAGE': 'yes'}}" in log
    assert ("last letters: user" in log) == named

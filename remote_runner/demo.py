"""The main job on a pretend pod, with the same commands a user types: start, pause, resume, verify.

Nothing outside a new temporary folder is written, and nothing leaves this machine.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from remote_runner import plan as plans
from remote_runner import upload
from remote_runner.errors import NotStarted, Refused, RunnerError
from remote_runner.plan import Options, Plan

BACKUP_EVERY = "4s"
PAUSE_WITHIN_S = 120.0


class StepFailed(RunnerError):
    """A command of the demo ended otherwise than it must; the demo ends with its code."""

    def __init__(self, what: str, code: int) -> None:
        fix = "it printed why above"
        if code == Refused.exit_code:
            fix = "the pretend pod sees this machine's processes: wait until the training that runs here is over"
        super().__init__(f"{what} ended with {code}", fix=fix)
        self.exit_code = code if code > 0 else RunnerError.exit_code


def run(config: Path) -> Path:
    """Do the main job.

    Returns:
        The temporary project with the results.

    Raises:
        NotStarted: the pretend pod did not come up.
        RunnerError: a command ended with another code than it must.
    """
    plan = plans.make(config, None, Options(fresh=True))
    folder = Path(tempfile.mkdtemp(prefix="remote-run-demo-"))
    project = folder / "project"
    _copy(plan, project)
    with _pod(folder / "pod") as port:
        access = [f"127.0.0.1:{port}", "--identity", str(folder / "pod" / "id"), "--accept-new-host-key"]
        rest = [plan.config, "--python", sys.executable, "--backup-every", BACKUP_EVERY]
        say(f"a pretend pod listens on 127.0.0.1:{port}; its disk is {folder / 'pod' / 'disk'}")

        say("1. start the run, and pause it once backups have been made")
        first = _start(project, [access[0], *rest, *access[1:]])
        try:
            if not _backup_was_made(project, plan.name, first):
                raise StepFailed("the first run", first.wait(timeout=PAUSE_WITHIN_S))
            _must(project, ["pause", access[0], plan.name, *access[1:]], 0)
        finally:
            code = first.wait(timeout=PAUSE_WITHIN_S)
        if code != 75:
            raise StepFailed("the run that was to be paused", code)

        say("2. go on with it: the same command and --resume")
        _must(project, [access[0], *rest, "--resume", *access[1:]], 0)

    say("3. the pod is gone; prove what is home, and look at the backups")
    _must(project, ["verify", *plan.outputs], 0)
    _must(project, ["backups", plan.name], 0)
    return project


def say(text: str) -> None:
    print(f"\n== {text}", file=sys.stderr, flush=True)


def _copy(plan: Plan, to: Path) -> None:
    for item in upload.collect(plan).items:
        target = to / item.path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(item.source, target)


@contextlib.contextmanager
def _pod(folder: Path) -> Iterator[int]:
    folder.mkdir(mode=0o700)
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(
            [sys.executable, "-P", "-m", "remote_runner.demo_pod", folder],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
        )
    try:
        assert server.stdout is not None
        port = server.stdout.readline().strip()
        if not port:
            raise NotStarted(
                f"the pretend pod did not start: {(folder / 'log').read_text()[-300:]}",
                fix="install what it needs: pip install 'remote-run[demo]'",
            )
        yield int(port)
    finally:
        server.terminate()
        server.wait()


def _start(project: Path, words: list[str]) -> subprocess.Popen[bytes]:
    print(f"\n$ remote-run {shlex.join(words)}", file=sys.stderr, flush=True)
    # -P: the project's own copy of this package, where it has one, is not the one to run
    argv = [sys.executable, "-P", "-m", "remote_runner.cli", *words]
    return subprocess.Popen(argv, cwd=project, stdin=subprocess.DEVNULL)


def _must(project: Path, words: list[str], expected: int) -> None:
    code = _start(project, words).wait()
    if code != expected:
        raise StepFailed(f"remote-run {words[0]} …", code)


def _backup_was_made(project: Path, name: str, first: subprocess.Popen[bytes]) -> bool:
    """Wait for a backup that holds a snapshot past its stage's first steps; False when the run ended before."""
    give_up = time.monotonic() + PAUSE_WITHIN_S
    while time.monotonic() < give_up and first.poll() is None:
        for manifest in project.glob(f"backups/*/{name}/backups/*/manifest.json"):
            newest = json.loads(manifest.read_text()).get("newest") or {}
            if newest.get("stage_index", 0) > 0 or newest.get("step", 0) > 0:
                return True
        time.sleep(0.2)
    if first.poll() is None:
        raise RunnerError(f"no backup within {PAUSE_WITHIN_S:.0f} s", fix="look at what the run printed above")
    return False

"""A supervisor under test, without a controller: its root, its job, its processes, in a pid namespace of its own.

The namespace's first process takes the lock and launches the job as the program on a pod does, then stays.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pods import NAMESPACED, wait_for

from remote_runner import zipapp

INIT = """
import json, os, sys
from remote_runner.pod import hold, launch
root, app, job = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
lease = {"controller": "test", "pid": os.getpid(), "name": job["name"], "config": "", "attempt": job["attempt"]}
os.environ.update(json.loads(sys.argv[4]) if sys.argv[4:] else {})  # for what is started, not for this process
taken = hold.take(root, lease, [], False)
status = launch.launch(root, job, taken["fd"], app)
os.close(taken["fd"])
print(json.dumps(status), flush=True)
while True:
    try:
        os.wait()
    except ChildProcessError:
        import time
        time.sleep(0.1)
"""


@dataclass
class Box:
    """One root with one job."""

    root: Path
    init: subprocess.Popen[str] | None = None
    first: dict[str, Any] = field(default_factory=dict)
    before: tuple[str, ...] = ()  # words in front of the namespace's command, as a cgroup's entry
    env: dict[str, str] = field(default_factory=dict)  # of the keeper and all below it

    def script(self, name: str, text: str) -> str:
        (self.root / name).write_text(text)
        return name

    def start(self, *command: str, **changes: Any) -> dict[str, Any]:
        """Launch a job; its first status."""
        app = zipapp.build()
        own = self.root / ".remote-run"
        own.mkdir(parents=True, exist_ok=True)
        (own / app.name).write_bytes(app.content)
        job = {
            "name": "x",
            "attempt": "a1",
            "config": "",
            "resume": False,
            "max_s": 120.0,
            "outputs": ["artifacts/x"],
            "command": list(command),
            "resume_command": [*command, "--resume"],
            "then": [],
            "setup": None,
            "env": {},
            "pause": "contract",
            "python": sys.executable,
            "memory_limit_mb": None,
            **changes,
        }
        (self.root / "artifacts/x").mkdir(parents=True, exist_ok=True)
        argv = [*self.before, *NAMESPACED, sys.executable, "-c", INIT, self.root, own / app.name, json.dumps(job)]
        argv.append(json.dumps(self.env))
        self.init = subprocess.Popen(
            [str(a) for a in argv], stdout=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL
        )
        assert self.init.stdout is not None
        self.first = json.loads(self.init.stdout.readline())
        return self.first

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.root / "runs/x-status.json").read_text())
        return found

    def events(self, what: str = "") -> list[dict[str, Any]]:
        rows = [json.loads(line) for line in (self.root / "runs/x-events.jsonl").open()]
        return [row for row in rows if what in ("", row["what"])]

    def end(self, timeout_s: float = 60) -> dict[str, Any]:
        """The exit record, once it is there."""
        found = wait_for(lambda: self.status()["exit"], "the exit record", timeout_s)
        assert isinstance(found, dict)
        return found

    def log(self) -> str:
        path = self.root / "runs/x-train.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def wait_for_log(self, text: str, timeout_s: float = 60) -> None:
        wait_for(lambda: text in self.log(), f"{text!r} in the log: {self.log()[-500:]}", timeout_s)

    def processes(self) -> dict[int, list[str]]:
        """All of them but the namespace's first, by this machine's pids."""
        assert self.init is not None
        found: dict[int, list[str]] = {}
        todo = [self.init.pid]
        while todo:
            with contextlib.suppress(OSError):
                for task in Path(f"/proc/{todo.pop()}/task").iterdir():
                    for pid in map(int, (task / "children").read_text().split()):
                        todo.append(pid)
                        argv = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1]
                        if argv and INIT.encode() not in argv:
                            found[pid] = [os.fsdecode(a) for a in argv]
        return found

    def pid(self, word: str) -> int:
        """The one process with this word in its argv."""
        found = [pid for pid, argv in self.processes().items() if word in argv]
        assert len(found) == 1, (word, self.processes())
        return found[0]

    def kill(self, word: str, number: signal.Signals = signal.SIGKILL) -> None:
        os.kill(self.pid(word), number)

    def pause(self) -> None:
        self.kill("supervise", signal.SIGUSR1)

    def lock_is_free(self) -> bool:
        return subprocess.run(["flock", "-n", self.root / ".remote-run/lock", "true"], check=False).returncode == 0

    def lose(self) -> None:
        if self.init is not None:
            self.init.kill()
            self.init.wait(10)


@contextlib.contextmanager
def box(root: Path, before: tuple[str, ...] = (), env: dict[str, str] | None = None) -> Iterator[Box]:
    root.mkdir(parents=True, exist_ok=True)
    here = Box(root, before=before, env=env or {})
    try:
        yield here
    finally:
        here.lose()

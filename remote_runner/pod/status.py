"""What the supervisor says of its run: `runs/<name>-status.json` and `runs/<name>-events.jsonl`.

The status is replaced atomically at every change and beat; with an `exit` in it, it is the truth about how
the run ended. Events are appended: what happened, when, why.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from typing import Any, Dict, List

from remote_runner.pod import files, layout

BEAT_S = 5.0
CONCLUDE_S = 120
LOOKS, LOOK_AGAIN_S = 5, 0.1


def utc(unix_s: float) -> str:
    """A time for people, with its offset."""
    return time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(unix_s))


def read(root: str, name: str) -> Any:
    """A run's status; None where there is none.

    It is looked for more than once: a network volume may not find a file in the moment in which it is replaced, and
    whoever took that for the end of the run would be wrong.
    """
    for again in range(LOOKS):
        found = files.read_json(root, layout.status(name))
        if isinstance(found, dict):
            return found
        if again < LOOKS - 1:
            time.sleep(LOOK_AGAIN_S)
    return None


class Status:
    """The status of one attempt; its file has one writer, this."""

    def __init__(self, root: str, name: str, **first: Any) -> None:
        self._root, self._name = root, name
        self.fields: Dict[str, Any] = {"schema": 1, "name": name, **first}
        self._written_s = 0.0

    def update(self, **changes: Any) -> None:
        self.fields.update(changes)
        self._write()

    def due(self) -> bool:
        """Whether a beat is to be written."""
        return time.monotonic() - self._written_s >= BEAT_S

    def beat(self) -> None:
        """Say that we live, at most every few seconds."""
        if self.due():
            self._write()

    def conclude(self, **changes: Any) -> None:
        """Write the last status; a full disk is waited for a while, since nothing else tells the end."""
        self.fields.update(changes)
        for _ in range(CONCLUDE_S):
            if self._write():
                return
            time.sleep(1.0)

    def _write(self) -> bool:
        """A disk that refuses costs a beat, not the run."""
        self.fields["beat_unix_s"] = round(time.time(), 3)
        self._written_s = time.monotonic()
        try:
            files.replace_json(self._root, layout.status(self._name), self.fields)
        except OSError as e:
            with contextlib.suppress(OSError):  # our own log may lie on the same disk
                print(f"{utc(time.time())} the status could not be written: {e}", file=sys.stderr, flush=True)
            return False
        return True

    def event(self, what: str, **fields: Any) -> None:
        row = {"t": round(time.time(), 3), "at": utc(time.time()), "what": what, **fields}
        line = json.dumps(row, ensure_ascii=False, sort_keys=False) + "\n"
        path = os.path.join(self._root, layout.events(self._name))
        with contextlib.suppress(OSError):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
            try:
                files.write_all(fd, line.encode())
            finally:
                os.close(fd)


class Progress:
    """The trainer's `metrics.jsonl`, read as it grows; torn and foreign lines are passed over."""

    def __init__(self, path: str) -> None:
        self._path, self._offset, self._torn = path, 0, b""
        self.last: Dict[str, Any] = {}
        self.segment = 0  # the highest seen
        self.longest_save_s = 0.0
        self._told = False

    def from_log(self, row: Dict[str, Any]) -> None:
        """A row that the workload's output showed; a trainer with metrics of its own knows better."""
        if not self._offset:
            self.last, self._told = row, True

    def read(self) -> bool:
        """Take what is new; whether anything was."""
        told, self._told = self._told, False
        try:
            with open(self._path, "rb") as f:
                if os.fstat(f.fileno()).st_size < self._offset:
                    self._offset, self._torn = 0, b""  # another file stands there now
                f.seek(self._offset)
                data = f.read(4 << 20)
        except OSError:
            return told
        self._offset += len(data)
        lines: List[bytes] = (self._torn + data).split(b"\n")
        self._torn = lines.pop()[-65536:]
        for line in lines:
            self._take(line)
        return bool(lines) or told

    def _take(self, line: bytes) -> None:
        try:
            row = json.loads(line.decode())
        except ValueError:
            return
        if not isinstance(row, dict) or not isinstance(row.get("step"), int):
            return
        self.last = row
        if isinstance(row.get("segment"), int):
            self.segment = max(self.segment, row["segment"])
        if isinstance(row.get("save_s"), (int, float)):
            self.longest_save_s = max(self.longest_save_s, float(row["save_s"]))

"""A workload's output on its way into the run's log: secrets replaced, progress bars folded, the step read from it.

    workload  ->  pipe  ->  here, on a thread of the supervisor  ->  runs/<name>-train.log

A bar redraws itself with carriage returns: of all its states the log keeps the last before a line's end, and one
every few seconds while it goes on. A trainer that keeps the contract and has no secrets writes to its log directly.

Not here: the contract's own rows of progress (status.py).
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Pattern, Sequence, Set
from urllib.parse import quote

from remote_runner.pod import files

MASK = b"***"
SHORTEST_SECRET = 6  # shorter ones would be found everywhere
BAR_EVERY_S = 10.0
_LONGEST_LINE_BYTES = 1 << 16
_DRAIN_S = 5.0

Row = Dict[str, Any]

# step and total as whole numbers: a bar of bytes (1.2G/2.5G) is a download
_BAR = r"\d+%\|[^|]*\|\s*(?P<step>\d+)/(?P<total>\d+)\s*\["
_LOSS = re.compile(r"\b(?:train_|training_)?loss['\"]?\s*[=:]?\s*(?P<loss>[-+]?\d+\.?\d*(?:[eE][-+]?\d+)?)")
DEFAULTS = (
    r"\bEpoch (?P<epoch>\d+):\s+" + _BAR,  # Lightning: steps within the epoch
    r"^[^|]{0,40}?" + _BAR,  # tqdm, and the Trainer of transformers
    r"\b(?:global[_ ])?(?:step|iter|iteration)\b\s*[:=#]?\s*\[?(?P<step>\d+)(?:\s*(?:/|of)\s*(?P<total>\d+))?",
)


class Reader:
    """Takes the step out of lines.

    Args:
        patterns: with groups `step`, and where they have them `total`, `epoch`, `loss`; empty: the usual ones.
    """

    def __init__(self, patterns: Sequence[str] = ()) -> None:
        self._patterns: List[Pattern[str]] = [re.compile(p, re.IGNORECASE) for p in patterns or DEFAULTS]
        self._total = 0
        self._loss: Optional[float] = None

    def read(self, line: str) -> Optional[Row]:
        """A row as in metrics.jsonl; None where the line tells no step."""
        loss = _LOSS.search(line)
        if loss:
            self._loss = float(loss.group("loss"))
        for pattern in self._patterns:
            found = pattern.search(line)
            if found is None:
                continue
            said = {k: v for k, v in found.groupdict().items() if v is not None}
            return self._row(said) if "step" in said else None
        return None

    def _row(self, said: Dict[str, str]) -> Optional[Row]:
        step, total = int(said["step"]), int(said.get("total") or 0)
        row: Row = {"t": round(time.time(), 3), "stage": "", "step": step}
        if "epoch" in said:
            row["step"] = int(said["epoch"]) * total + step
            row["epoch"] = int(said["epoch"])
        elif total:
            if total < self._total:
                return None  # a bar inside the bar: an evaluation, a data set being read
            self._total = total
            row["target_steps"] = total
        if "loss" in said:
            self._loss = float(said["loss"])
        if self._loss is not None:
            row["loss"] = self._loss
        return row


def mask_of(secrets: Dict[str, str]) -> Optional["re.Pattern[bytes]"]:
    """What finds the values, whole, line by line, and as they stand in a URL; None where there are none."""
    values: Set[bytes] = set()
    for value in secrets.values():
        for part in {value, *value.splitlines()}:
            if len(part) >= SHORTEST_SECRET:
                values.update((part.encode(), quote(part, safe="").encode()))
    if not values:
        return None
    return re.compile(b"|".join(re.escape(v) for v in sorted(values, key=len, reverse=True)))


class Talk:
    """One program's output.

    Args:
        log: descriptor of the log; closed at the end.
        tell: gets each row of progress.
    """

    def __init__(self, log: int, secrets: Dict[str, str], patterns: Sequence[str], tell: Callable[[Row], None]) -> None:
        self._log, self._tell = log, tell
        self._mask = mask_of(secrets)
        self._reader = Reader(patterns)
        self._source, self.sink = os.pipe()  # the sink is the program's stdout and stderr
        self._line = b""
        self._bar_s = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="talk", daemon=True)

    def begin(self) -> None:
        """Once the program has the sink: ours is closed, or its end would never be seen."""
        os.close(self.sink)
        self._thread.start()

    def abandon(self) -> None:
        """The program did not start."""
        for fd in (self.sink, self._source, self._log):
            os.close(fd)

    def finish(self) -> None:
        """Take what is still in the pipe; who holds it open beyond the program's end is not waited for."""
        self._ended.set()
        self._thread.join(_DRAIN_S)

    def _run(self) -> None:
        try:
            while True:
                ready, _, _ = select.select([self._source], [], [], 0.0 if self._ended.is_set() else 0.5)
                if not ready:
                    if self._ended.is_set():
                        break
                    continue
                data = os.read(self._source, 1 << 16)
                if not data:
                    break
                self._take(data)
            self._put(self._line)
        finally:
            os.close(self._source)
            os.close(self._log)

    def _take(self, data: bytes) -> None:
        *lines, self._line = (self._line + data).split(b"\n")
        for line in lines:
            self._put(line + b"\n")
        if b"\r" in self._line:
            drawn, _, rest = self._line.rpartition(b"\r")
            state = next((s for s in reversed(drawn.split(b"\r")) if s), b"")
            if time.monotonic() - self._bar_s >= BAR_EVERY_S:
                self._put(state + b"\n")
                self._bar_s = time.monotonic()
            else:
                self._read(state)
            self._line = state + b"\r" + rest
        if len(self._line) > _LONGEST_LINE_BYTES:
            self._put(self._line + b"\n")
            self._line = b""

    def _put(self, line: bytes) -> None:
        """One line: the last state of a bar that was drawn on it, without the secrets."""
        end = b"\n" if line.endswith(b"\n") else b""
        states = [s for s in line.rstrip(b"\r\n").split(b"\r") if s]
        if not states and not end:
            return
        text = states[-1] if states else b""
        self._read(text)
        if self._mask is not None:
            text = self._mask.sub(MASK, text)
        with contextlib.suppress(OSError):  # a full disk under the log is no reason to end the workload
            files.write_all(self._log, text + end)

    def _read(self, text: bytes) -> None:
        row = self._reader.read(text[-4096:].decode("utf-8", "replace"))
        if row is not None:
            self._tell(row)

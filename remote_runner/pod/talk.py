"""A workload's output on its way into the run's log: secrets replaced, progress bars folded, the step read from it.

    workload  ->  pipe  ->  here, on a thread of the supervisor  ->  runs/<name>-train.log

A bar redraws itself with carriage returns: of all its states the log keeps the last before a line's end, and one
every few seconds while it goes on. A trainer that keeps the contract and has no secrets writes to its log directly.

Not here: the contract's own rows of progress (status.py).
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import select
import threading
import time
from typing import Any, Callable, Dict, Iterator, List, Optional, Pattern, Sequence, Set

from remote_runner.pod import files

MASK = b"***"
SHORTEST_SECRET = 6  # shorter ones would be found everywhere
_SHORTEST_BASE64 = 8
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

# only where a trainer tells no steps: an epoch may be told as it begins, so its last is no sign of the end
EPOCHS = r"\bepoch\b\s*[:=#]?\s*\[?(?P<step>\d+)\s*(?:/|of)\s*(?P<total>\d+)"
EPOCH = "epoch"  # the stage of such rows


class Reader:
    """Takes the step out of lines.

    Args:
        patterns: with groups `step`, and where they have them `total`, `epoch`, `loss`; empty: the usual ones.
    """

    def __init__(self, patterns: Sequence[str] = ()) -> None:
        self._patterns: List[Pattern[str]] = [re.compile(p, re.IGNORECASE) for p in patterns or DEFAULTS]
        self._epochs = None if patterns else re.compile(EPOCHS, re.IGNORECASE)
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
            self._epochs = None
            return self._row(said) if "step" in said else None
        found = self._epochs.search(line) if self._epochs is not None else None
        return {**(self._row(found.groupdict()) or {}), "stage": EPOCH} if found else None

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
    """What finds the values: whole, line by line, as they stand in a URL, in JSON, in Python's repr, in base64.

    None where there are none.
    """
    if not secrets:
        return None
    from urllib.parse import quote

    values: Set[bytes] = set()
    for value in secrets.values():
        for part in {value, *value.splitlines()}:
            if len(part) >= SHORTEST_SECRET:
                values.update((part.encode(), quote(part, safe="").encode()))
                escaped = (json.dumps(part), json.dumps(part, ensure_ascii=False), repr(part))
                values.update(text[1:-1].encode("utf-8", "replace") for text in escaped)
                values.update(_in_base64(part.encode()))
    if not values:
        return None
    return re.compile(b"|".join(re.escape(v) for v in sorted(values, key=len, reverse=True)))


def _in_base64(value: bytes) -> Iterator[bytes]:
    """The letters that stand for a value wherever it begins in what is encoded: `user:KEY` in a header, say."""
    for before in range(3):
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            letters = encode(b"\0" * before + value).rstrip(b"=")
            first, last = (0, 2, 3)[before], (0, 1, 1)[(before + len(value)) % 3]  # shared with what stands around it
            inner = letters[first : len(letters) - last]
            if len(inner) >= _SHORTEST_BASE64:
                yield inner


class Talk:
    """One program's output.

    Args:
        log: descriptor of the log; closed at the end.
        tell: gets each row of progress.
    """

    def __init__(self, log: int, secrets: Dict[str, str], patterns: Sequence[str], tell: Callable[[Row], None]) -> None:
        self._log, self._tell = log, tell
        self._mask = mask_of(secrets)
        self._longest = max((4 * len(v.encode()) for v in secrets.values()), default=1)  # in any of its forms
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
            whole = self._hidden(self._line)
            self._line = whole[-self._longest :]  # a value may have begun there
            self._put(whole[: -self._longest] + b"\n")

    def _put(self, line: bytes) -> None:
        """One line: the last state of a bar that was drawn on it, without the secrets."""
        end = b"\n" if line.endswith(b"\n") else b""
        states = [s for s in line.rstrip(b"\r\n").split(b"\r") if s]
        if not states and not end:
            return
        text = states[-1] if states else b""
        self._read(text)
        text = self._hidden(text)
        with contextlib.suppress(OSError):  # a full disk under the log is no reason to end the workload
            files.write_all(self._log, text + end)

    def _hidden(self, text: bytes) -> bytes:
        return text if self._mask is None else self._mask.sub(MASK, text)

    def _read(self, text: bytes) -> None:
        row = self._reader.read(text[-4096:].decode("utf-8", "replace"))
        if row is not None:
            self._tell(row)

"""CONTRACT.md and the code say the same: exit codes, signals, names of files and variables."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from remote_runner.checkpoint import contract, header, lineage, pause, rotate
from remote_runner.checkpoint.config import ConfigError

TEXT = (Path(contract.__file__).parent / "CONTRACT.md").read_text()


def test_exit_codes():
    table = {name: int(code) for code, name in re.findall(r"^\| (\d+) \| `(\w+)`", TEXT, re.M)}
    assert table == {"DONE": 0, "NON_FINITE": 65, "CANNOT_SAVE": 74, "PAUSED": 75, "REFUSED": 78}
    assert table == {name: getattr(contract, name) for name in table}


def test_signals_and_the_pause_file():
    named = set(re.findall(r"^\| `(SIG\w+)`, `(SIG\w+)`, `(SIG\w+)`", TEXT, re.M)[0])
    assert named == {number.name for number in pause.SIGNALS}
    assert f"`artifacts/<name>/{pause.FILE}`" in TEXT


def test_files():
    folder = Path("artifacts/x")
    latest = rotate.latest_of(folder, "<stage>")
    for path in (latest, rotate.previous_of(latest), rotate.temp_of(latest)):
        assert f"`{path.name}`" in TEXT
    assert header.FORMAT in TEXT


def test_rows_of_metrics(tmp_path, monkeypatch):
    monkeypatch.setenv("REMOTE_RUN_SEGMENT", "3")
    contract.append_row(tmp_path, "codec", 4, {"loss": 0.5})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"t": 1, "sta')  # a kill tore it
    contract.append_row(tmp_path, "codec", 8, {"loss": 0.25})
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == 3 and lines[1] == '{"t": 1, "sta'
    row = json.loads(lines[2])
    assert list(row)[:4] == re.findall(
        r"`(\w+)`", TEXT.split("one object a line:")[1].split(", what")[0].replace(" (unix s)", "")
    )
    assert row["segment"] == 3 and row["step"] == 8


def test_variables(monkeypatch):
    monkeypatch.setenv("REMOTE_RUN_ID", "a7")
    assert contract.attempt() == "a7" and "`REMOTE_RUN_ID`" in TEXT
    monkeypatch.setenv(lineage.VARIABLE, '{"train.learning_rate": null, "code": ["OLD", "NEW"]}')
    assert os.environ[lineage.VARIABLE] in TEXT and f"`{lineage.VARIABLE}`" in TEXT
    assert lineage.accepted() == {"train.learning_rate": None, "code": ["OLD", "NEW"]}
    for wrong in ("code", "[1]", '{"code": "x"}', '{"code": [1]}'):
        monkeypatch.setenv(lineage.VARIABLE, wrong)
        with pytest.raises(ConfigError, match="REMOTE_RUN_ACCEPT is"):
            lineage.accepted()
    for value, segment in (("2", 2), ("", 1), ("x", 1), ("0", 1)):
        monkeypatch.setenv("REMOTE_RUN_SEGMENT", value)
        assert contract.segment() == segment
    assert f"{contract.TMP_NEED_BYTES >> 20} MiB" in TEXT

"""A workload's output: what the log keeps of it, and the step that is read from it."""

from __future__ import annotations

import base64
import itertools
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote_runner.pod import foreign, talk

SECRET = "SECRET-abc/def+1"


def said(
    folder: Path, pieces: list[bytes], secrets: dict[str, str] | None = None
) -> tuple[bytes, list[dict[str, Any]]]:
    """What the log holds, and the rows of progress, after a program wrote these pieces."""
    path = folder / "log"
    rows: list[dict[str, Any]] = []
    one = talk.Talk(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), secrets or {}, (), rows.append)
    writer = os.dup(one.sink)
    one.begin()
    for piece in pieces:
        os.write(writer, piece)
    os.close(writer)
    one.finish()
    return path.read_bytes(), rows


@given(cuts=st.lists(st.integers(1, 120), max_size=8), tail=st.sampled_from(["", "\n", " and more"]))
def test_a_secret_is_replaced_wherever_the_output_is_cut(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int], tail: str
) -> None:
    text = f"key={SECRET}\nhttps://x/?k=SECRET-abc%2Fdef%2B1&z\ntwice {SECRET}{SECRET}{tail}".encode()
    places = [0, *sorted(c for c in cuts if c < len(text)), len(text)]
    pieces = [text[a:b] for a, b in itertools.pairwise(places) if a != b]
    log, _rows = said(tmp_path_factory.mktemp("talk"), pieces, {"KEY": SECRET})
    assert b"SECRET" not in log
    assert log == f"key=***\nhttps://x/?k=***&z\ntwice ******{tail}".encode()


def test_epochs_are_read_where_no_steps_are_told(tmp_path: Path) -> None:
    told = said(tmp_path, [b"Epoch [3/40] loss=0.5\nepoch 4 of 40\n"])[1]
    assert [(r["stage"], r["step"], r["target_steps"], r["loss"]) for r in told] == [
        ("epoch", 3, 40, 0.5), ("epoch", 4, 40, 0.5),
    ]  # fmt: skip
    assert not foreign.finished(str(tmp_path), {}, {"stage": "epoch", "step": 40, "target_steps": 40})
    told = said(tmp_path, [b"epoch 1/3\nstep 10/900\nepoch 2/3\nstep 20/900\n"])[1]
    assert [(r["stage"], r["step"]) for r in told] == [("epoch", 1), ("", 10), ("", 20)]


def test_a_secret_is_replaced_in_every_usual_form(tmp_path: Path) -> None:
    value = 'SECRET-a"b/ü+1'
    forms = [json.dumps(value), json.dumps(value, ensure_ascii=False), repr(value), str({"k": [value]})]
    forms += [base64.b64encode(f"{'u' * n}:{value}{'x' * m}".encode()).decode() for n in range(3) for m in range(3)]
    log, _rows = said(tmp_path, ["\n".join(forms).encode()], {"KEY": value})
    assert b"SECRET" not in log
    assert log.count(b"***") == len(forms)


def test_a_secret_across_the_end_of_an_endless_line_is_replaced(tmp_path: Path) -> None:
    """A line without an end is written in parts; no part ends within a value, and nothing is lost."""
    for before in range((1 << 16) - 20, (1 << 16) + 2):
        text = b"." * before + SECRET.encode() + b"," * 200
        log, _rows = said(
            tmp_path, [text[: 1 << 15], text[1 << 15 : (1 << 16) + 1], text[(1 << 16) + 1 :]], {"K": SECRET}
        )
        assert log.replace(b"\n", b"") == b"." * before + b"***" + b"," * 200


def test_a_bar_is_folded_and_read(tmp_path: Path) -> None:
    bar = [f"\rtrain: {n}%|###   | {n}/100 [00:01<00:02, 9.9it/s]".encode() for n in range(0, 101, 10)]
    log, rows = said(tmp_path, [b"begin\n", *bar, b"\nend\n"])
    lines = log.decode().splitlines()
    assert (lines[0], lines[-1]) == ("begin", "end")
    assert "100/100" in lines[-2]
    assert len(lines) <= 4  # one state may have been kept on the way
    assert (rows[-1]["step"], rows[-1]["target_steps"]) == (100, 100)


@pytest.mark.parametrize(
    ("lines", "row"),
    [
        (["  1%|          | 1/120 [00:00<00:05]", "{'loss': 1.25, 'epoch': 0.5}", " 17%|#7 | 20/120 [00:01<00:05]"],
         {"step": 20, "target_steps": 120, "loss": 1.25}),
        ([" 50%|##| 60/120 [00:01<00:05]", "  0%|  | 0/8 [00:00<?, ?it/s]"], {"step": 60, "target_steps": 120}),
        (["Epoch 2:  50%|#####     | 64/128 [00:01<00:01, 40it/s, v_num=0, train_loss=0.5]"],
         {"step": 320, "epoch": 2, "loss": 0.5}),
        (["step 40/120 loss 0.7312"], {"step": 40, "target_steps": 120, "loss": 0.7312}),
        (["Iter 30: Train loss 0.530"], {"step": 30, "loss": 0.53}),
        (["[2026-01-01] global_step=700 lr=1e-4"], {"step": 700}),
    ],
)  # fmt: skip
def test_usual_lines_tell_the_step(lines: list[str], row: dict[str, Any]) -> None:
    reader = talk.Reader()
    found = [r for r in map(reader.read, lines) if r is not None][-1]
    assert {k: found[k] for k in found if k not in ("t", "stage")} == row


@pytest.mark.parametrize("line", ["model.bin:  45%|##| 1.20G/2.50G [00:10<00:12]", "loading 3 files", "stepping on"])
def test_other_lines_tell_none(line: str) -> None:
    assert talk.Reader().read(line) is None


def test_a_pattern_of_ones_own(tmp_path: Path) -> None:
    reader = talk.Reader([r"it\s+(?P<step>\d+) of (?P<total>\d+)"])
    found = reader.read("it  5 of 9")
    assert found is not None
    assert (found["step"], found["target_steps"]) == (5, 9)
    assert reader.read("step 5/9") is None


def test_a_line_without_end_is_bounded(tmp_path: Path) -> None:
    log, _rows = said(tmp_path, [b"x" * 50_000] * 6)
    assert log.replace(b"\n", b"") == b"x" * 300_000

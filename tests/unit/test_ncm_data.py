"""Boards with one solution, orders and keys that are functions, a schedule that depends on the step alone."""

from __future__ import annotations

import math

import mlx.core as mx
import numpy as np
import pytest
from ncm_mlx import boards, order, stage
from ncm_mlx.config import Data

WANTED = Data(boards=30, validation=6, test_per_difficulty=4, easy_clues=60, medium_clues=40, hard_clues=28)
KNOWN_ORDER = [1, 7, 6, 4, 5, 2, 0, 3]
KNOWN_KEY = [522815944, 1470546950]


@pytest.fixture(scope="module")
def made():
    return boards.make(5, WANTED)


def solutions(clues, limit=2):
    """How many ways there are to fill a board, counted up to `limit` by plain search."""
    free = {
        cell: set(range(1, 10)) - {int(clues[peer]) for peer in boards.PEERS[cell]}
        for cell in np.nonzero(clues == 0)[0]
    }
    if not free:
        return 1
    cell = min(free, key=lambda c: len(free[c]))
    found = 0
    for digit in free[cell]:
        tried = clues.copy()
        tried[cell] = digit
        found += solutions(tried, limit - found)
        if found >= limit:
            break
    return found


def test_every_board_is_a_sudoku_with_one_solution(made):
    for part in (made.train, made.validation, made.test):
        for solution, clues in zip(part.solutions, part.clues, strict=True):
            for house in boards.MEMBERS:
                assert sorted(solution[house]) == list(range(1, 10))
            assert ((clues == solution) | (clues == 0)).all()
            assert solutions(clues) == 1


def test_difficulty_is_the_number_of_clues(made):
    given = (made.train.clues > 0).sum(axis=1)
    assert (given[made.train.difficulty == 0] == 60).all() and (given[made.train.difficulty == 1] == 40).all()
    hard = given[made.train.difficulty == 2]
    assert (hard >= 28).all() and hard.mean() < 38  # some boards have no forced cell left before 28


def test_the_parts_do_not_share_a_grid(made):
    rows = np.concatenate([part.solutions for part in (made.train, made.validation, made.test)])
    assert len(np.unique(rows, axis=0)) == len(rows)


def test_the_same_seed_makes_the_same_boards_and_another_others(made):
    assert boards.make(5, WANTED).sha256 == made.sha256 != boards.make(6, WANTED).sha256


def test_boards_are_kept_and_a_damaged_keep_is_made_again(made, tmp_path, capsys):
    assert boards.prepare(tmp_path, 5, WANTED).sha256 == made.sha256
    kept = tmp_path / "boards.safetensors"
    capsys.readouterr()
    assert boards.prepare(tmp_path, 5, WANTED).sha256 == made.sha256
    assert capsys.readouterr().out == ""  # from the keep, in silence
    kept.write_bytes(kept.read_bytes()[:-40])
    assert boards.prepare(tmp_path, 5, WANTED).sha256 == made.sha256
    assert "making the boards again" in capsys.readouterr().out


def test_a_pause_stops_the_making_and_keeps_nothing(tmp_path):
    with pytest.raises(boards.Cancelled):
        boards.prepare(tmp_path, 5, WANTED, cancelled=lambda: True)
    assert not (tmp_path / "boards.safetensors").exists()


def test_each_epoch_has_its_own_order_of_all_samples():
    first, second = (order.epoch_order(1, "codec", epoch, 50) for epoch in (0, 1))
    assert sorted(first) == sorted(second) == list(range(50)) and (first != second).any()
    assert (first == order.epoch_order(1, "codec", 0, 50)).all()
    assert (first != order.epoch_order(1, "generator", 0, 50)).any()


def test_orders_and_keys_are_the_same_on_every_machine_and_release():
    """Saved runs depend on these values: a change here ends every resume."""
    assert order.epoch_order(1, "codec", 0, 8).tolist() == KNOWN_ORDER
    assert order.key_words(1, "codec", 0, "dropout") == KNOWN_KEY


def test_places_count_whole_batches():
    assert [order.place(step, 11, 4) for step in range(4)] == [(0, 0), (0, 4), (1, 0), (1, 4)]


def test_the_learning_rate_warms_up_then_follows_a_cosine():
    at = stage.learning_rate(0.5, 10, 110)
    rate = [at(mx.array(step, mx.uint64)).item() for step in range(111)]
    assert rate[0] == pytest.approx(0.05) and rate[9] == pytest.approx(0.5) and rate[110] == pytest.approx(0, abs=1e-6)
    for step in range(10, 110):
        assert rate[step] == pytest.approx(0.25 * (1 + math.cos(math.pi * (step - 10) / 100)), abs=1e-5)

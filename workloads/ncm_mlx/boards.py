"""Sudoku boards with one solution each, made from a seed and kept in the run's folder.

A full grid is filled by random search, and multiplied by symmetries (digits, rows in a band, bands, transposition).
Cells are then taken away one at a time, each only when the cells that stay force it (no other digit fits the cell,
or no other cell of a house takes the digit). Put back in reverse, each step is forced, so the solution is the only
one - no search is needed to know.

Not here: which board comes when (order.py).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ncm_mlx.config import Data
from remote_runner.checkpoint import contract, header, snapshot

Cells = npt.NDArray[np.uint8]
PARTS = ("train", "validation", "test")
DIFFICULTIES = ("easy", "medium", "hard")
COPIES = 16  # boards made of one searched grid
TOGETHER = 2048  # boards worked on at once; about 4 MB of memory for each hundred
CELL = np.arange(81)
HOUSES = np.stack([CELL // 9, 9 + CELL % 9, 18 + CELL // 27 * 3 + CELL % 9 // 3], axis=1)  # (81, 3), of 27
MEMBERS = np.stack([np.nonzero(np.equal(HOUSES, house).any(axis=1))[0] for house in range(27)])  # (27, 9)
PEERS = np.stack([np.setdiff1d(MEMBERS[HOUSES[cell]].ravel(), cell) for cell in range(81)])  # (81, 20)


class Boards(NamedTuple):
    """(N, 81) uint8 each: `solutions` in 1..9, `clues` in 0..9 where 0 is a blank; (N,) `difficulty` in 0..2."""

    solutions: Cells
    clues: Cells
    difficulty: Cells


class Dataset(NamedTuple):
    """The three parts of a run's data, and the digest of all of it."""

    train: Boards
    validation: Boards
    test: Boards
    sha256: str


class Cancelled(Exception):
    """Making boards was given up on request; nothing was kept."""


def prepare(folder: Path, seed: int, wanted: Data, cancelled: Callable[[], bool] = lambda: False) -> Dataset:
    """Load the boards from `folder`, or make and keep them there.

    Raises:
        Cancelled: `cancelled` said so.
        OSError: they can't be written.
    """
    path = folder / "boards.safetensors"
    made_from = header.canonical({"seed": seed, "maker": 1, **asdict(wanted)}).decode()
    kept = _load(path, made_from)
    if kept is not None:
        return kept
    contract.say(f"making {wanted.boards + wanted.validation + 3 * wanted.test_per_difficulty} boards")
    found = make(seed, wanted, cancelled)
    parts = zip(PARTS, (found.train, found.validation, found.test), strict=True)
    tensors = {f"{name}.{key}": snapshot.tensor(array) for name, part in parts for key, array in part._asdict().items()}
    snapshot.save_weights(path, tensors, {"made_from": made_from})
    return found


def make(seed: int, wanted: Data, cancelled: Callable[[], bool] = lambda: False) -> Dataset:
    """Make all three parts; the same seed and numbers make the same boards. Raises Cancelled."""
    clues = (wanted.easy_clues, wanted.medium_clues, wanted.hard_clues)
    counts = {"train": wanted.boards, "validation": wanted.validation, "test": 3 * wanted.test_per_difficulty}
    parts = []
    for index, count in enumerate(counts.values()):
        random = np.random.Generator(np.random.PCG64([seed, index]))
        difficulty = (np.arange(count) % 3).astype(np.uint8)
        solutions = _solutions(random, count, cancelled)
        keep = np.array(clues)[difficulty]
        given = np.concatenate(
            [
                _take_away(random, solutions[at : at + TOGETHER], keep[at : at + TOGETHER], cancelled)
                for at in range(0, count, TOGETHER)
            ]
        )
        parts.append(Boards(solutions, given, difficulty))
    return Dataset(parts[0], parts[1], parts[2], _digest(parts))


def _solutions(random: np.random.Generator, count: int, cancelled: Callable[[], bool]) -> Cells:
    found = np.empty((count, 81), dtype=np.uint8)
    for first in range(0, count, COPIES):
        if cancelled():
            raise Cancelled
        grid = _search(random)
        for at in range(first, min(first + COPIES, count)):
            found[at] = _symmetric(random, grid).ravel()
    return found


def _search(random: np.random.Generator) -> Cells:
    """One full grid: always the cell with the fewest digits left, digits in random order."""
    grid, used = [0] * 81, [0] * 27
    houses = HOUSES.tolist()

    def free(cell: int) -> int:
        a, b, c = houses[cell]
        return ~(used[a] | used[b] | used[c]) & 0x1FF

    def solve() -> bool:
        blanks = [cell for cell in range(81) if not grid[cell]]
        if not blanks:
            return True
        cell = min(blanks, key=lambda cell: free(cell).bit_count())
        for digit in random.permutation(9).tolist():
            if free(cell) >> digit & 1:
                grid[cell] = digit + 1
                for house in houses[cell]:
                    used[house] ^= 1 << digit
                if solve():
                    return True
                grid[cell] = 0
                for house in houses[cell]:
                    used[house] ^= 1 << digit
        return False

    solve()
    return np.array(grid, dtype=np.uint8).reshape(9, 9)


def _symmetric(random: np.random.Generator, grid: Cells) -> Cells:
    lines = [np.concatenate([3 * band + random.permutation(3) for band in random.permutation(3)]) for _ in range(2)]
    digits = np.concatenate([[0], 1 + random.permutation(9)]).astype(np.uint8)
    moved = digits[grid][lines[0]][:, lines[1]]
    return moved.T if random.integers(2) else moved


def _take_away(
    random: np.random.Generator, solutions: Cells, keep: npt.NDArray[np.int64], cancelled: Callable[[], bool]
) -> Cells:
    """Blank cells of all boards at once, in random order, until `keep` clues are left or no cell is forced."""
    clues = solutions.copy()
    row = np.arange(len(clues))
    for _ in range(2):  # a cell that was not forced stays so or not as others go; a second round finds a few more
        turn = np.argsort(random.random(clues.shape), axis=1)
        for at in range(81):
            if cancelled():
                raise Cancelled
            cell = turn[:, at]
            tried = clues.copy()
            tried[row, cell] = 0
            go = (clues[row, cell] > 0) & ((clues > 0).sum(axis=1) > keep) & _forced(tried, solutions, cell)
            clues[row[go], cell[go]] = 0
    return clues


def _forced(clues: Cells, solutions: Cells, cell: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """(N,) whether the clues force the one `cell` of each board, by a single look."""
    row = np.arange(len(clues))
    digit = solutions[row, cell]
    seen = np.zeros((len(clues), 10), dtype=bool)
    np.put_along_axis(seen, clues[row[:, None], PEERS[cell]].astype(np.int64), True, axis=1)
    naked = seen[:, 1:].sum(axis=1) == 8
    stands = (clues == digit[:, None])[:, PEERS].any(axis=2)  # (N, 81): the digit stands in a house of this cell
    open_cells = (clues == 0) & ~stands
    hidden = np.zeros(len(clues), dtype=bool)
    for kind in range(3):
        members = MEMBERS[HOUSES[cell, kind]]
        hidden |= open_cells[row[:, None], members].sum(axis=1) == 1
    return np.asarray(naked | hidden)


def _digest(parts: list[Boards]) -> str:
    return hashlib.sha256(b"".join(array.tobytes() for part in parts for array in part)).hexdigest()


def _load(path: Path, made_from: str) -> Dataset | None:
    try:
        if header.read(path).metadata.get("made_from") != made_from:
            return None
        kept = snapshot.read_tensors(path)  # proves the digests
        parts = [Boards(*(kept[f"{name}.{key}"].data for key in Boards._fields)) for name in PARTS]
    except FileNotFoundError:
        return None
    except (OSError, snapshot.SnapshotCorrupt, KeyError) as wrong:
        contract.say(f"{path} can't be used ({wrong}): making the boards again")
        return None
    return Dataset(parts[0], parts[1], parts[2], _digest(parts))

"""The data's order is a function of (seed, epoch), and the position is what training was handed."""

import os
import subprocess
import sys

import pytest
import torch

from remote_runner.checkpoint.torch_data import Batches, mixed_seed

ITEMS = torch.arange(23)


def through(batches, epochs, loader=None):
    return [[list(map(int, batch)) for batch in batches.over(loader)] for _ in range(epochs)]


def test_order_depends_on_seed_and_epoch_alone():
    first, again, other = (Batches(23, batch_size=4, seed=seed) for seed in (1, 1, 2))
    rows = through(first, 3)
    torch.manual_seed(99)
    assert rows == through(again, 3)
    assert rows != through(other, 3)
    assert rows[0] != rows[1]
    assert all(len({index for batch in epoch for index in batch}) == 20 for epoch in rows)


def test_the_order_is_the_same_on_every_machine():
    """A pinned value: if it changes, every saved run stops resuming."""
    assert Batches(10, batch_size=2, seed=7).order(0).tolist() == [3, 9, 6, 5, 7, 4, 1, 8, 0, 2]
    assert mixed_seed(7, "a", 1) == 7657576676628874343


@pytest.mark.parametrize("cut", [0, 1, 4, 5, 6, 9])
@pytest.mark.parametrize("workers", [0, 2])
def test_going_on_after_any_batch_gives_the_rest(cut, workers):
    straight = [batch for epoch in through(Batches(23, batch_size=4, seed=1), 3) for batch in epoch]
    batches = Batches(23, batch_size=4, seed=1)
    loader = batches.loader(ITEMS, num_workers=workers)
    seen = []
    while len(seen) < cut:
        for batch in batches.over(loader):
            seen.append(list(map(int, batch)))
            if len(seen) == cut:
                break
    state = batches.state_dict()  # workers have fetched ahead; that doesn't count
    resumed = Batches(23, batch_size=4, seed=1)
    resumed.load_state_dict(state)
    loader = resumed.loader(ITEMS, num_workers=workers)
    while len(seen) < 15:
        seen += [list(map(int, batch)) for batch in resumed.over(loader)]
    assert seen == straight
    sought = Batches(23, batch_size=4, seed=1)
    sought.seek(cut)
    assert sought.state_dict() == state


def test_starting_a_loader_moves_no_random_state():
    batches = Batches(23, batch_size=4, seed=1)
    loader = batches.loader(ITEMS, num_workers=2)
    torch.manual_seed(3)
    drawn = torch.rand(1).item()
    torch.manual_seed(3)
    next(batches.over(loader))
    assert torch.rand(1).item() == drawn


def test_another_order_is_refused_by_name():
    state = Batches(23, batch_size=4, seed=1).state_dict()
    for other, words in (
        (Batches(24, batch_size=4, seed=1), "size was 23 when saved, is 24 now"),
        (Batches(23, batch_size=5, seed=1), "batch_size was 4"),
        (Batches(23, batch_size=4, seed=2), "seed was 1"),
    ):
        with pytest.raises(ValueError, match=words):
            other.load_state_dict(state)


def test_impossible_batches_are_refused():
    for size, batch_size in ((3, 4), (3, 0)):
        with pytest.raises(ValueError, match="can't be made"):
            Batches(size, batch_size=batch_size, seed=1)


WORKERS = """
import os, signal, sys, torch
from remote_runner.checkpoint.torch import Batches, Pause
import multiprocessing

pause = Pause()  # what a worker inherits until it has begun to ignore
batches = Batches(64, batch_size=1, seed=1)
rows = batches.over(batches.loader(torch.arange(64), num_workers=2))
next(rows)
workers = multiprocessing.active_children()
for worker in workers:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        os.kill(worker.pid, number)
rest = list(rows) if sys.argv[1] == "through" else [next(rows)]
print(len(workers), len(rest), pause.asked(), flush=True)
if sys.argv[1] == "leave":
    sys.exit(75)  # with the iterator alive in this frame
"""


@pytest.mark.parametrize(("word", "rest", "code"), [("through", 63, 0), ("leave", 1, 75)])
def test_workers_ignore_pause_signals_and_never_hold_up_the_exit(word, rest, code):
    argv = [sys.executable, "-c", WORKERS, word]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert (done.returncode, done.stdout.split()) == (code, ["2", str(rest), "False"]), done.stderr
    assert done.stderr == ""


PAUSING = """
import os, signal, sys
from remote_runner.checkpoint.torch import Pause

pause = Pause(sys.argv[1], signals=("TERM", "INT"))
assert not pause.asked()
assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL, "left to whoever wants it"
if sys.argv[2] == "file":
    open(os.path.join(sys.argv[1], ".pause"), "w").close()
else:
    for _ in range(20):
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
assert pause.asked()
pause.leave()
"""


@pytest.mark.parametrize("word", ["signal", "file"])
def test_a_pause_is_asked_for_by_the_chosen_signals_or_the_file(tmp_path, word):
    done = subprocess.run([sys.executable, "-c", PAUSING, tmp_path, word], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (75, "paused: full training state saved\n"), done.stderr
    assert not (tmp_path / ".pause").exists()

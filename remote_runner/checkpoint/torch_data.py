"""The order of the training data as a function of (seed, epoch), and where in it the training stands.

    batches = Batches(len(dataset), batch_size=32, seed=7)
    loader = batches.loader(dataset, num_workers=2)
    for batch in batches.over(loader):        # the rest of this epoch; the next call is the next epoch
        …

What counts as done is what the loop was handed, not what the workers fetched ahead. Randomness inside a dataset must
come from the index (and the seed): a worker's own generator does not survive an interruption.

Not here: saving the position (torch_save.py does, given `data=batches`).
"""

from __future__ import annotations

import atexit
import hashlib
import multiprocessing
import signal
from typing import Any, Dict, Iterator, List, Mapping, Optional

import numpy
import torch
from torch.utils.data import DataLoader

from remote_runner.checkpoint.torch_ranks import rank, world_size


class Batches:
    """A batch sampler that can be put back to where training was.

    Args:
        size: items in the dataset.
        batch_size: items in one batch over all ranks together; each rank gets its equal share.
        seed: of the order.

    A remainder that fills no batch is left out of its epoch.

    Raises:
        ValueError: no batch fits, or a batch can't be shared equally among the ranks.
    """

    def __init__(self, size: int, *, batch_size: int, seed: int) -> None:
        if not 0 < batch_size <= size or batch_size % world_size():
            raise ValueError(f"batches of {batch_size} from {size} items on {world_size()} ranks can't be made")
        self.size, self.batch_size, self.seed = size, batch_size, seed
        self.epoch, self.batch = 0, 0
        self._generator = torch.Generator()

    def __len__(self) -> int:
        return self.size // self.batch_size

    def __iter__(self) -> Iterator[List[int]]:
        """Yield this rank's indices of each batch from the position to the end of the epoch."""
        order = self.order(self.epoch)
        for start in range(self.batch * self.batch_size, len(self) * self.batch_size, self.batch_size):
            yield order[start + rank() : start + self.batch_size : world_size()].tolist()

    def order(self, epoch: int) -> torch.Tensor:
        """(size,) int64, the shuffled indices of an epoch.

        Sorted raw words of Philox: NumPy promises the stream of a bit generator for good (NEP 19), torch promises
        nothing of `randperm` between versions.
        """
        words = numpy.random.Philox(key=mixed_seed(self.seed, "order", epoch)).random_raw(self.size)
        return torch.from_numpy(numpy.argsort(words, kind="stable").astype(numpy.int64))

    def order_sha256(self, epoch: int) -> str:
        """The digest of an epoch's order, the same on every machine."""
        return hashlib.sha256(self.order(epoch).numpy().astype("<i8").tobytes()).hexdigest()

    def seek(self, step: int) -> None:
        """Stand where `step` batches are done."""
        self.epoch, self.batch = divmod(step, len(self))

    def loader(self, dataset: Any, **options: Any) -> DataLoader[Any]:
        """Make a DataLoader in this order, whose workers leave pause signals to the trainer."""
        return DataLoader(
            dataset, batch_sampler=self, generator=self._generator, worker_init_fn=_ignore_signals, **options
        )

    def over(self, loader: Optional[DataLoader[Any]] = None) -> Iterator[Any]:
        """Yield the rest of the epoch and count it; without a loader, lists of indices."""
        # A loader draws its workers' seed when it starts: from a generator of our own, so that starting once more in
        # mid-epoch moves no other random state.
        self._generator.manual_seed(mixed_seed(self.seed, "workers", self.epoch))
        before = set(multiprocessing.active_children())
        # Workers begin with the signals blocked: until one has come to ignore them, they would end it.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, _IGNORED)
        try:
            items = iter(loader if loader is not None else self)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        _workers.update(set(multiprocessing.active_children()) - before)
        for item in items:
            self.batch += 1
            yield item
        self.epoch, self.batch = self.epoch + 1, 0

    def state_dict(self) -> Dict[str, Any]:
        """Return the position, and what the order was made from."""
        epoch, batch = (self.epoch + 1, 0) if self.batch == len(self) else (self.epoch, self.batch)
        return {"epoch": epoch, "batch": batch, **self._identity(epoch)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a saved position. Raises ValueError when the order made here is not the saved one."""
        mine = self._identity(state["epoch"])
        for key, value in mine.items():
            if state[key] != value:
                raise ValueError(f"data order differs: {key} was {state[key]} when saved, is {value} now")
        self.epoch, self.batch = state["epoch"], state["batch"]

    def _identity(self, epoch: int) -> Dict[str, Any]:
        return {
            "size": self.size,
            "batch_size": self.batch_size,
            "seed": self.seed,
            "order_sha256": self.order_sha256(epoch),
        }


def mixed_seed(seed: int, *parts: object) -> int:
    """A seed in [0, 2**63) that depends on every part; equal on every machine."""
    text = "/".join(str(part) for part in (seed, *parts))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


_workers: set[Any] = set()
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


def _ignore_signals(_: int) -> None:
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)


@atexit.register
def _end_workers() -> None:
    """At exit multiprocessing sends its daemons SIGTERM and waits; ours ignore that, so they are ended before."""
    alive = [worker for worker in _workers if worker.is_alive()]
    if alive:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler would raise for each of them
    for worker in alive:
        worker.kill()

"""`benchmark`: how many boards a second the trained solver fills in on this machine.

Not here: whether they are right (evaluate.py).
"""

from __future__ import annotations

import json
import time

from ncm_mlx import boards, config, evaluate
from remote_runner.checkpoint import contract, pause, rotate

BOARDS = 32
REPEATS = 5


def run(c: config.Config) -> int:
    """Write `benchmark.json`: the median of some repeats, after one that isn't counted."""
    request = pause.Request(c.folder)
    solver = evaluate.load(c)
    clues = boards.prepare(c.folder, c.seed, c.data).test.clues[:BOARDS]
    seconds = []
    for _ in range(REPEATS + 1):
        if request.asked():
            request.obeyed()
            contract.say("paused in benchmark: full training state saved")
            return contract.PAUSED
        begun = time.perf_counter()
        evaluate.solve(solver, clues)
        seconds.append(time.perf_counter() - begun)
    median_s = sorted(seconds[1:])[REPEATS // 2]
    told = {"boards": len(clues), "median_s": median_s, "boards_per_s": len(clues) / median_s}
    contract.say(f"{told['boards_per_s']:.1f} boards/s ({len(clues)} at once, median of {REPEATS})")
    rotate.replace_with(c.folder / "benchmark.json", (json.dumps(told, indent=1) + "\n").encode())
    return contract.DONE

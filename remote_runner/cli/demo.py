"""`remote-run demo`: the main job on a pretend pod on this machine."""

from __future__ import annotations

import sys
from pathlib import Path

import click


@click.command()
@click.argument("config", type=click.Path(path_type=Path), default="configs/sudoku-smoke.json")
def demo(config: Path) -> int:
    """Do the main job with CONFIG of this project on a pretend pod: run, pause, resume, verify.

    Everything happens in a new temporary folder on this machine.
    """
    from remote_runner import demo as steps

    project = steps.run(config)
    steps.say(f"done. The results lie in {project}")
    print(project, file=sys.stdout)
    return 0

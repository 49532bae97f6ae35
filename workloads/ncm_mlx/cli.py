"""The command line of the trainer. `check` loads no mlx, and nothing does before the config is found good.

Not here: signals (__main__.py), the stages (train.py).
"""

from __future__ import annotations

import argparse
from pathlib import Path

from ncm_mlx import config
from remote_runner.checkpoint import contract
from remote_runner.checkpoint.config import ConfigError


def main(argv: list[str] | None = None) -> int:
    """Run one command. Returns the exit code of the contract."""
    options = _parser().parse_args(argv)
    try:
        settings = config.read(options.config)
        if options.command == "check":
            contract.say(f"{options.config}: good")
            return contract.DONE
        config.memory_limit_bytes()  # refused before anything is begun
        contract.use_writable_tmpdir(Path.cwd())
        if options.command == "train":
            from ncm_mlx import train

            return train.run(settings, _restart(options), resume=options.resume)
        if options.command == "evaluate":
            from ncm_mlx import evaluate

            return evaluate.run(settings)
        from ncm_mlx import benchmark

        return benchmark.run(settings)
    except ConfigError as wrong:
        return contract.refuse(str(wrong), wrong.fix)
    except OSError as wrong:
        contract.say(f"stopped: can't write: {wrong}")
        return contract.CANNOT_SAVE


def _restart(options: argparse.Namespace) -> config.Restart | None:
    given = (options.generator_checkpoint, options.generator_start_step)
    if given == (None, None):
        return None
    if None in given:
        raise ConfigError(
            "--generator-checkpoint and --generator-start-step belong together", "give both, or neither of them"
        )
    return config.Restart(checkpoint=given[0], start_step=given[1])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m ncm_mlx", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    texts = {
        "train": "train codec and generator",
        "evaluate": "solve the test boards, print the solve rate",
        "benchmark": "measure boards solved per second",
        "check": "judge the config, load nothing heavy",
    }
    for name, text in texts.items():
        command = commands.add_parser(name, help=text)
        command.add_argument("config", type=Path, metavar="CONFIG")
        if name == "train":
            command.add_argument("--resume", action="store_true", help="go on from the newest whole snapshot")
            command.add_argument("--generator-checkpoint", type=Path, metavar="FILE", help="weights to begin from")
            command.add_argument("--generator-start-step", type=int, metavar="N", help="the step they stand for")
    return parser

"""The command line of the trainer. `check` loads no torch, and nothing does before the config is found good.

Not here: signals (__main__.py), the training (train.py).
"""

from __future__ import annotations

import argparse
from pathlib import Path

from cipher_torch import config
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
        contract.use_writable_tmpdir(Path.cwd())
        if options.command == "train":
            from cipher_torch import train

            return train.run(settings, resume=options.resume)
        from cipher_torch import evaluate

        return evaluate.run(settings)
    except ConfigError as wrong:
        return contract.refuse(str(wrong), wrong.fix)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m cipher_torch", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    texts = {
        "train": "train the decoder",
        "evaluate": "decode the validation messages, print accuracy beside frequency analysis",
        "check": "judge the config, load nothing heavy",
    }
    for name, text in texts.items():
        command = commands.add_parser(name, help=text)
        command.add_argument("config", type=Path, metavar="CONFIG")
        if name == "train":
            command.add_argument("--resume", action="store_true", help="go on from the newest whole snapshot")
    return parser

"""The command line: `remote-run TARGET CONFIG`, and the other commands by name.

A command module imports click alone at its top; what is heavy loads inside a command. Every end of the
process is one of the design's exit codes.
"""

from __future__ import annotations

import gc
import sys

import click

from remote_runner import __version__
from remote_runner.cli.base import DETACHED, LazyGroup, run_cli

COMMANDS = {
    "run": ("run", "run"),
    "local": ("local", "local"),
    "detached": ("local", "detached"),
    "attach": ("live", "attach"),
    "status": ("live", "status"),
    "logs": ("live", "logs"),
    "pause": ("live", "pause"),
    "stop": ("live", "stop"),
    "download": ("live", "download"),
    "backup": ("backup", "backup"),
    "backups": ("stored", "backups"),
    "restore": ("stored", "restore"),
    "prune": ("stored", "prune"),
    "inspect": ("snapshots", "inspect"),
    "verify": ("snapshots", "verify"),
    "diff": ("snapshots", "diff"),
    "restart": ("restart", "restart"),
    "ssh": ("shell", "ssh"),
    "reproduce": ("reproduce", "reproduce"),
    "init": ("init", "init"),
    "check": ("init", "check"),
    "demo": ("demo", "demo"),
}


@click.group(
    cls=LazyGroup,
    commands_in=COMMANDS,
    default="run",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    invoke_without_command=False,
)
@click.version_option(__version__, prog_name="remote-run")
def cli() -> None:
    """Run one training on a rented GPU over SSH and lose nothing.

    remote-run HOST:PORT configs/x.json --max-hours 12 takes an experiment to a pod, keeps it inside its hours
    there, backs it up while it runs, and brings everything home verified. All options of a run:
    remote-run run --help
    """


def main() -> None:
    """The console script."""
    if sys.platform == "win32":
        sys.exit("remote-run runs on Linux and macOS; on Windows, use it inside WSL2")
    try:
        code = run_cli(cli, sys.argv[1:])
    except KeyboardInterrupt:  # a second one, in the middle of the first one's end
        code = DETACHED
    gc.freeze()  # what is left needs no collecting: it would take 30 ms of every command
    sys.exit(code)

"""`remote-run ssh`: a shell on the pod, where the run is."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import click

from remote_runner.cli.live import found_run, run_arguments


class _WithCommand(click.Command):
    """What stands after `--` is a command for the pod, not the name of a run."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        at = args.index("--") if "--" in args else len(args)
        ctx.meta["command"] = args[at + 1 :]
        return super().parse_args(ctx, args[:at])


@click.command(cls=_WithCommand)
@run_arguments
@click.pass_context
def ssh(ctx: click.Context, /, target: str, name: str | None, **given: Any) -> int:
    """Open a shell in the run's root with its environment; after -- run one command there.

    Secrets are not part of that environment: they are in the run's memory alone.
    """
    from remote_runner import openssh
    from remote_runner.agent import python_command
    from remote_runner.errors import UsageFault

    if not openssh.available():
        raise UsageFault("there is no ssh on this machine", fix="install OpenSSH's client")
    with found_run(target, name, given) as (_known, agent, _where), tempfile.TemporaryDirectory() as folder:
        openssh.prepare(Path(folder), [agent.pod.host_key_line()])
        code = "import sys; sys.path.insert(0, sys.argv[1]); from remote_runner.pod.shell import main; "
        code += "sys.exit(main(sys.argv[2], sys.argv[3:]))"
        app = f"{agent.root}/.remote-run/{_app_name()}"
        command = python_command(code, app, str(agent.root), *ctx.meta["command"])
        words = openssh.argv(agent.pod.endpoint, Path(folder), command)
        if sys.stdin.isatty() and not ctx.meta["command"]:
            words = ["-tt" if w == "-T" else "RequestTTY=force" if w == "RequestTTY=no" else w for w in words]
        return subprocess.run(words, check=False).returncode


def _app_name() -> str:
    from remote_runner import zipapp

    return zipapp.build().name

"""Commands on a run that is on a pod: attach, status, logs, pause, stop, download."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from remote_runner.cli.base import DETACHED, Duration, access_options

if TYPE_CHECKING:
    from remote_runner.agent import Agent
    from remote_runner.runs import Known


def _run_arguments(command: Any) -> Any:
    command = access_options(command)
    command = click.argument("name", required=False)(command)
    return click.argument("target", metavar="HOST:PORT")(command)


@contextlib.contextmanager
def _found(target: str, name: str | None, given: dict[str, Any]) -> Iterator[tuple[Known, Agent]]:
    """The run on the pod, over a connection that is closed at the end."""
    from remote_runner import runs
    from remote_runner.access import Access
    from remote_runner.errors import OutOfContact
    from remote_runner.ssh import LinkLost

    access = Access.of(target, given)
    known, agent = runs.find(access, Path.cwd(), name, given["remote_dir"])
    try:
        yield known, agent
    except LinkLost as e:
        raise OutOfContact(f"the connection broke: {e}", fix="try again") from None
    finally:
        agent.pod.close()


@click.command()
@_run_arguments
@click.option("--backup-to", default="", metavar="URL", help="Store for backups; default: the settings'.")
@click.option("--backup-every", type=Duration(), metavar="15m", help="Time between two backups.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("--verbose", "-v", is_flag=True, help="Show the workload's log as it grows.")
def attach(target: str, name: str | None, **given: Any) -> int:
    """Take up a run that goes on, or has ended, and bring it home."""
    from remote_runner import runs
    from remote_runner.view import View

    with _found(target, name, given) as (known, agent), View(given["verbose"]) as view:
        try:
            report = runs.attach(known, agent, given["backup_to"], given["backup_every"], view)
        except KeyboardInterrupt:
            print(f"detached: the run goes on. Come back with: remote-run attach {target}", file=sys.stderr)
            return DETACHED
    click.echo(report.to_json() if given["as_json"] else report.summary())
    return report.exit_code


@click.command()
@_run_arguments
@click.option("--json", "as_json", is_flag=True, help="Print the status as JSON.")
def status(target: str, name: str | None, **given: Any) -> int:
    """Say how a run goes: its state, step, deadline, and whether its supervisor lives."""
    from remote_runner.status_text import describe

    with _found(target, name, given) as (known, agent):
        seen = agent.ask("state", name=known.name)
    seen.pop("ok")
    click.echo(json.dumps(seen, indent=1, sort_keys=True) if given["as_json"] else describe(seen))
    return 0


@click.command()
@_run_arguments
@click.option("--follow", "-f", is_flag=True, help="Go on until the run ends.")
@click.option("--tail", "tail_bytes", default=8192, show_default=True, help="Bytes of the log's end to begin with.")
def logs(target: str, name: str | None, follow: bool, tail_bytes: int, **given: Any) -> int:
    """Print a run's log."""
    from remote_runner.agent import printable

    with _found(target, name, given) as (known, agent):
        text = str(agent.ask("state", name=known.name, tail_bytes=min(tail_bytes, 1 << 20)).get("log_tail"))
        click.echo(printable(text), nl=False)
        if follow:
            offset = agent.ask("list", outputs=[], names=[known.name])
            sizes = {f["path"]: f["size"] for f in offset["files"]}
            agent.send({"op": "follow", "name": known.name, "offset": sizes.get(f"runs/{known.name}-train.log", 0)})
            while True:
                header, part = agent.receive()
                if header.get("follow") is not True:
                    break
                click.echo(printable(part.decode("utf-8", "replace")), nl=False)
    return 0


@click.command()
@_run_arguments
@click.option("--wait/--no-wait", default=True, help="Wait until it has paused.")
def pause(target: str, name: str | None, wait: bool, **given: Any) -> int:
    """Ask a run to save its full state and stop; it can be resumed from there."""
    return _ask(target, name, None, wait, given)


@click.command()
@_run_arguments
@click.option("--grace", type=Duration(), default="2m", help="How long it may take to save; then it is killed.")
@click.option("--wait/--no-wait", default=True, help="Wait until it is over.")
def stop(target: str, name: str | None, grace: float, wait: bool, **given: Any) -> int:
    """Pause a run, and kill what has not paused in time."""
    return _ask(target, name, grace, wait, given)


def _ask(target: str, name: str | None, grace_s: float | None, wait: bool, given: dict[str, Any]) -> int:
    from remote_runner import ssh
    from remote_runner.errors import UsageFault
    from remote_runner.status_text import describe

    with _found(target, name, given) as (known, agent):
        answer = agent.ask("request", name=known.name, by=ssh.local_user(), grace_s=grace_s)
        if not answer.get("asked"):
            raise UsageFault(f"{known.name} does not run there", fix=f"see: remote-run status {target} {known.name}")
        seen = agent.ask("state", name=known.name)
        while wait and seen.get("supervisor_lives"):
            time.sleep(0.5)
            seen = agent.ask("state", name=known.name)
    click.echo(describe(seen))
    return 0


@click.command()
@_run_arguments
def download(target: str, name: str | None, **given: Any) -> int:
    """Bring a run's files home, verified; a run that goes on is not disturbed."""
    from remote_runner import download as step
    from remote_runner import record

    with _found(target, name, given) as (known, agent):
        say = lambda text: print(text, file=sys.stderr)  # noqa: E731
        with record.only_controller(known.root, known.name):
            home = step.bring_home(agent, known.root, known.name, known.outputs, say)
    click.echo(
        f"{len(home.manifest)} files verified, {home.fetched} of them fetched ({home.fetched_bytes / 1e6:.2f} MB)"
    )
    home.require()
    return 0

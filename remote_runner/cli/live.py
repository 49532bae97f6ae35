"""Commands on a run that is on a pod: attach, status, logs, pause, stop, download."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from remote_runner.cli.base import DETACHED, Duration, access_options, say, show_report

if TYPE_CHECKING:
    from remote_runner.access import Access
    from remote_runner.agent import Agent
    from remote_runner.errors import RunnerError
    from remote_runner.runs import Known


def run_arguments(command: Any) -> Any:
    """The arguments of a command on a run that is on a pod."""
    command = access_options(command)
    command = click.option("--at", default="", metavar="HOST:PORT", help="The run's pod has this address now.")(command)
    command = click.argument("name", required=False)(command)
    return click.argument("target", metavar="HOST:PORT|NAME")(command)


def _access(target: str, name: str | None, given: dict[str, Any]) -> tuple[Access, str | None]:
    """Where to look, and for which run: `HOST:PORT [NAME]`, or the name of a run that this project remembers."""
    from remote_runner import whereabouts
    from remote_runner.access import Access

    here = whereabouts.of(Path.cwd(), target, name, given["at"])
    given = {**given, "host_key": given["host_key"] or here.host_key}
    return Access.of(here.target, given), here.name


@contextlib.contextmanager
def found_run(
    target: str, name: str | None, given: dict[str, Any], measured: Callable[[float], None] = lambda _: None
) -> Iterator[tuple[Known, Agent, str]]:
    """The run on the pod, over a connection that is closed at the end, and how to type where it is."""
    from remote_runner import runs, whereabouts
    from remote_runner.errors import OutOfContact, PreflightFailed
    from remote_runner.program import LinkLost

    access, name = _access(target, name, given)
    try:
        known, agent = runs.find(access, Path.cwd(), name, given["remote_dir"], measured)
    except PreflightFailed as e:
        if not e.passing:
            raise
        raise OutOfContact(
            f"{e}; the pod is stopped, gone, or has another address now",
            fix=f"look it up at the provider, then: remote-run attach {name or 'NAME'} --at HOST:PORT",
        ) from None
    try:
        if given["at"]:
            whereabouts.moved(known.root, known.name, access.target, str(agent.pod.endpoint))
        yield known, agent, access.words
    except LinkLost as e:
        raise OutOfContact(f"the connection broke: {e}", fix="try again") from None
    finally:
        agent.pod.close()


@click.command()
@run_arguments
@click.option("--backup-to", default="", metavar="URL", help="Store for backups; default: the settings'.")
@click.option("--backup-every", type=Duration(), metavar="15m", help="Time between two backups.")
@click.option("--take-over", is_flag=True, help="At once, though another controller follows the run.")
@click.option("--on-interrupt", type=click.Choice(["detach", "pause"]), default="detach", help="What Ctrl-C does.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("--verbose", "-v", is_flag=True, help="Show the workload's log as it grows.")
def attach(target: str, name: str | None, **given: Any) -> int:
    """Take up a run that goes on, or has ended, and bring it home."""
    from remote_runner import runs
    from remote_runner.view import View

    with found_run(target, name, given) as (known, agent, where), View(given["verbose"]) as view:
        try:
            report = runs.attach(
                known,
                agent,
                view,
                backup_to=given["backup_to"],
                backup_every_s=given["backup_every"],
                take_over=given["take_over"],
                on_interrupt=given["on_interrupt"],
            )
        except KeyboardInterrupt:
            print(f"detached: the run goes on. Come back with: remote-run attach {where} {known.name}", file=sys.stderr)
            return DETACHED
    return show_report(report, given["as_json"])


@click.command()
@run_arguments
@click.option("--json", "as_json", is_flag=True, help="Print the status as JSON.")
def status(target: str, name: str | None, **given: Any) -> int:
    """Say how a run goes: its state, step, deadline, whether its supervisor lives, and what is at risk.

    Of a pod that does not answer it says what is safe in the store, and how to go on elsewhere.
    """
    from remote_runner import risk
    from remote_runner.errors import OutOfContact
    from remote_runner.status_text import describe

    try:
        with found_run(target, name, given) as (known, agent, where):
            seen = agent.ask("state", name=known.name)
            at_risk = risk.look(agent, known.root, known.name, known.outputs, seen)
    except OutOfContact as e:
        _say_what_is_safe(target, name, given, e)
        raise
    seen.pop("ok")
    if given["as_json"]:
        click.echo(json.dumps({**seen, "risk": at_risk.to_json()}, indent=1, sort_keys=True))
    else:
        click.echo("\n".join([describe(seen, where), *at_risk.lines()]))
    return 0


def _say_what_is_safe(target: str, name: str | None, given: dict[str, Any], error: RunnerError) -> None:
    """On stdout, what a lost pod leaves; the one command that goes on from it becomes part of the fix."""
    from remote_runner import record, risk, settings, whereabouts

    root = settings.find_root(Path.cwd().absolute())
    run = whereabouts.of(Path.cwd(), target, name, given["at"]).name
    known = record.load(root, run) if run else {}
    if not run or not known:
        return
    at_risk = risk.without_pod(root, run)
    if given["as_json"]:
        click.echo(json.dumps({"fate": "no contact", "risk": at_risk.to_json()}, indent=1, sort_keys=True))
    else:
        click.echo("\n".join([f"{run}: no contact", *at_risk.lines()]))
    gone = record.last_attempt(known).get("target")
    error.fix += (
        f"; or, when it is gone for good, on another pod: remote-run HOST:PORT {known.get('config')} --resume "
        f"--abandon {gone}"
    )


@click.command()
@run_arguments
@click.option("--follow", "-f", is_flag=True, help="Go on until the run ends.")
@click.option(
    "--tail",
    "lines",
    type=click.IntRange(min=0),
    default=100,
    show_default=True,
    help="Lines of its end to begin with.",
)
def logs(target: str, name: str | None, follow: bool, lines: int, **given: Any) -> int:
    """Print a run's log; with -f as it grows, over lost links too."""
    from remote_runner import tail
    from remote_runner.agent import printable
    from remote_runner.status_text import describe

    with found_run(target, name, given) as (known, agent, where):
        seen = agent.ask("state", name=known.name, tail_bytes=1 << 20 if lines else 0)
        click.echo(printable("".join(str(seen.get("log_tail")).splitlines(keepends=True)[-lines:])), nl=False)
        if follow:
            try:
                show = lambda text: click.echo(text, nl=False)  # noqa: E731
                seen = tail.to_end(agent, known.name, int(seen["log_offset"]), show, say)
            except KeyboardInterrupt:
                print(f"no longer shown; again: remote-run logs -f {where} {known.name}", file=sys.stderr)
                return DETACHED
    if not follow and seen.get("fate") != "running":
        print(describe(seen, where), file=sys.stderr)
    return 0


@click.command()
@run_arguments
@click.option("--wait/--no-wait", default=True, help="Wait until it has paused.")
@click.option("--kill", is_flag=True, help='End it where its settings say pause = "none".')
def pause(target: str, name: str | None, wait: bool, kill: bool, **given: Any) -> int:
    """Ask a run to save its full state and stop; it can be resumed from there."""
    return _ask(target, name, None, wait, given, kill)


@click.command()
@run_arguments
@click.option("--grace", type=Duration(), default="2m", help="How long it may take to save; then it is killed.")
@click.option("--wait/--no-wait", default=True, help="Wait until it is over.")
def stop(target: str, name: str | None, grace: float, wait: bool, **given: Any) -> int:
    """Pause a run, and kill what has not paused in time."""
    return _ask(target, name, grace, wait, given)


def ask_to_stop(agent: Agent, name: str, grace_s: float | None, kill: bool, fix: str) -> bool:
    """Ask a run to save and stop, or end it with `kill` where it can't be asked. False: it does not run.

    Raises:
        UsageFault: it can't be asked (pause = "none"); `fix` says what else to do.
    """
    from remote_runner import ssh
    from remote_runner.errors import UsageFault

    answer = agent.ask("request", name=name, by=ssh.local_user(), grace_s=grace_s)
    if answer.get("cannot") and kill:
        answer = agent.ask("request", name=name, by=ssh.local_user(), grace_s=0.0)
    if answer.get("cannot"):
        raise UsageFault(
            f'{name} can\'t be asked to pause (pause = "none" in its settings): {answer["cannot"]}', fix=fix
        )
    return bool(answer.get("asked"))


def _ask(
    target: str, name: str | None, grace_s: float | None, wait: bool, given: dict[str, Any], kill: bool = False
) -> int:
    from remote_runner.errors import UsageFault
    from remote_runner.status_text import describe

    with found_run(target, name, given) as (known, agent, where):
        fix = 'end it all the same with --kill, or name a signal that makes it save: pause = "SIGTERM"'
        asked = ask_to_stop(agent, known.name, grace_s, kill, fix)
        if not asked:
            raise UsageFault(f"{known.name} does not run there", fix=f"see: remote-run status {where} {known.name}")
        seen = agent.ask("state", name=known.name)
        while wait and seen.get("supervisor_lives"):
            time.sleep(0.5)
            seen = agent.ask("state", name=known.name)
    click.echo(describe(seen, where))
    return 0


@click.command()
@run_arguments
@click.option("--from", "from_path", default="", metavar="PATH", help="A folder on the pod that is no run of ours.")
@click.option("--to", type=click.Path(file_okay=False, path_type=Path), help="Where it comes, under its own name.")
@click.option("--keep", default="", metavar="RULE", help="Which checkpoints come: all, newest:N or a glob.")
def download(target: str, name: str | None, **given: Any) -> int:
    """Bring a run's files home, verified; a run that goes on is not disturbed.

    With --from and --to, any folder of a pod, of a job that was not started with this tool.
    """
    from remote_runner import download as step
    from remote_runner import record, runs, settings

    if given["from_path"] or given["to"]:
        return _download_elsewhere(target, given)
    access, remembered = _access(target, name, given)
    channels = runs.ahead(access, Path.cwd(), remembered)
    measured = channels.expect if channels else lambda _: None
    with (
        channels or contextlib.nullcontext(),
        found_run(target, name, given, measured) as (known, agent, _where),
        record.only_controller(known.root, known.name),
    ):
        here = record.load(known.root, known.name)
        keep = given["keep"] or (settings.load(known.root, known.name).download.keep if here else "")
        price = record.price_usd_h(here)
        home = step.bring_home(agent, known.root, known.name, known.outputs, say, keep, _asker(), price, channels)
    click.echo(
        f"{len(home.manifest)} files verified, {home.fetched} of them fetched ({home.fetched_bytes / 1e6:.2f} MB)"
    )
    home.require()
    return 0


def _asker() -> Callable[[str], bool] | None:
    """Puts a question, where somebody can answer it."""
    return (lambda text: click.confirm(text, err=True)) if sys.stdin.isatty() else None


def _download_elsewhere(target: str, given: dict[str, Any]) -> int:
    from remote_runner import elsewhere
    from remote_runner.access import Access

    if not given["from_path"] or given["to"] is None:
        raise click.UsageError("--from PATH and --to DIR go together")
    access, to = Access.of(target, given), given["to"].absolute()
    home = elsewhere.bring(access, given["from_path"], to, say, given["keep"], _asker())
    click.echo(f"{len(home.manifest)} files verified, {home.fetched} of them fetched, in {given['to']}")
    home.require()
    return 0

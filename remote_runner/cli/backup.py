"""`remote-run backup`: one backup of a run and the end, by hand or from cron."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from remote_runner.cli.base import access_options, complain

if TYPE_CHECKING:
    from remote_runner.standing import Standing


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="[HOST:PORT] CONFIG|NAME")
@click.option("--to", default="", metavar="URL", help="The store; default: the settings'.")
@click.option("--project", default="", help="The project's name on the pod; default: this folder's.")
@access_options
@click.option("--print-cron", metavar="SCHEDULE", help="Print the crontab's line, as for '*/15 * * * *'.")
@click.option("--install-cron", metavar="SCHEDULE", help="Put that line into your crontab, after one proving run.")
@click.option("--remove-cron", is_flag=True, help="Take it out again.")
def backup(words: tuple[str, ...], **given: Any) -> int:
    """Back up a run once: quiet when all is well, one line and an exit code when not.

    With the pod's address it also becomes known to this machine under its name; later the name alone is enough.
    """
    from remote_runner import once, standing
    from remote_runner.errors import RunnerError, UsageFault

    if len(words) > 2:
        raise click.UsageError("give the pod's address and the run's config or name, or the name alone")
    name = Path(words[-1]).stem if words[-1].endswith((".json", ".toml", ".yaml", ".yml")) else words[-1]
    if given["remove_cron"]:
        return _remove(name)
    if len(words) == 1 and not (given["print_cron"] or given["install_cron"]):
        return _tick(name)
    one = standing.load(name) if len(words) == 1 else _order(words[0], name, given)
    if one is None:
        raise UsageFault(f"nothing is known here of a run {name!r}", fix=f"remote-run backup HOST:PORT {name} --to URL")
    if given["print_cron"] or given["install_cron"]:
        return _schedule(one, given)
    try:
        made = once.make(one)
    except RunnerError as e:
        complain(e)
        return e.exit_code
    print(f"backup {made.backup.id}: {made.backup.files} files, {made.backup.new_bytes / 1e6:.2f} MB new",
          file=sys.stderr)  # fmt: skip
    return 0


def _order(target: str, name: str, given: dict[str, Any]) -> Standing:
    from remote_runner import once, standing
    from remote_runner.access import Access

    access = Access.of(target, given)
    one = once.order(access, name, given["to"], given["remote_dir"], given["project"], Path.cwd())
    standing.save(one)
    return one


def _tick(name: str) -> int:
    from remote_runner import once
    from remote_runner.errors import Refused

    try:
        said, code = once.tick(name)
    except Refused as e:
        print(f"{name}: skipped: {e}", file=sys.stderr)
        return e.exit_code
    if said == "ended":
        if _remove_schedule(name):
            print(f"{name}: the run is over and its end is safe in the store; no more backups", file=sys.stderr)
    elif said:
        print(said, file=sys.stderr)
    return code


def _schedule(one: Standing, given: dict[str, Any]) -> int:
    from remote_runner import cron, launchd

    schedule = given["install_cron"] or given["print_cron"]
    if not given["install_cron"]:
        click.echo(cron.line(one.name, schedule))
    elif sys.platform == "darwin":
        click.echo(launchd.install(one, schedule))
    else:
        click.echo(cron.install(one.name, schedule))
    return 0


def _remove(name: str) -> int:
    print("removed" if _remove_schedule(name) else f"there was none for {name}", file=sys.stderr)
    return 0


def _remove_schedule(name: str) -> bool:
    from remote_runner import cron, launchd

    return launchd.remove(name) if sys.platform == "darwin" else cron.remove(name)

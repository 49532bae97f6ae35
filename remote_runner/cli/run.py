"""`remote-run TARGET CONFIG`: take an experiment to a pod and bring the results home."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from remote_runner.cli.base import DETACHED, Duration, Hours, Money, access_options, show_report

END = click.Choice(["keep", "stop", "terminate"])


@click.command()
@click.argument("target", metavar="HOST:PORT")
@click.argument("config", type=click.Path(path_type=Path))
@click.argument("extra", nargs=-1)
@click.option("--resume", is_flag=True, help="Go on from the newest good snapshot, wherever it is.")
@click.option("--fresh", is_flag=True, help="Keep what an earlier run of this name left aside, and start anew.")
@click.option(
    "--accept-change", multiple=True, metavar="KEY", help="With --resume, go on though KEY (or code) was changed."
)
@click.option("--max-hours", type=Hours(), default=24.0, show_default=True, help="Then save, stop and come home.")
@click.option("--max-total-hours", type=Hours(), help="Over all attempts of the run.")
@click.option("--max-cost", type=Money(), metavar="USD", help="Then save, stop and come home; needs --price.")
@click.option("--price", type=Money(), metavar="USD", help="What the pod costs an hour.")
@click.option("--memory-limit-mb", type=click.IntRange(min=1), help="Kill the workload when its tree holds more.")
@click.option("--on-success", type=END, default="keep", show_default=True, help="What the pod does to itself then.")
@click.option("--on-failure", type=END, default="keep", show_default=True, help="Likewise; a deadline counts as one.")
@click.option("--stop-after", type=Duration(), default="30m", show_default=True, help="Wait so long for a download.")
@click.option("--on-interrupt", type=click.Choice(["detach", "pause"]), default="detach", help="What Ctrl-C does.")
@click.option("--test-deadline", is_flag=True, help="Only prove, in two minutes, that a deadline fires there.")
@access_options
@click.option("--python", default="", help="An interpreter of the image to use; no `setup` then.")
@click.option("--no-setup", is_flag=True, help="Install nothing on the pod.")
@click.option("--name", help="The run's name; default: the config's, without its ending.")
@click.option("--backup-to", default="", metavar="URL", help="Store for backups; default: ./backups.")
@click.option("--backup-every", type=Duration(), metavar="15m", help="Time between two backups.")
@click.option("--detach", is_flag=True, help="Return once the deadline is armed on the pod.")
@click.option("--give-up-after", type=Duration(), help="How long a lost pod is looked for.")
@click.option("--from", "only_from", metavar="PLACE", help="Resume pod, here, store, or a backup's ID.")
@click.option(
    "--abandon", default="", metavar="TARGET", help="The last attempt's pod is gone; go on without asking it."
)
@click.option("--require-finite", is_flag=True, help="End with 7 when NaN or infinity is in what came home.")
@click.option("--all-outputs", is_flag=True, help="With --resume, send all of the outputs, also beyond 5 GB.")
@click.option("--no-preserve", is_flag=True, help="With --resume, keep no copy of the state that it goes on from.")
@click.option("--ignore-running", is_flag=True, help="Start although another training runs there.")
@click.option("--yes", "-y", is_flag=True, help="Send the code though it is large.")
@click.option("--dry-run", is_flag=True, help="Check everything, change nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("--verbose", "-v", is_flag=True, help="Show the workload's log as it grows.")
def run(target: str, config: Path, extra: tuple[str, ...], **given: Any) -> int:
    """Run CONFIG on the pod at HOST:PORT and bring the results home.

    Words after `--` are appended to the workload's command.
    """
    from remote_runner import controller
    from remote_runner import plan as plans
    from remote_runner.access import Access
    from remote_runner.errors import NotStarted
    from remote_runner.plan import Options
    from remote_runner.view import View

    if given["resume"] and given["fresh"]:
        raise click.UsageError("--resume goes on with a run, --fresh begins it anew: give one of them")
    if given["only_from"] and not given["resume"]:
        raise click.UsageError("--from says what --resume goes on from: give both")
    options = Options(
        resume=given["resume"],
        fresh=given["fresh"],
        max_s=given["max_hours"] * 3600,
        remote_dir=given["remote_dir"],
        python=given["python"],
        setup=not given["no_setup"],
        backup_to=given["backup_to"],
        backup_every_s=given["backup_every"],
        ignore_running=given["ignore_running"],
        all_outputs=given["all_outputs"],
        yes=given["yes"],
        preserve=not given["no_preserve"],
        abandon=given["abandon"],
        extra=extra,
        detach=given["detach"],
        give_up_after_s=given["give_up_after"],
        max_total_s=given["max_total_hours"] and given["max_total_hours"] * 3600,
        max_cost=given["max_cost"],
        price=given["price"],
        memory_limit_mb=given["memory_limit_mb"],
        on_success=given["on_success"],
        on_failure=given["on_failure"],
        stop_after_s=given["stop_after"],
        on_interrupt=given["on_interrupt"],
        accept=given["accept_change"],
        require_finite=given["require_finite"],
    )
    try:
        plan = plans.make(config, given["name"], options)
    except KeyboardInterrupt:
        raise NotStarted("interrupted before the launch", fix="run the command again") from None
    access = Access.of(target, given)
    with View(given["verbose"]) as view:
        if given["test_deadline"]:
            from remote_runner import deadline_test

            click.echo(deadline_test.run(access, plan, view.tell))
            return 0
        if given["dry_run"]:
            click.echo(controller.dry_run(access, plan, view))
            return 0
        try:
            report = controller.run(access, plan, view, given["only_from"] or "")
        except KeyboardInterrupt:
            print(
                f"detached: the run goes on. Come back with: remote-run attach {access.words} {plan.name}",
                file=sys.stderr,
            )
            return DETACHED
    if report is None:
        return 0
    return show_report(report, given["as_json"])

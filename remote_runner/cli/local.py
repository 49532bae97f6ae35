"""Experiments on this machine, and commands of ours that outlive the terminal."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from remote_runner.cli.base import Hours, say

WEEK_H = 168.0
LABEL = "com.ncm-mlx."


@click.command()
@click.argument("config", type=click.Path(path_type=Path))
@click.argument("extra", nargs=-1)
@click.option("--resume", is_flag=True, help="Go on from the newest good snapshot here.")
@click.option("--fresh", is_flag=True, help="Keep what an earlier run of this name left aside, and start anew.")
@click.option(
    "--accept-change", multiple=True, metavar="KEY", help="With --resume, go on though KEY of the config was changed."
)
@click.option("--no-preserve", is_flag=True, help="With --resume, keep no copy of what stands here.")
@click.option("--name", help="The run's name; default: the config's, without its ending.")
@click.option("--max-hours", type=Hours(), default=WEEK_H, show_default=True, help="Then save and stop.")
@click.option("--memory-limit-mb", type=click.IntRange(min=1), help="Kill the workload when its tree holds more.")
@click.option("--ignore-running", is_flag=True, help="Start although another training runs here.")
@click.option("--background", is_flag=True, help="Independent of the terminal: launchd, systemd, or an own session.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON, and no log.")
def local(config: Path, extra: tuple[str, ...], **given: Any) -> int:
    """Run CONFIG here: train, then what follows it, bounded and pausable as on a pod.

    Words after `--` are appended to the workload's command.
    """
    from remote_runner import changes
    from remote_runner import local as life
    from remote_runner import plan as plans

    options = plans.Options(
        resume=given["resume"],
        fresh=given["fresh"],
        max_s=given["max_hours"] * 3600,
        memory_limit_mb=given["memory_limit_mb"],
        ignore_running=given["ignore_running"],
        preserve=not given["no_preserve"],
        extra=extra,
        accept=given["accept_change"],
    )
    plan = plans.make(config, given["name"], options)
    changes.refuse_unknown(plan, compared=False)
    if given["background"]:
        life.refuse_running(plan)
        words = [w for w in sys.argv[1:] if w != "--background"]
        return _leave(plan.name, plan.root, words, Path.cwd())
    report = life.run(plan, say)
    say(report.to_json() if given["as_json"] else report.summary())
    return report.exit_code


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("name")
@click.argument("words", nargs=-1, required=True)
def detached(name: str, words: tuple[str, ...]) -> int:
    """Start `remote-run WORDS…` independent of the terminal, under NAME, and return."""
    from remote_runner import plan as plans
    from remote_runner import settings

    return _leave(plans.check_name(name), settings.find_root(Path.cwd()), list(words), Path.cwd())


def _leave(name: str, root: Path, words: list[str], cwd: Path) -> int:
    from remote_runner import services
    from remote_runner.pod import layout

    service = services.Service(
        label=LABEL + name,
        argv=[sys.executable, "-m", "remote_runner.cli", *words],
        root=cwd,
        log=root / layout.OWN / f"{name}-service.log",
        plist=root / f"runs/{name}.plist",
        env=services.environment(),
    )
    print(f"started {service.label}: {services.start(service)}")
    return 0

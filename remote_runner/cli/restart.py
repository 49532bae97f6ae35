"""`remote-run restart`: pause, send the changed code, go on, on the same pod; nothing is downloaded in between."""

from __future__ import annotations

import time
from typing import Any

import click

from remote_runner.cli.base import say
from remote_runner.cli.live import ask_to_stop, found_run
from remote_runner.cli.run import run

_FIXED = {"resume": True, "fresh": False, "only_from": "pod", "dry_run": False}


def _restart(target: str, config: Any, kill: bool, **given: Any) -> int:
    name = given["name"] or config.stem
    with found_run(target, name, {**given, "at": ""}) as (known, agent, _where):
        if ask_to_stop(agent, known.name, None, kill, fix="restart it all the same with --kill"):
            say(f"{known.name} is asked to pause; what changed is sent once its state is saved")
        while agent.ask("state", name=known.name).get("supervisor_lives"):
            time.sleep(0.2)
    callback = run.callback
    assert callback is not None
    code: int = callback(target=target, config=config, **{**given, **_FIXED})
    return code


restart = click.Command(
    "restart",
    callback=_restart,
    params=[
        *(p for p in run.params if p.name not in _FIXED),
        click.Option(["--kill"], is_flag=True, help='End it where its settings say pause = "none".'),
    ],
    help="Pause the run of CONFIG on the pod, send the changed code, and go on there from what it saved.\n\n"
    "Nothing is downloaded in between. Options are those of a run; a run that has ended is just gone on with.",
)

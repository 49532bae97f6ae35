"""`remote-run init` writes a repository's settings, `remote-run check` tries them; neither needs a pod."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import click


@click.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path), default=".")
@click.option("--script", default="", metavar="FILE", help="The script that trains, where it is not the likeliest.")
@click.option("--command", metavar="WORDS", help="How the training is started; {config} and {name} are filled in.")
@click.option("--resume-args", metavar="WORDS", help="What is added to go on; {newest} is the newest snapshot.")
@click.option("--outputs", multiple=True, metavar="FOLDER", help="A folder that it writes; may be repeated.")
@click.option("--pause", metavar="HOW", help="contract, none, or a signal's name.")
@click.option("--snapshots", metavar="PRESET", help="hf, lightning, torch or numbered.")
@click.option("--replace", is_flag=True, help="Write over a remote-run.toml that is there.")
@click.option("--yes", "-y", is_flag=True, help="Ask nothing; without a terminal nothing is asked anyway.")
def init(folder: Path, **given: Any) -> int:
    """Look at the training repository in FOLDER, write its settings, and check them."""
    from remote_runner import checking, repo
    from remote_runner import init as writing

    root = folder.absolute()
    seen = repo.look(root, given["script"], checking.paths(root))
    said: dict[str, Any] = {k: given[k] for k in ("pause", "snapshots") if given[k] is not None}
    if given["outputs"]:
        said["outputs"] = list(given["outputs"])
    said.update({k: shlex.split(given[k]) for k in ("command", "resume_args") if given[k] is not None})
    found = writing.Choices(**said) if "command" in said and not seen.scripts else writing.propose(seen)
    chosen = writing.Choices(
        **{**vars(found), **said, "notes": {k: v for k, v in found.notes.items() if k not in said}}
    )
    if sys.stdin.isatty() and not given["yes"]:
        chosen = _ask(chosen, set(said))
    path = writing.write(root, chosen, given["replace"])
    print(f"written: {path}", file=sys.stderr)
    if not_ignored := checking.not_ignored(root):
        print(f"git will list what this tool keeps here; for .gitignore: {' '.join(not_ignored)}", file=sys.stderr)
    if not seen.configs:
        click.echo("no configs found; try it with one: remote-run check CONFIG")
        return 0
    click.echo("\n".join(checking.check(root / seen.configs[0], None)))
    return 0


def _ask(chosen: Any, said: set[str]) -> Any:
    """Each value that was not said, with what was found as the answer to just press return on."""
    from dataclasses import replace

    answers: dict[str, Any] = {}
    for key in ("command", "resume_args", "outputs"):
        if key not in said:
            default = shlex.join(getattr(chosen, key))
            answers[key] = shlex.split(click.prompt(key, default=default, show_default=True, err=True))
    if "pause" not in said:
        answers["pause"] = click.prompt("pause", default=chosen.pause, err=True)
    return replace(chosen, **answers)


@click.command()
@click.argument("config", type=click.Path(path_type=Path))
@click.option("--name", help="The run's name; default: the config's, without its ending.")
def check(config: Path, name: str | None) -> int:
    """Check CONFIG and the settings, and show what a run would send and start; no pod is needed."""
    from remote_runner import checking

    click.echo("\n".join(checking.check(config, name)))
    return 0

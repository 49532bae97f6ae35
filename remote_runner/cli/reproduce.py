"""`remote-run reproduce`: the code of a run, in a folder ready to run."""

from __future__ import annotations

import shlex
from pathlib import Path

import click


@click.command()
@click.argument("name")
@click.option("--to", type=click.Path(path_type=Path), help="A new folder; default: NAME-code beside the project.")
def reproduce(name: str, to: Path | None) -> int:
    """Unpack exactly the code that the run NAME was started with, and say how to start it."""
    from remote_runner import archive, settings
    from remote_runner import plan as plans

    root = settings.find_root(Path.cwd())
    folder = (to or root.parent / f"{plans.check_name(name)}-code").absolute()
    about = archive.reproduce(root, plans.check_name(name), folder)
    click.echo(f"{len(about.get('sha256') or {})} files of {name} in {folder}")
    click.echo("\n".join(f"  {line}" for line in archive.told(about, folder)))
    if about.get("left_out"):
        click.echo(f"not in the archive, for its size: {', '.join(about['left_out'])}")
    click.echo(f"start it: cd {shlex.quote(str(folder))} && {shlex.join(about.get('command') or [])}")
    return 0

"""Commands on backups in a store: list them, bring one back. No pod is needed."""

from __future__ import annotations

import sys
from pathlib import Path

import click


@click.command()
@click.argument("name")
@click.option("--from", "store", default="", metavar="URL", help="The store; default: the settings'.")
def backups(name: str, store: str) -> int:
    """List the backups of a run."""
    from remote_runner import backup, runs

    for manifest in backup.manifests(runs.place(Path.cwd(), name, store)):
        size = sum(e["size"] for e in manifest["files"])
        click.echo(f"{manifest['id']}  {manifest['made_at']}  {len(manifest['files'])} files  {size / 1e6:.2f} MB")
    return 0


@click.command()
@click.argument("name")
@click.option("--backup", "backup_id", default="", metavar="ID", help="Which one; default: the highest step.")
@click.option("--from", "store", default="", metavar="URL", help="The store; default: the settings'.")
@click.option("--to", type=click.Path(file_okay=False, path_type=Path), help="Folder; default: this project.")
def restore(name: str, backup_id: str, store: str, to: Path | None) -> int:
    """Bring a backup back, every byte verified; what it replaces is kept aside."""
    from remote_runner import runs

    text = runs.restore(Path.cwd(), name, store, backup_id, to, lambda line: print(line, file=sys.stderr))
    click.echo(text)
    return 0

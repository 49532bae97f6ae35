"""Commands on backups in a store: list them, bring one back, remove old ones. No pod is needed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from remote_runner.cli.base import say


@click.command()
@click.argument("name")
@click.option("--from", "store", default="", metavar="URL", help="The store; default: the settings'.")
@click.option("--check", is_flag=True, help="Read every byte back and prove it; else sizes are compared.")
@click.option("--json", "as_json", is_flag=True, help="Print the list as JSON.")
def backups(name: str, store: str, check: bool, as_json: bool) -> int:
    """List the backups of a run: when, which state, how large, what was new, whether whole."""
    from remote_runner import runs

    rows = runs.backups(Path.cwd(), name, store, check, say)
    if as_json:
        click.echo(json.dumps(rows, indent=1, sort_keys=True, ensure_ascii=False))
    else:
        for row in rows:
            click.echo(_line(row))
        if not rows:
            say(f"no backup of {name} in the store")
    return 0 if all(row["whole"] for row in rows) else 7


def _line(row: dict[str, Any]) -> str:
    state = f"{row['stage']} step {row['step']}" if row["stage"] else "no snapshot"
    aside = "  (kept aside by a fresh start)" if row["aside"] else ""
    return (
        f"{row['id']}  {row['made_at']}  {state}  {row['files']} files  {row['bytes'] / 1e6:.2f} MB  "
        f"{row['new_bytes'] / 1e6:.2f} MB new  {row['verdict']}{aside}"
    )


@click.command()
@click.argument("name")
@click.option("--backup", "backup_id", default="", metavar="ID", help="Which one; default: the highest step.")
@click.option("--from", "store", default="", metavar="URL", help="The store; default: the settings'.")
@click.option("--to", type=click.Path(file_okay=False, path_type=Path), help="Folder; default: this project.")
def restore(name: str, backup_id: str, store: str, to: Path | None) -> int:
    """Bring a backup back, every byte verified; what it replaces is kept aside."""
    from remote_runner import runs

    click.echo(runs.restore(Path.cwd(), name, store, backup_id, to, say))
    return 0


@click.command()
@click.argument("name")
@click.option("--from", "store", default="", metavar="URL", help="The store; default: the settings'.")
@click.option("--keep", type=click.IntRange(min=1), help="How many of the newest stay; default: the settings'.")
def prune(name: str, store: str, keep: int | None) -> int:
    """Remove old backups and what none of the others needs.

    The newest, the best and the furthest stay, and at least one whose every byte was read back and proven.
    """
    from remote_runner import runs

    click.echo(runs.prune(Path.cwd(), name, store, keep))
    return 0

"""Commands on snapshots and weights here: what a file says of itself, whether it is whole, how two differ.

No framework is loaded for them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

UNVERIFIED = 7
EXISTING = click.Path(exists=True, path_type=Path)
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@click.argument("file", type=FILE)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def inspect(file: Path, as_json: bool) -> int:
    """Print what FILE says of itself, from its header alone.

    The header of a snapshot is proven; the tensors' bytes are not read (remote-run verify does that).
    """
    from remote_runner import inspection

    told = inspection.inspect(file)
    click.echo(json.dumps(told, indent=1, ensure_ascii=False) if as_json else inspection.text(told))
    return 0


@click.command()
@click.argument("paths", type=click.Path(path_type=Path), nargs=-1, required=True, metavar="PATH…")
@click.option("--require", multiple=True, metavar="KEY", help="A tensor that each file must have; may be repeated.")
@click.option("--as", "kind", type=click.Choice(["checkpoint"]), help="Hold PyTorch files to a whole training state.")
@click.option("--model", default="", metavar="MODULE:CLASS", help="PyTorch weights must load into CLASS(config).")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def verify(paths: tuple[Path, ...], require: tuple[str, ...], kind: str | None, model: str, as_json: bool) -> int:
    """Verify files of weights and state, and all of them below a folder.

    Digests where a file carries them, structure, NaN; an infinity is refused in our own formats and told of in
    others. A PyTorch file is read by a child process, without running what is in it. Exit 0 when all are good, else 7.
    """
    from remote_runner import verify as verifying

    found = verifying.verify(paths, require, as_checkpoint=kind == "checkpoint", model=model)
    if as_json:
        rows = [
            {"path": str(f.path), "good": f.good, "problem": f.problem, "warnings": f.warnings, "about": f.about}
            for f in found
        ]
        click.echo(json.dumps({"good": all(f.good for f in found), "files": rows}, ensure_ascii=False))
    for f in found:
        for warning in f.warnings:
            print(f"warning: {warning}", file=sys.stderr)
        if not f.good:
            print(f"error: {f.problem}", file=sys.stderr)
        elif not as_json:
            click.echo(f"good: {f.path} ({f.about})")
    if all(f.good for f in found):
        return 0
    print("fix: fetch it again, or restore it from a backup (remote-run restore)", file=sys.stderr)
    return UNVERIFIED


@click.command()
@click.argument("one", metavar="A", type=FILE)
@click.argument("other", metavar="B", type=FILE)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def diff(one: Path, other: Path, as_json: bool) -> int:
    """Say in what two snapshots or weights files differ: state by key, and the first tensor, by how much.

    Exit 0 when both are whole, equal or not; 7 when one is not.
    """
    from remote_runner import inspection

    found = inspection.diff(one, other)
    click.echo(json.dumps(found, indent=1, ensure_ascii=False) if as_json else inspection.diff_text(found))
    return 0

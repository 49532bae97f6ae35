"""Lists of digests: what a folder should hold, months later, by the lists that lie beside it.

    SHA256SUMS in the folder             as GNU sha256sum writes and reads it
    runs/<name>-run.json, `manifest`     what a download of ours proved, for artifacts/<name>

Not here: what a file's own format proves (verify.py).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from remote_runner.pod import files
from remote_runner.record import load

NAME = "SHA256SUMS"
_LINE = re.compile(rb"(\\?)([0-9a-fA-F]{64}) [ *](.+)\Z", re.DOTALL)
_ESCAPES = {b"\\\\": b"\\", b"\\n": b"\n", b"\\r": b"\r"}


class BadList(ValueError):
    """A line that is none of sha256sum's."""


def parse(text: bytes) -> dict[str, str]:
    """A list as GNU sha256sum writes it: name -> digest.

    A line that begins with a backslash has its name escaped: `\\\\` for a backslash, `\\n` and `\\r` for the others.

    Raises:
        BadList: names the line.
    """
    found = {}
    for number, line in enumerate(text.split(b"\n"), 1):
        if not line:
            continue
        match = _LINE.match(line)
        if match is None:
            raise BadList(f"line {number} is no line of sha256sum")
        escaped, digest, name = match.groups()
        if escaped:
            if re.sub(rb"\\[\\nr]", b"", name).count(b"\\"):
                raise BadList(f"line {number} has an escape that sha256sum does not write")
            name = re.sub(rb"\\[\\nr]", lambda m: _ESCAPES[m.group()], name)
        found[os.fsdecode(name)] = digest.decode().lower()
    return found


def render(digests: Mapping[str, str]) -> bytes:
    """The list of some files: `sha256sum -c --strict` takes it."""
    lines = []
    for path in sorted(digests):
        name = os.fsencode(path)
        escaped = name.replace(b"\\", b"\\\\").replace(b"\n", b"\\n").replace(b"\r", b"\\r")
        mark = b"\\" if escaped != name else b""
        lines.append(mark + digests[path].encode() + b"  " + escaped + b"\n")
    return b"".join(lines)


def expected(folder: Path) -> dict[str, str]:
    """What a folder should hold: path below it -> digest; empty where nothing says so.

    Raises:
        BadList: its SHA256SUMS can't be read.
    """
    listed = folder / NAME
    if listed.is_file():
        return parse(listed.read_bytes())
    folder = folder.absolute()
    for root in folder.parents:
        manifest = load(root, folder.name).get("manifest")
        if isinstance(manifest, dict):
            inside = folder.relative_to(root).as_posix() + "/"
            return {p.removeprefix(inside): str(e["sha256"]) for p, e in manifest.items() if p.startswith(inside)}
    return {}


def problems(folder: Path, wanted: Mapping[str, str]) -> dict[str, str]:
    """Check a folder against a list.

    Returns:
        What is wrong, by name; a file that fails and no other.
    """
    found = {}
    for name, digest in sorted(wanted.items()):
        try:
            is_now = files.digest(str(folder), name)
        except FileNotFoundError:
            found[name] = "missing"
        except (OSError, files.BadPath) as e:
            found[name] = f"can't be read: {e}"
        else:
            if is_now != digest:
                found[name] = f"its bytes are {is_now}, the list says {digest}"
    return found

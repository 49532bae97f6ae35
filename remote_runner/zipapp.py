"""The one file that is put on a pod: `pod/` and `checkpoint/`, under the hash of its bytes.

The same sources give the same bytes on every machine (fixed times, sorted names), so a pod that has the file
has the right one.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
import zlib
from functools import cache
from importlib import resources
from typing import NamedTuple

_MAIN = "import sys\nfrom remote_runner.pod.main import main\nsys.exit(main(sys.argv[1:]))\n"


class Zipapp(NamedTuple):
    name: str
    content: bytes


@cache
def build() -> Zipapp:
    """The zipapp of this installation: `<first half of its SHA-256>.pyz` and its bytes."""
    package = resources.files("remote_runner")
    sources = {
        "__main__.py": _MAIN.encode(),
        "remote_runner/__init__.py": (package / "__init__.py").read_bytes(),
    }
    for folder in ("pod", "checkpoint"):
        for entry in (package / folder).iterdir():
            if entry.name.endswith(".py"):
                sources[f"remote_runner/{folder}/{entry.name}"] = entry.read_bytes()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name in sorted(sources):
            archive.writestr(zipfile.ZipInfo(name), sources[name], zipfile.ZIP_DEFLATED)
    content = packed.getvalue()
    return Zipapp(hashlib.sha256(content).hexdigest()[:32] + ".pyz", content)


# in the order of their imports
_BULK = ("pod/files", "pod/wire", "pod/session", "pod/parts", "pod/flush", "pod/intake", "pod/bulk")
_LOOKING = ("checkpoint/header", "pod/files", "pod/layout", "pod/procs", "pod/trainers", "pod/looking")


def _modules(names: tuple[str, ...]) -> list[list[str]]:
    """[[name, source], ...] of modules below remote_runner, in this order, for a loader that installs nothing."""
    package = resources.files("remote_runner")
    folders = dict.fromkeys(n.partition("/")[0] for n in names)
    sources = [["remote_runner", ""], *([f"remote_runner.{folder}", ""] for folder in folders)]
    for name in names:
        text = package.joinpath(f"{name}.py").read_text(encoding="utf-8")
        sources.append([f"remote_runner.{name.replace('/', '.')}", text])
    return sources


_LOADING = """
import json, sys, types
for name, text in json.loads({modules!r}):
    module = sys.modules[name] = types.ModuleType(name)
    above, _, last = name.rpartition(".")
    if above:
        setattr(sys.modules[above], last, module)
    exec(compile(text, name, "exec"), module.__dict__)
"""


@cache
def looking_source() -> str:
    """The source that looks who trains on a machine (pod/looking.py), run from stdin; it leaves nothing there."""
    modules = json.dumps(_modules(_LOOKING))
    return _LOADING.format(modules=modules) + "say = sys.modules['remote_runner.pod.looking'].say\n"


@cache
def bulk_program() -> bytes:
    """The sources of the program of a data connection, small enough to go out with the request to start it.

    A zlib stream of JSON: [[name, source], ...], run by the loader in transfer/channels.py; nothing is installed.
    """
    return zlib.compress(json.dumps(_modules(_BULK)).encode(), 9)


def probe_source() -> str:
    """The source of the preflight probe, which runs before anything of ours is on the pod."""
    return (resources.files("remote_runner") / "pod" / "probe.py").read_text(encoding="utf-8")

"""Let the pod back a run up by itself: give it the order, the program and the credentials of the store.

Credentials go over the connection into a file with mode 600, and only here, where the user asked for it: scoped ones
are enough (docs/backups.md). Not here: what the pod does then (push.py).
"""

from __future__ import annotations

import base64
import io
import json
import zipfile
from functools import cache
from importlib import resources
from typing import Any

from remote_runner.agent import Agent, Denied
from remote_runner.errors import NotStarted, UsageFault
from remote_runner.stores.objects import credentials

_MODULES = ("__init__", "errors", "backup", "ondisk", "push", "retention", "vault")
_FOLDERS = ("pod", "checkpoint", "stores")


def refuse_unreachable(url: str) -> None:
    """Refuse a store that a pod can't reach or log in to.

    Raises:
        UsageFault: a folder here, or sftp.
    """
    if not url.startswith("s3://"):
        raise UsageFault(
            f"backup.push: a pod can't write to {url}", fix="push goes to s3://BUCKET/PREFIX; or leave push out"
        )


def start(agent: Agent, order: dict[str, Any]) -> int:
    """Start the pushing program on the pod.

    Args:
        order: name, project, outputs, store (a URL), keep, every_s, attempt.

    Returns:
        Its pid there.

    Raises:
        NotStarted: the pod refused.
    """
    told = {
        "order": order,
        "program": base64.b64encode(program()).decode(),
        "credentials": json.dumps(credentials(order["store"])),
    }
    try:
        return int(agent.ask("push", **told)["pid"])
    except Denied as e:
        raise NotStarted(
            f"the pod can't push by itself: {e}", fix="look at its disk, or leave backup.push out"
        ) from None


@cache
def program() -> bytes:
    """The zip of everything that push.py imports of ours."""
    package = resources.files("remote_runner")
    sources = {f"remote_runner/{name}.py": (package / f"{name}.py").read_bytes() for name in _MODULES}
    for folder in _FOLDERS:
        for entry in (package / folder).iterdir():
            if entry.name.endswith(".py"):
                sources[f"remote_runner/{folder}/{entry.name}"] = entry.read_bytes()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name in sorted(sources):
            archive.writestr(zipfile.ZipInfo(name), sources[name], zipfile.ZIP_DEFLATED)
    return packed.getvalue()

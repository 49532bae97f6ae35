"""All checks before anything changes on the pod; every failure at once, each with its fix.

One command runs pod/probe.py there, as source over stdin: nothing is written. What it prints is cut out
between marks with a nonce of ours, whatever a login shell printed around it.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from remote_runner import zipapp
from remote_runner.agent import NO_PYTHON, printable, python_command
from remote_runner.errors import PreflightFailed
from remote_runner.plan import Plan
from remote_runner.pod import layout
from remote_runner.program import LinkLost
from remote_runner.ssh import Pod

SMALLEST_DISK_BYTES = 64 << 20
SNAPSHOTS_PER_STAGE = 3  # latest, previous, and the one being written
CLOCK_S = 60.0
PROBE_S = 60.0


@dataclass(frozen=True)
class Facts:
    """What the pod said of itself."""

    root: PurePosixPath
    found: dict[str, Any]

    @property
    def hardware(self) -> str:
        gpus = "; ".join(self.found["gpus"]) or "no GPU"
        return f"{gpus}, {self.found['cpus']} CPUs, {self.found['memory_bytes'] / 1e9:.0f} GB memory"


def probe(pod: Pod, project: str, remote_dir: str, python: str = "") -> dict[str, Any]:
    """Ask the pod what it is.

    Raises:
        PreflightFailed: no python3, or its answer can't be read.
    """
    return answer(pod, zipapp.probe_source(), {"project": project, "remote_dir": remote_dir, "python": python})


def answer(pod: Pod, source: str, ask: dict[str, Any]) -> dict[str, Any]:
    """What a source that defines `say(nonce, ask)` prints on the pod, where nothing is written.

    Raises:
        PreflightFailed: as `probe`.
    """
    nonce = secrets.token_hex(16)
    source = f"{source}\nimport json\nsay({nonce!r}, json.loads({json.dumps(ask)!r}))\n"
    try:
        done = pod.run(python_command("import sys; exec(sys.stdin.read())"), source.encode(), timeout_s=PROBE_S)
    except LinkLost as e:
        raise PreflightFailed(f"the pod does not answer: {e}", fix="try again", passing=True) from None
    out = done.stdout.decode("utf-8", "replace")
    _, opened, rest = out.partition(f"<{nonce}>")
    text, closed, _ = rest.partition(f"</{nonce}>")
    if opened and closed:
        try:
            found = json.loads(text)
        except ValueError:
            found = None
        if isinstance(found, dict):
            return found
    said = printable(done.stderr.decode("utf-8", "replace").strip()[-500:])
    if done.code == NO_PYTHON and "no python3" in said:
        raise PreflightFailed(
            f"{pod.endpoint}: no python3 on the pod",
            fix="take an image with python3 (3.8 or newer), or install it there: apt-get install python3",
        )
    stray = printable(next((line for line in out.splitlines() if line.strip()), ""))
    raise PreflightFailed(
        f"{pod.endpoint}: the probe ended with {done.code} and said {said or stray or 'nothing'!r}",
        fix="look at the start-up files of the login shell there (~/.bashrc, ~/.profile) and that python3 works",
    )


def check(pod: Pod, plan: Plan, upload_bytes: int, snapshot_bytes: int, tell: Callable[[str], None]) -> Facts:
    """Decide whether this pod can take this run.

    Args:
        upload_bytes: what will be sent.
        snapshot_bytes: of one snapshot of each stage together, 0 where not known yet.

    Raises:
        PreflightFailed: with all that is wrong.
    """
    found = probe(pod, plan.project, plan.options.remote_dir, plan.options.python)
    faults = list(_faults(found, plan, upload_bytes + SNAPSHOTS_PER_STAGE * snapshot_bytes))
    if faults:
        message = "\n".join(f"{pod.endpoint}: {text}\n  fix: {fix}" for text, fix in faults)
        raise PreflightFailed(message)
    apart_s = found["unix_s"] - time.time()
    if abs(apart_s) > CLOCK_S:
        tell(f"the pod's clock is {apart_s:+.0f} s off this one; times of files are not used for any decision")
    facts = Facts(PurePosixPath(found["root"]), found)
    tell(f"{pod.endpoint}: {facts.hardware}, {found['shared_memory_bytes'] / 1e9:.1f} GB shared memory")
    tell(
        f"{found['root']}: {found['free_bytes'] / 1e9:.1f} GB and {found['free_inodes']} inodes free on "
        f"{found['file_system'] or 'an unknown file system'}; {outlives(found)}"
    )
    return facts


NETWORK_DISKS = ("nfs", "nfs4", "ceph", "lustre", "glusterfs", "cifs", "9p", "virtiofs", "fuse.mfs", "fuse.juicefs")
FEW_INODES = 1000


def outlives(found: dict[str, Any]) -> str:
    """Whether what is written to the root is still there after the pod is stopped, or terminated."""
    system = str(found["file_system"])
    if system in NETWORK_DISKS or system.startswith("fuse"):
        return "a network disk: it outlives stop and terminate where it is a volume of yours"
    if system in ("tmpfs", "ramfs"):
        return "memory: IT IS LOST when the pod stops"
    if found["provider"] == "runpod":
        own = str(found["root"]).startswith("/workspace/") and system != "overlay"
        if own:
            return "the pod's volume: it outlives stop, not terminate"
        return "the container's own disk: IT IS LOST when the pod stops; backups here are what stays"
    if found["provider"] == "vast":
        return "the instance's disk: it outlives stop, not destroy"
    return "nothing tells whether it outlives stop or terminate; backups here do"


def _faults(found: dict[str, Any], plan: Plan, need_bytes: int) -> list[tuple[str, str]]:
    faults = []
    if tuple(found["version"]) < (3, 8):
        faults.append((f"python3 there is {'.'.join(map(str, found['version']))}", "3.8 or newer is needed"))
    if not found["proc"]:
        faults.append(
            ("there is no /proc: nothing can tell what runs", "use an image or a container with /proc mounted")
        )
    if found["python_fault"]:
        faults.append(
            (f"--python {plan.options.python}: {printable(found['python_fault'])}", "name a python that runs")
        )
    if found["root"] is None:
        faults.append(
            ("neither /workspace nor the home folder can be written", "name a folder that can: --remote-dir DIR")
        )
        return faults
    root = printable(str(found["root"]))
    if not found["writable"]:
        faults.append((f"{printable(str(found['base']))} can't be written", "name another folder: --remote-dir DIR"))
    if not found["empty"] and not found["ours"]:
        faults.append(
            (
                f"{root} is not empty and has no {layout.OWN} folder: it is somebody else's",
                "name an empty or new folder: --remote-dir DIR",
            )
        )
    if 0 < found["free_inodes"] < FEW_INODES:  # 0: a file system that has no fixed number
        faults.append((f"{root}: {found['free_inodes']} inodes free", "remove small files there: caches, old datasets"))
    need = max(need_bytes, SMALLEST_DISK_BYTES)
    if found["free_bytes"] < need:
        faults.append(
            (
                f"{root}: {found['free_bytes'] / 1e6:.0f} MB free, this run writes about {need / 1e6:.0f} MB",
                "rent a larger disk, name a folder on a larger one (--remote-dir DIR), or free some",
            )
        )
    return faults

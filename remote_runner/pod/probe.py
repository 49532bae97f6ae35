"""What the pod is, before anything on it changes: sent as source to its python3, prints one JSON object.

Self-contained: it imports nothing of ours, since nothing of ours is there yet.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import time
from typing import Any, Dict, List, Optional


def choose_root(remote_dir: str, project: str) -> Optional[str]:
    """`--remote-dir`, else /workspace, else the home folder; None where none can be written."""
    if remote_dir:
        return os.path.abspath(os.path.expanduser(remote_dir))
    if os.path.isdir("/workspace") and os.access("/workspace", os.W_OK):
        return f"/workspace/remote-run/{project}"
    home = os.path.expanduser("~")
    if os.path.isdir(home) and os.access(home, os.W_OK):
        return f"{home}/remote-run/{project}"
    return None


def existing(path: str) -> str:
    """The nearest folder above a path that is there."""
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    return path


def file_system(path: str) -> str:
    """The type of the mount a path lies on."""
    best, kind = "", ""
    try:
        with open("/proc/self/mounts", encoding="utf-8", errors="replace") as f:
            for line in f:
                _, point, found = line.split()[:3]
                if (path == point or path.startswith(point.rstrip("/") + "/")) and len(point) >= len(best):
                    best, kind = point, found
    except OSError:
        return ""
    return kind


def gpus() -> List[str]:
    tool = shutil.which("nvidia-smi")
    if not tool:
        return []
    ask = [tool, "--query-gpu=name,memory.total,memory.used", "--format=csv,noheader"]
    try:
        out = subprocess.run(ask, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=10).stdout
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line.strip() for line in out.decode("utf-8", "replace").splitlines() if line.strip()]


def shared_memory_bytes() -> int:
    """Of /dev/shm, which data workers use; 0 where there is none."""
    try:
        space = os.statvfs("/dev/shm")
    except OSError:
        return 0
    return space.f_blocks * space.f_frsize


def provider() -> str:
    """Whose container this is; empty where nothing tells."""
    try:
        with open("/proc/1/environ", "rb") as f:
            names = {pair.split(b"=", 1)[0].decode("utf-8", "replace") for pair in f.read().split(b"\0")}
    except OSError:
        names = set()
    names |= set(os.environ)
    if "RUNPOD_POD_ID" in names:
        return "runpod"
    return "vast" if names & {"VAST_CONTAINERLABEL", "VAST_TCP_PORT_22"} else ""


def python_works(path: str) -> str:
    """Why an interpreter can't be used; empty when it can."""
    if not path:
        return ""
    try:
        done = subprocess.run(
            [path, "-c", "pass"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=30,
        )
    except (OSError, subprocess.TimeoutExpired) as e:
        return str(e)
    return done.stderr.decode("utf-8", "replace").strip()[-300:] if done.returncode else ""


def memory_bytes() -> int:
    """Of the container where it has a limit, else of the machine."""
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            with open(path, encoding="ascii") as f:
                text = f.read().strip()
            if text.isdigit() and int(text) < 1 << 60:
                return int(text)
        except OSError:
            continue
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def probe(ask: Dict[str, Any]) -> Dict[str, Any]:
    root = choose_root(ask["remote_dir"], ask["project"])
    found: Dict[str, Any] = {
        "python": sys.executable,
        "version": list(sys.version_info[:3]),
        "machine": f"{platform.system()} {platform.machine()}",
        "host": platform.node(),
        "user_id": os.getuid(),
        "unix_s": time.time(),
        "root": root,
        "gpus": gpus(),
        "cpus": os.cpu_count(),
        "memory_bytes": memory_bytes(),
        "shared_memory_bytes": shared_memory_bytes(),
        "provider": provider(),
        "proc": os.path.exists("/proc/self/stat") or sys.platform == "darwin",
        "python_fault": python_works(ask["python"]),
        "image": os.environ.get("RUNPOD_POD_ID") or os.environ.get("CONTAINER_ID") or "",
    }
    if root is not None:
        base = existing(root)
        space = os.statvfs(base)
        entries = os.listdir(root) if os.path.isdir(root) else []
        found.update(
            base=base,
            writable=os.path.isdir(base) and os.access(base, os.W_OK | os.X_OK),
            is_link=os.path.islink(root),
            ours=".remote-run" in entries,
            empty=not entries,
            free_bytes=space.f_bavail * space.f_frsize,
            free_inodes=space.f_favail,
            file_system=file_system(os.path.realpath(base)),
        )
    return found


def say(nonce: str, ask: Dict[str, Any]) -> None:
    """Between marks of the controller's own, since a login shell may have talked before."""
    print(f"\n<{nonce}>{json.dumps(probe(ask))}</{nonce}>", flush=True)

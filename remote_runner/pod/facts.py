"""What a run was trained with, for whoever wants it again: packages, driver, image.

Run by the supervisor beside the workload (noting.py), under the workload's own python; what it finds is one event of
the run.

Not here: whether torch and the GPUs agree (gpu.py), the archive of the code that gets it (remote_runner/archive.py).
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from importlib import metadata
from typing import Any, Dict, List

from remote_runner.pod import variables

# what images say of themselves; a fixed list, since keys and tokens stand in the same place
_OF_THE_IMAGE = (
    *("CUDA_VERSION", "CUDNN_VERSION", "NV_CUDNN_VERSION", "NVIDIA_PYTORCH_VERSION", "PYTORCH_VERSION"),
    *("NVIDIA_REQUIRE_CUDA", "RUNPOD_POD_ID", "RUNPOD_DC_ID", "VAST_CONTAINERLABEL", "IMAGE_NAME", "DOCKER_IMAGE"),
)
_LOGIN_IN_URL = re.compile(r"(?<=//)[^/@\s]+@")


def find() -> Dict[str, Any]:
    """The facts of the interpreter that runs this, and of its machine."""
    return {
        "python": platform.python_version(),
        "packages": packages(),
        "driver": _driver(),
        "image": {"system": _system(), **_named(variables.first_process()), **_named(dict(os.environ))},
    }


def packages() -> List[str]:
    """As `pip freeze` lists them, without logins in addresses."""
    found: Dict[str, str] = {}
    for one in metadata.distributions():
        name = one.metadata["Name"]
        if name:
            found.setdefault(name, f"{name}=={one.version}" + _from_where(one))
    return [found[name] for name in sorted(found, key=str.lower)]


def _from_where(one: metadata.Distribution) -> str:
    """The repository and commit of what was not installed from an index, as a comment."""
    try:
        told = json.loads(one.read_text("direct_url.json") or "{}")
    except ValueError:
        return ""
    if not told.get("url"):
        return ""
    commit = (told.get("vcs_info") or {}).get("commit_id")
    url = _LOGIN_IN_URL.sub("", str(told["url"]))
    return f"  # {url}" + (f"@{commit}" if commit else "")


def _driver() -> str:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ""
    ask = [tool, "--query-gpu=driver_version,name", "--format=csv,noheader"]
    try:
        said = subprocess.run(ask, capture_output=True, text=True, timeout=30).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return "; ".join(sorted(set(said.splitlines())))


def _system() -> str:
    try:
        with open("/etc/os-release", encoding="utf-8", errors="replace") as f:
            name = re.search(r'^PRETTY_NAME="?([^"\n]+)', f.read(), re.MULTILINE)
    except OSError:
        return platform.platform()
    return name.group(1) if name else platform.platform()


def _named(env: Dict[str, str]) -> Dict[str, str]:
    return {name: env[name] for name in _OF_THE_IMAGE if env.get(name)}


def main() -> int:
    print(json.dumps(find()), file=sys.stdout)
    return 0

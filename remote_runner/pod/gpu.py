"""Whether the workload's torch and the pod's GPUs agree, tried before the launch.

Runs under the workload's own python. A pod with a GPU never trains on its CPU unasked: that is found here, with the
wheel that would be right, and not in the bill.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from typing import Any, Dict, List, Optional, Tuple

WHEELS = ((11, 8), (12, 1), (12, 4), (12, 6), (12, 8), (12, 9), (13, 0))  # of download.pytorch.org/whl/cuXYZ
_NEW_CARDS = (10, 0)  # from this capability on, wheels for CUDA 12.8 or newer are needed


def right_wheel(driver_cuda: Tuple[int, int], capability: Optional[Tuple[int, int]] = None) -> str:
    """The pip command for the newest wheel that the driver serves."""
    fitting = [w for w in WHEELS if w <= driver_cuda or w[0] == driver_cuda[0]]
    if capability is not None and capability >= _NEW_CARDS:
        fitting = [w for w in fitting if w >= (12, 8)]
    if not fitting:
        return f"rent a pod with a newer driver: this one serves CUDA {driver_cuda[0]}.{driver_cuda[1]}"
    served = [w for w in fitting if w <= driver_cuda] or fitting[:1]
    major, minor = served[-1]
    return f"pip install torch --index-url https://download.pytorch.org/whl/cu{major}{minor}"


def judge(facts: Dict[str, Any]) -> str:
    """What is wrong, and the fix; empty when torch can use every GPU, or there is none.

    Args:
        facts: `gpus`: [(name, capability)] by the driver; `driver_cuda`; `torch`: version or None; `torch_cuda`: of
            the wheel, None for a CPU build; `archs` it was built for; `errors`: one for each GPU, empty when it works.
    """
    if not facts["gpus"] or facts["torch"] is None:
        return ""
    driver = facts["driver_cuda"]
    capability = min((c for _name, c in facts["gpus"] if c is not None), default=None)
    fix = "fix: " + right_wheel(driver, capability)
    cards = ", ".join(name for name, _c in facts["gpus"])
    if facts["torch_cuda"] is None:
        return f"torch {facts['torch']} is a CPU build, and the pod has {cards}. {fix}"
    if facts["torch_cuda"][0] > driver[0]:
        return (
            f"torch {facts['torch']} is built for CUDA {_dotted(facts['torch_cuda'])}, "
            f"the driver serves up to {_dotted(driver)}. {fix}"
        )
    for name, found in facts["gpus"]:
        if found is not None and facts["archs"] and not _built_for(found, facts["archs"]):
            return f"torch {facts['torch']} has no code for {name} (sm_{found[0]}{found[1]}): {facts['archs']}. {fix}"
    for number, error in enumerate(facts["errors"]):
        if error:
            return f"GPU {number} of {cards} does not work with torch {facts['torch']}: {error}. {fix}"
    if len(facts["errors"]) < len(facts["gpus"]):
        return f"torch {facts['torch']} sees {len(facts['errors'])} of {len(facts['gpus'])} GPUs ({cards}). {fix}"
    return ""


def _dotted(version: Tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def _built_for(capability: Tuple[int, int], archs: List[str]) -> bool:
    """Code of the same major capability runs; so does PTX of any older one."""
    for arch in archs:
        found = re.fullmatch(r"(sm|compute)_(\d+)(\d)[a-z]?", arch)
        if found is None:
            continue
        built = int(found.group(2)), int(found.group(3))
        if built == capability or (built <= capability and (found.group(1) == "compute" or built[0] == capability[0])):
            return True
    return False


def driver() -> Tuple[List[Tuple[str, Optional[Tuple[int, int]]]], Tuple[int, int]]:
    """The GPUs that the driver shows, and the newest CUDA that it serves."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return [], (0, 0)
    listed = _said(tool, "--query-gpu=name,compute_cap", "--format=csv,noheader")
    cards: List[Tuple[str, Optional[Tuple[int, int]]]] = []
    for line in listed.splitlines():
        name, _, capability = line.rpartition(",")
        cards.append((name.strip() or line.strip(), _version(capability)))
    return cards, _version("".join(re.findall(r"CUDA Version:\s*([\d.]+)", _said(tool))[:1])) or (0, 0)


def _said(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=30).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _version(text: Any) -> Optional[Tuple[int, int]]:
    found = re.match(r"\s*(\d+)\.(\d+)", str(text))
    return (int(found.group(1)), int(found.group(2))) if found else None


def facts() -> Dict[str, Any]:
    cards, driver_cuda = driver()
    found: Dict[str, Any] = {"gpus": cards, "driver_cuda": driver_cuda, "torch": None}
    if not cards or importlib.util.find_spec("torch") is None:
        return found
    torch = importlib.import_module("torch")
    found.update(torch=torch.__version__, torch_cuda=_version(torch.version.cuda), archs=[], errors=[])
    if found["torch_cuda"] is not None:
        found["archs"] = list(torch.cuda.get_arch_list())
        for number in range(torch.cuda.device_count()):
            try:
                float((torch.ones(8, device=f"cuda:{number}") * 2).sum())
                found["errors"].append("")
            except Exception as e:  # noqa: BLE001 - whatever torch raises is the answer
                found["errors"].append(f"{type(e).__name__}: {str(e).splitlines()[0]}")
    return found


def main(modules: List[str]) -> int:
    """Import what the workload needs, and try the GPUs; what is wrong goes into the run's log."""
    for module in modules:
        try:
            importlib.import_module(module)
        except ImportError as e:
            print(f"error: {sys.executable} can't import {module}: {e}", file=sys.stderr)
            print("fix: add it to requirements.txt, or name an interpreter that has it: --python", file=sys.stderr)
            return 1
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return 0  # the CPU was asked for
    wrong = judge(facts())
    if wrong:
        print(
            f'error: {wrong}\n(to train on the CPU all the same: env = {{ CUDA_VISIBLE_DEVICES = "" }})',
            file=sys.stderr,
        )
        return 1
    return 0

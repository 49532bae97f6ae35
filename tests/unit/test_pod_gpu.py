"""The judgement about torch and GPUs, over what pods with them say."""

from __future__ import annotations

from typing import Any

import pytest

from remote_runner.pod import gpu

H100, BLACKWELL = ("NVIDIA H100", (9, 0)), ("NVIDIA RTX PRO 6000", (12, 0))
GOOD: dict[str, Any] = {
    "gpus": [H100],
    "driver_cuda": (12, 8),
    "torch": "2.8.0+cu126",
    "torch_cuda": (12, 6),
    "archs": ["sm_80", "sm_90"],
    "errors": [""],
}


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({}, ""),
        ({"gpus": [], "torch_cuda": None}, ""),
        ({"torch": None}, ""),
        (
            {"torch_cuda": None, "torch": "2.8.0+cpu", "errors": []},
            "is a CPU build, and the pod has NVIDIA H100. fix: ",
        ),
        ({"torch_cuda": (13, 0)}, "built for CUDA 13.0, the driver serves up to 12.8"),
        ({"torch_cuda": (12, 9)}, ""),  # a newer minor version runs on an older driver
        ({"gpus": [BLACKWELL]}, "no code for NVIDIA RTX PRO 6000 (sm_120)"),
        ({"gpus": [BLACKWELL], "archs": ["sm_90", "compute_90"]}, ""),  # PTX is compiled for newer cards
        ({"gpus": [("NVIDIA A10", (8, 6))]}, ""),
        ({"errors": ["RuntimeError: no kernel image"]}, "GPU 0 of NVIDIA H100 does not work"),
        ({"gpus": [H100, H100]}, "sees 1 of 2 GPUs"),
    ],
)
def test_what_is_wrong_is_said_with_the_wheel(changed: dict[str, Any], says: str) -> None:
    told = gpu.judge({**GOOD, **changed})
    assert says in told
    assert bool(told) == bool(says)


@pytest.mark.parametrize(
    ("driver", "capability", "wheel"),
    [
        ((12, 8), (9, 0), "whl/cu128"),
        ((12, 5), (9, 0), "whl/cu124"),
        ((13, 1), None, "whl/cu130"),
        ((11, 8), (8, 0), "whl/cu118"),
        ((12, 4), (12, 0), "whl/cu128"),  # the card needs it, and the driver's minor version does not matter
        ((10, 2), None, "newer driver"),
    ],
)
def test_the_right_wheel(driver: tuple[int, int], capability: tuple[int, int] | None, wheel: str) -> None:
    assert wheel in gpu.right_wheel(driver, capability)

"""paramiko, loaded when the first connection is made, and without what it loads in vain.

It loads invoke, a program runner, for one word of ~/.ssh/config: `Match exec`. That takes as long as the rest of it.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any


def load(runs_programs: bool = False) -> Any:
    """The module.

    Args:
        runs_programs: whether a configuration file may hold `Match exec`.
    """
    if "paramiko" not in sys.modules and "invoke" not in sys.modules:
        sys.modules["invoke"] = None  # type: ignore[assignment]  # an ImportError, which paramiko keeps for later
        try:
            importlib.import_module("paramiko")
        finally:
            del sys.modules["invoke"]
    paramiko = importlib.import_module("paramiko")
    if runs_programs and paramiko.config.invoke is None:
        paramiko.config.invoke = importlib.import_module("invoke")
    return paramiko

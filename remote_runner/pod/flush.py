"""Many small files made durable together: one sync of their file system takes a tenth of as many fsyncs.

Not here: one file, with its folder (files.py).
"""

from __future__ import annotations

import os
import re
import sys
from typing import Any, Iterable, Optional

MANY = 16  # fewer are synced one by one: the file system may hold much that others wrote
_TELLS_FAULTS = (5, 8)  # kernels from here on report a disk that failed


def together(fd: int, each: Iterable[int], count: int) -> None:
    """Make files durable.

    Args:
        fd: of anything on their file system.
        each: descriptors of all of them; asked for only where they must be synced one by one.

    Raises:
        OSError: the disk refused.
    """
    if count >= MANY and _synced_at_once(fd):
        return
    for one in each:
        os.fsync(one)


def _synced_at_once(fd: int) -> bool:
    library = _library()
    if library is None:
        return False
    if library.syncfs(fd):
        from ctypes import get_errno

        code = get_errno()
        raise OSError(code, os.strerror(code))
    return True


def _library() -> Optional[Any]:
    found = re.match(r"(\d+)\.(\d+)", os.uname().release)
    if sys.platform != "linux" or found is None or tuple(map(int, found.groups())) < _TELLS_FAULTS:
        return None
    from ctypes import CDLL  # here: not every program that can sync does

    try:
        library = CDLL(None, use_errno=True)
    except OSError:
        return None
    return library if hasattr(library, "syncfs") else None

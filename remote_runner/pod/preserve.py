"""Keep what stands in a run's places before a recovery or a fresh start replaces it.

    artifacts/<name>           ->  artifacts/<name>-interrupted-<YYYYmmdd-HHMMSS>/
    runs/<name>-train.log ...  ->  runs/<name>-interrupted-<YYYYmmdd-HHMMSS>/

Files that are only ever replaced whole are linked, appended ones copied, so the copy costs no space and can't
be changed by what comes after.
"""

from __future__ import annotations

import os
import shutil
from typing import Iterable, List

from remote_runner.pod import files, layout


def preserve(root: str, outputs: Iterable[str], name: str, stamp: str, *, move: bool) -> List[str]:
    """Preserve a run's outputs and its own files.

    Args:
        move: nothing stays in the old place (a fresh start); else links and copies are made.

    Returns:
        The folders made, relative to `root`; none where there was nothing.

    Raises:
        OSError: the disk refused; what stood there still does.
    """
    made = []
    for output in outputs:
        if _keep(root, output, f"{output}-interrupted-{stamp}", move):
            made.append(f"{output}-interrupted-{stamp}")
    kept = f"runs/{name}-interrupted-{stamp}"
    own = [layout.run_file(name, suffix) for suffix in layout.RUN_FILES]
    found = [_keep(root, path, f"{kept}/{os.path.basename(path)}", move) for path in own]
    if any(found):
        made.append(kept)
    return made


def _keep(root: str, source: str, target: str, move: bool) -> bool:
    found = list(files.walk(root, source))
    if not found:
        return False
    if move:
        os.makedirs(os.path.dirname(os.path.join(root, target)), exist_ok=True)
        os.rename(os.path.join(root, source), os.path.join(root, target))
        return True
    for path, _info, kind in found:
        to = os.path.join(root, target + path[len(source) :])
        if kind == "folder":
            os.makedirs(to, exist_ok=True)
        elif kind == "file":
            os.makedirs(os.path.dirname(to), exist_ok=True)
            _link_or_copy(os.path.join(root, path), to)
    return True


def _link_or_copy(source: str, target: str) -> None:
    if not source.endswith(layout.APPENDED):
        try:
            os.link(source, target, follow_symlinks=False)
            return
        except OSError:
            pass  # a file system without links: copy
    shutil.copy2(source, target, follow_symlinks=False)

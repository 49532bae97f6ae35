"""Keep what stands in a run's places before a recovery or a fresh start replaces it.

    artifacts/<name>           ->  artifacts/<name>-interrupted-<YYYYmmdd-HHMMSS>/
    runs/<name>-train.log ...  ->  runs/<name>-interrupted-<YYYYmmdd-HHMMSS>/

Files that are only ever replaced whole are linked, appended ones copied, so the copy costs no space at first and
can't be changed by what comes after.
"""

from __future__ import annotations

import os
import time
from typing import Any, Callable, Dict, Iterable, List

from remote_runner.pod import files, foreign, layout

_FORMAT = "%Y%m%d-%H%M%S"


def preserve(root: str, outputs: Iterable[str], name: str, stamp: str, *, move: bool) -> List[str]:
    """Preserve a run's outputs and its own files.

    Args:
        stamp: the time for the folders' names; the next second that is free is taken.
        move: nothing stays in the old place (a fresh start); else links and copies are made.

    Returns:
        The folders made, relative to `root`; none where there was nothing.

    Raises:
        OSError: the disk refused; what stood there still does.
    """
    outputs, made = list(outputs), []
    while any(os.path.lexists(os.path.join(root, f"{p}-interrupted-{stamp}")) for p in [*outputs, f"runs/{name}"]):
        stamp = time.strftime(_FORMAT, time.localtime(time.mktime(time.strptime(stamp, _FORMAT)) + 1))
    for output in outputs:
        if _keep(root, output, f"{output}-interrupted-{stamp}", move):
            made.append(f"{output}-interrupted-{stamp}")
    kept = f"runs/{name}-interrupted-{stamp}"
    own = [layout.run_file(name, suffix) for suffix in layout.RUN_FILES]
    found = [_keep(root, path, f"{kept}/{os.path.basename(path)}", move) for path in own]
    if any(found):
        made.append(kept)
    return made


def before_recovery(root: str, job: Dict[str, Any]) -> Dict[str, Any]:
    """The same for a recovery that begins where the run stands, unless the job says no.

    Returns:
        `folders` and `sha256` of the snapshots in them, or `failed` with the reason: a recovery goes on without it.
    """
    if not job.get("preserve"):
        return {"folders": [], "sha256": {}}
    try:
        made = preserve(root, job["outputs"], job["name"], time.strftime(_FORMAT), move=False)
        return {"folders": made, "sha256": digests(root, job["outputs"], job.get("snapshots") or [])}
    except OSError as e:
        return {"failed": str(e)}


def digests(
    root: str, outputs: Iterable[str], rules: List[Any], tick: Callable[[], None] = lambda: None
) -> Dict[str, str]:
    """SHA-256 of every whole snapshot of a run by its path; of a folder, a digest over its files (foreign.py)."""
    outputs = list(outputs)
    found = {p: files.digest(root, p, tick) for p, head, _why in layout.snapshots(root, outputs) if head is not None}
    for path, head, _why in foreign.heads(root, outputs, rules, tick):
        if head is not None:
            found[path] = head["root"]
    return found


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
    import shutil  # late: a supervisor holds no more than it needs

    shutil.copy2(source, target, follow_symlinks=False)

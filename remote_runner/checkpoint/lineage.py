"""Named changes of identity: which ones the user accepts, and what a state that went through one says of itself.

    REMOTE_RUN_ACCEPT   {"generator.learning_rate": null, "code": ["5f0c…", "91ab…"]}
        null: the trainer compares old and new itself; two values: whoever starts it knows them, as of the code

    state.lineage       {"kind": "changed", "root": …, "step": …, "fingerprint": …, "before": …,
                         "changes": [{"key": …, "old": …, "new": …}]}
        the state that was gone on from, and the lineage that one had

A run with a lineage is another run than the one it came from, and nobody may say otherwise. Standard library only.

Not here: what a trainer's identity is (its config.py), forks between places (remote_runner/resume.py).
"""

from __future__ import annotations

import json
import os
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence

from remote_runner.checkpoint.config import ConfigError

VARIABLE = "REMOTE_RUN_ACCEPT"
KIND = "changed"

Change = Dict[str, Any]  # key, old, new


def accepted() -> Dict[str, Optional[List[Any]]]:
    """What the user accepts: key -> [old, new] where it was told, else None.

    Raises:
        ConfigError: the variable is not what the contract says.
    """
    text = os.environ.get(VARIABLE, "")
    try:
        found = json.loads(text) if text else {}
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(v is None or _is_pair(v) for v in found.values()):
        raise ConfigError(f"{VARIABLE} is {text[:200]!r}", 'give a JSON object: {"KEY": null} or {"KEY": [OLD, NEW]}')
    return found


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2


def judge(
    what: str,
    old: Mapping[str, Any],
    new: Mapping[str, Any],
    *,
    follows: Mapping[str, Sequence[str]],
    derived: Optional[Mapping[str, Any]] = None,
    fix: str = "",
) -> List[Change]:
    """The changes between two identities, each one accepted.

    Args:
        what: the snapshot, for the message.
        follows: key -> the changes that it is a consequence of, `data.` for all that begin so.
        derived: key -> the old value that an accepted change elsewhere is known to have made the new one.
        fix: said beside the usual ways on.

    Raises:
        ConfigError: one is not accepted; the message names key, old and new of all of those.
    """
    changed = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    takes = accepted()
    because = [key for key in changed if key in takes]
    known = derived or {}
    wrong = [
        key
        for key in changed
        if key not in takes
        and not _follows(follows.get(key, ()), because)
        and not (key in known and known[key] == old.get(key))
    ]
    if wrong or not changed:
        said = "; ".join(f"{key} {old.get(key)!r} -> {new.get(key)!r}" for key in wrong) or "its fingerprint differs"
        options = " ".join(f"--accept-change {key}" for key in wrong if not _follows(follows.get(key, ()), wrong))
        ways = f"put the old values back, begin a new run under another name, or go on as another run: {options}"
        raise ConfigError(f"{what} is of another run: {said}", (ways if wrong else "begin a new run") + fix)
    return [{"key": key, "old": old.get(key), "new": new.get(key)} for key in changed]


def _follows(causes: Sequence[str], changed: Sequence[str]) -> bool:
    return any(key == cause or (cause.endswith(".") and key.startswith(cause)) for cause in causes for key in changed)


def told(lineage: Any) -> List[Change]:
    """Changes that whoever started the trainer knows of, and that the state does not have yet."""
    newest: Dict[str, Any] = {}
    for one in chain(lineage):
        for change in one.get("changes") or []:
            if isinstance(change, dict):
                newest.setdefault(str(change.get("key")), change.get("new"))
    given = [(key, both) for key, both in accepted().items() if both is not None]
    return [{"key": k, "old": both[0], "new": both[1]} for k, both in given if newest.get(k) != both[1]]


def after(changes: List[Change], state: Mapping[str, Any], root: str) -> Any:
    """The lineage of what comes after a snapshot; its own where nothing was changed."""
    before = state.get("lineage")
    if not changes:
        return before
    return {
        "kind": KIND,
        "root": root,
        "step": state["step"],
        "fingerprint": state["fingerprint"],
        "changes": changes,
        "before": before,
    }


def chain(lineage: Any) -> Iterator[Dict[str, Any]]:
    """A lineage and those before it, the newest first."""
    while isinstance(lineage, dict):
        yield lineage
        lineage = lineage.get("before")


def came_from(state: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether a state went on, by its lineage, from another one or from what that one had become.

    Args:
        state, other: step, root, fingerprint, lineage of two states of one stage, as their headers say.
    """
    for one in chain(state.get("lineage")):
        if one.get("kind") != KIND:
            continue
        if one.get("fingerprint") == other.get("fingerprint") and one.get("before") == other.get("lineage"):
            at = one.get("step")
            if other["step"] == at:
                return bool(other.get("root") == one.get("root"))
            return isinstance(at, int) and bool(other["step"] < at)
    return False


def text(lineage: Any) -> str:
    """For people, the newest change first; empty where there is none. Of a stranger's file it may be anything."""
    return "; ".join(_one(one) for one in chain(lineage))


def _one(lineage: Mapping[str, Any]) -> str:
    where = f"at step {lineage.get('step', lineage.get('start_step'))}"
    changes = lineage.get("changes")
    said = [_change(c) if isinstance(c, dict) else str(c) for c in (changes if isinstance(changes, list) else [])]
    return f"{', '.join(said)} {where}"


def _change(change: Mapping[str, Any]) -> str:
    return f"{change.get('key')} {_short(change.get('old'))} -> {_short(change.get('new'))}"


def _short(value: Any) -> str:
    written = value[:12] if isinstance(value, str) and len(value) == 64 else value
    return str(written)[:80]

"""Send the code, changed files only, and with --resume the run's files.

SHA-256 of everything is taken before, and the pod compares it after, on its own disk.

Not here: which files that are (code_files.py).
"""

from __future__ import annotations

import stat
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from remote_runner import code_files, keeping, rates, secrets, transfer
from remote_runner.agent import Agent, Denied
from remote_runner.agent import field as answer_field
from remote_runner.conversation import printable
from remote_runner.errors import NotStarted
from remote_runner.plan import Plan
from remote_runner.pod import digests, files, foreign, layout
from remote_runner.transfer import Item

_KEY_START = b"-----BEGIN "


@dataclass
class Code:
    """What will be sent, and what stays here although it is in the project."""

    items: list[Item] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    @property
    def size(self) -> int:
        return sum(i.size for i in self.items)


def collect(plan: Plan) -> Code:
    """The project's code with digests.

    Raises:
        UsageFault: a name that is not UTF-8, or an input that is missing.
    """
    found = code_files.find(plan)
    if not plan.options.yes:
        code_files.guard_size(found, rates.measured(plan.root, "up"), plan.options.price)
    code = Code(skipped=found.skipped)
    known = digests.Digests(str(plan.root))
    for file in found.files:
        try:
            if _is_key(file.source):
                code.skipped.append(f"{file.path} (a private key)")
                continue
            memory = known if file.root == plan.root else None
            item = transfer.item(file.root, file.inner, durable=False, known=memory)
            code.items.append(replace(item, path=file.path))
        except OSError:
            continue  # gone since it was listed
    known.save()
    secrets.refuse_in_files([(i.path, i.source) for i in code.items], plan.secrets)
    return code


def _is_key(path: Path) -> bool:
    if not stat.S_ISREG(path.lstat().st_mode):
        return False
    with path.open("rb") as f:
        head = f.read(64)
    return head.startswith(_KEY_START) and b"PRIVATE KEY" in head


def send_code(agent: Agent, root: Path, code: Code, tell: Callable[[str], None]) -> list[str]:
    """Bring the pod's copy of the code up to date.

    Returns:
        The files that travelled; those of the last upload that are gone here were removed there.

    Raises:
        NotStarted: the pod's disk refused, or what lies there is not what was sent.
    """
    digests = {i.path: i.sha256 for i in code.items}
    try:
        need = set(answer_field(agent.ask("code", files=digests, done=False), "need", list))
        began_s = time.monotonic()
        sent = [i for i in code.items if i.path in need]
        transfer.send(agent, sent)
        rates.remember(root, "up", sum(i.size for i in sent), time.monotonic() - began_s)
        done = agent.ask("code", files=digests, done=True)
        removed, changed = (answer_field(done, name, list) for name in ("removed", "changed"))
    except Denied as e:
        fix = "run the command again; look at the pod's disk"
        if e.reason == "foreign":
            fix = "nothing was touched; move it away there, or take another folder: --remote-dir DIR"
        raise NotStarted(f"upload of the code failed: {e}", fix=fix) from None
    if code.skipped:
        tell(f"left here: {', '.join(code.skipped[:10])}{' …' if len(code.skipped) > 10 else ''}")
    if changed:
        tell(f"sent before and changed there since, so left there: {printable(', '.join(map(str, changed[:10])))}")
    tell(f"code: {len(digests)} files, {len(need)} sent, {len(removed)} removed")
    return sorted(need)


def run_files(plan: Plan) -> tuple[list[Item], list[str]]:
    """All files of the run here: outputs, logs and events, snapshots first, with the digests that are remembered.

    Returns:
        What goes, and the paths of what stays here.
    """
    names = [layout.run_file(plan.name, s) for s in ("-train.log", "-events.jsonl")]
    found = [
        (path, info.st_size)
        for top in [*plan.outputs, *names]
        for path, info, kind in files.walk(str(plan.root), top)
        if kind == "file" and info is not None and not path.endswith("/.pause")
    ]
    known = digests.Digests(str(plan.root))
    best = foreign.newest(str(plan.root), plan.outputs, plan.settings.rules) if plan.settings.rules else None
    newest = {path for path, _size in best.files} if best else set()
    paths = keeping.along(found, lambda path: "-training." in path or path in newest, plan.options.all_outputs)
    items = [transfer.item(plan.root, path, known=known, hashed=False) for path in paths]
    return items, sorted({path for path, _size in found} - set(paths))


def send_run(agent: Agent, plan: Plan, tell: Callable[[str], None]) -> list[Item]:
    """Send the run's files for a resume.

    Raises:
        NotStarted: the pod's disk refused, or bytes arrived damaged.
    """
    began_ns = time.time_ns()
    items, stayed = run_files(plan)
    keeping.say_stayed(stayed, tell)
    size = sum(i.size for i in items)
    tell(f"run files: {len(items)} files, {size / 1e6:.1f} MB")
    rates.announce(plan.root, "up", size, len(items), plan.options.price, tell)
    sent = transfer.send(agent, items)
    transfer.remember_sent(plan.root, digests.Digests(str(plan.root)), sent, began_ns)
    return sent

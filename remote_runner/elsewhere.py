"""Bring home files of a job that was not ours: any folder on a pod, by the same engine and with the same proofs.

    remote-run download TARGET --from /workspace/checkpoints --to DIR      ->  DIR/checkpoints, and a SHA256SUMS in it

Nothing is written on the pod, not even the program that answers: it lives in memory there (memfd_create, Linux).

Not here: how files come and are proven (download.py, transfer/).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from remote_runner import checksums, download, ssh, zipapp
from remote_runner.access import Access
from remote_runner.agent import Agent, python_command
from remote_runner.conversation import Conversation
from remote_runner.download import Home
from remote_runner.errors import OutOfContact, UsageFault
from remote_runner.pod import files
from remote_runner.program import LinkLost
from remote_runner.ssh import Pod

_LOADER = """
import os,sys
root,size,nonce=sys.argv[1:]
data=b''
while len(data)<int(size):
    block=os.read(0,int(size)-len(data))
    if not block: sys.exit(1)
    data+=block
fd=os.memfd_create('remote-run',0)
while data: data=data[os.write(fd,data):]
os.set_inheritable(fd,True)
os.execv(sys.executable,[sys.executable,'-I','-S','/proc/self/fd/%d'%fd,'serve',root,nonce])
"""


class Reader(Agent):
    """The program on the pod, serving a folder that is not ours, from memory."""

    def __init__(self, pod: Pod, root: PurePosixPath) -> None:
        self.pod, self.root = pod, root
        app, nonce = zipapp.build(), secrets.token_hex(16)
        program = pod.open(python_command(_LOADER, str(root), str(len(app.content)), nonce))
        program.write(app.content)
        Conversation.__init__(self, program, str(pod.endpoint), nonce)


def bring(
    access: Access,
    source: str,
    to: Path,
    tell: Callable[[str], None],
    keep: str = "",
    ask: Callable[[str], bool] | None = None,
) -> Home:
    """Fetch a folder of a pod into `to`, under its own name; what is there already is not fetched again.

    `keep` and `ask` as for a run's download.

    Raises:
        UsageFault: no absolute path, or nothing there. Unverified, OSError: as for a run's download.
    """
    path = PurePosixPath(source)
    if not path.is_absolute() or ".." in path.parts or path == PurePosixPath("/"):
        raise UsageFault(f"--from {source!r}: not a folder's absolute path", fix="write it as on the pod: /workspace/x")
    to.mkdir(parents=True, exist_ok=True)
    try:
        with ssh.connect(access.endpoint(to)) as pod, Reader(pod, path.parent) as agent:
            home = download.bring_home(agent, to, path.name, [path.name], tell, keep, ask)
    except LinkLost as e:
        raise OutOfContact(f"the connection broke: {e}", fix="run the same command again: it goes on") from None
    if not home.manifest and not home.unverified:
        raise UsageFault(f"{pod.endpoint}: no files in {source}", fix="look there: ssh to the pod and ls it")
    _write_list(to / path.name, home)
    return home


def _write_list(folder: Path, home: Home) -> None:
    """A SHA256SUMS beside what came, where the pod's folder has none of its own."""
    inside = folder.name + "/"
    if inside + checksums.NAME in home.manifest or not folder.is_dir():
        return
    found = {p.removeprefix(inside): str(e["sha256"]) for p, e in home.manifest.items() if p.startswith(inside)}
    text = checksums.render(found)
    files.replace(str(folder), checksums.NAME, lambda fd: files.write_all(fd, text))

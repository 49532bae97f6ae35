"""The controller's end of the program on the pod: how it gets there and starts.

    exec python3 - reads the zipapp from stdin into <root>/.remote-run/<hash>.pyz, where it is not there already
           -> exec python3 <hash>.pyz serve ROOT NONCE  -> a marker line -> messages (pod/wire.py)

Not here: how it is asked and answered (conversation.py), how bytes of files travel (transfer).
"""

from __future__ import annotations

import secrets
import shlex
from pathlib import PurePosixPath

from remote_runner import zipapp
from remote_runner.conversation import SILENCE_S, Conversation, Denied, field, printable
from remote_runner.ssh import Pod

__all__ = ["NO_PYTHON", "SILENCE_S", "Agent", "Denied", "field", "printable", "python_command"]

_PYTHONS = ("/usr/bin/python3", "/usr/local/bin/python3", "/opt/conda/bin/python3", "/venv/main/bin/python3")
NO_PYTHON = 127

_LOADER = """
import os,sys
if sys.version_info<(3,8): sys.exit('python3 is %d.%d here, 3.8 or newer is needed'%sys.version_info[:2])
root,name,size,nonce=sys.argv[1:]
own=os.path.join(root,'.remote-run')
path=os.path.join(own,name)
if not os.path.exists(path):
    os.write(1,('\\nremote-run-need %s\\n'%nonce).encode())
    data=b''
    while len(data)<int(size):
        block=os.read(0,int(size)-len(data))
        if not block: sys.exit(1)
        data+=block
    os.makedirs(own,0o755,exist_ok=True)
    temp='%s.%d.tmp'%(path,os.getpid())
    with open(temp,'wb') as f:
        f.write(data); f.flush(); os.fsync(f.fileno())
    os.replace(temp,path)
os.execv(sys.executable,[sys.executable,'-I','-S',path,'serve',root,nonce])
"""


def python_command(code: str, *args: str) -> str:
    """A command that runs `code` in the first python3 there is; exit 127 and one line where there is none.

    It is one POSIX word list for `sh`, whatever the login shell is. What the pod has installed is not looked at:
    the standard library is enough, and a start is two thirds as long without.
    """
    line = f"exec({code!r})" if "\n" in code else code  # csh takes no newline in quotes
    tail = shlex.join(["-I", "-S", "-c", line, *args])
    tries = " ".join(shlex.quote(p) for p in ("python3", *_PYTHONS))
    script = (
        f'for p in {tries}; do p=$(command -v "$p") && [ -x "$p" ] && exec "$p" {tail}; done; '
        f"echo no python3 >&2; exit {NO_PYTHON}"
    )
    return f"exec sh -c {shlex.quote(script)}"


class Agent(Conversation):
    """The program on the pod that answers all requests (pod/serve.py), over the logged-in connection."""

    def __init__(self, pod: Pod, root: PurePosixPath) -> None:
        self.pod, self.root = pod, root
        app, nonce = zipapp.build(), secrets.token_hex(16)
        arguments = (str(root), app.name, str(len(app.content)), nonce)
        program = pod.open(python_command(_LOADER, *arguments))
        super().__init__(program, str(pod.endpoint), nonce, app.content)

"""The tools that bench_transfer.py compares with, each with the command that its manual would give."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from wan.lab import PORT, Lab

OUTPUT = "artifacts/bench"
Measured = tuple[float, float, float, str, int]
Run = Callable[[], Measured]


@dataclass(frozen=True)
class Case:
    """One piece of work for one tool."""

    lab: Lab
    work: str
    way: str  # down: from the pod to here
    here: Path
    there: Path

    @property
    def ssh(self) -> str:
        return f"ssh -F {self.lab.ssh_config}"

    def pair(self, prefix: str) -> list[str]:
        """Source and target of a copy, the pod's with a prefix."""
        there, here = f"{prefix}{self.there}/{OUTPUT}", f"{self.here}/{OUTPUT}"
        return [there, here] if self.way == "down" else [here, there]

    def folders(self) -> str:
        return f"mkdir -p {self.here}/{OUTPUT} {self.there}/{OUTPUT}; "


def _measured(case: Case, script: str) -> Run:
    from bench_transfer import measure

    return lambda: measure(case.lab, ["sh", "-c", script])


def _rsync(*options: str) -> Callable[[Case], Run | None]:
    def run(case: Case) -> Run | None:
        if not shutil.which("rsync"):
            return None
        source, target = case.pair("pod:")
        more = ("--append-verify",) if case.work == "half" else ()
        words = ["rsync", *options, *more, "-e", case.ssh, source + "/", target + "/"]
        return _measured(case, case.folders() + shlex.join(words))

    return run


def _scp(case: Case) -> Run | None:
    if case.work in ("half", "unchanged"):
        return None
    source, target = case.pair("pod:")
    return _measured(case, f"{case.folders()}scp -qrp -F {case.lab.ssh_config} {source} {Path(target).parent}")


def _sftp(case: Case) -> Run | None:
    if case.work in ("unchanged",):
        return None
    source, target = case.pair("")
    again = "a" if case.work == "half" else ""
    verb = "get" if case.way == "down" else "put"
    line = f"{verb} -{again}rp {source} {Path(target).parent}"
    return _measured(case, f"{case.folders()}echo {shlex.quote(line)} | sftp -q -b - -F {case.lab.ssh_config} pod")


def _tar(compress: str) -> Callable[[Case], Run | None]:
    def run(case: Case) -> Run | None:
        if case.work not in ("small", "folder"):
            return None
        source, target = case.pair("")
        pack, unpack = f"tar -C {source} -c{compress}f - .", f"tar -C {target} -x{compress}f -"
        ssh = f"{case.ssh} pod"
        script = f"{ssh} '{pack}' | {unpack}" if case.way == "down" else f"{pack} | {ssh} '{unpack}'"
        return _measured(case, case.folders() + script)

    return run


def _cat(case: Case) -> Run | None:
    if case.work != "large":
        return None
    source, target = case.pair("")
    name = "part0.safetensors"
    ssh = f"{case.ssh} -c aes128-gcm@openssh.com pod"
    get, put = f"{ssh} 'cat {source}/{name}' > {target}/{name}", f"{ssh} 'cat > {target}/{name}' < {source}/{name}"
    return _measured(case, case.folders() + (get if case.way == "down" else put))


def _rclone(case: Case) -> Run | None:
    if not shutil.which("rclone") or case.work == "half":
        return None
    remote = f":sftp,host={case.lab.address},port={PORT},user=root,key_file={case.lab.key},shell_type=none:"
    source, target = case.pair(remote)
    options = "--transfers 8 --multi-thread-streams 8 --multi-thread-cutoff 16M -q"
    return _measured(case, f"{case.folders()}rclone copy {options} {shlex.quote(source)} {shlex.quote(target)}")


def _lftp(case: Case) -> Run | None:
    if not shutil.which("lftp"):
        return None
    source, target = case.pair("")
    if case.work in ("large", "half") and case.way == "down":
        move = f"pget -c -n 8 {source}/part0.safetensors -o {target}/part0.safetensors"
    else:
        move = f"mirror {'' if case.way == 'down' else '-R'} -c -P 8 --use-pget-n=8 {source} {target}"
    program = f"set sftp:connect-program ssh -a -x -F {case.lab.ssh_config}; open sftp://root:x@pod; {move}"
    return _measured(case, f"{case.folders()}lftp -c {shlex.quote(program)}")


_PYTHON = """
import sys, stat, os, {module}
{connect}
sftp = client.{opened}
source, target, way = sys.argv[1:]
for name in (sftp.listdir(source) if way == "down" else os.listdir(source)):
    (sftp.get if way == "down" else sftp.put)(f"{{source}}/{{name}}", f"{{target}}/{{name}}")
"""
_PARAMIKO = """
client = paramiko.SSHClient(); client.load_host_keys({known!r})
client.connect({host!r}, {port}, "root", key_filename={key!r}, allow_agent=False, look_for_keys=False)
"""
_FABRIC = """
client = fabric.Connection({host!r}, "root", {port}, connect_kwargs={{"key_filename": {key!r}}})
"""


def _python(module: str, connect: str, opened: str) -> Callable[[Case], Run | None]:
    def run(case: Case) -> Run | None:
        import importlib.util

        if importlib.util.find_spec(module) is None or case.work not in ("large", "folder", "small"):
            return None
        if case.work == "small" and case.lab.profile.rtt_ms:
            return None  # several round trips a file: minutes
        lab = case.lab
        known, key = str(lab.known_hosts), str(lab.key)
        made = connect.format(known=known, host=lab.address, port=PORT, key=key)
        code = _PYTHON.format(module=module, connect=made, opened=opened)
        source, target = case.pair("")
        words = [sys.executable, "-c", code, source, target, case.way]
        return _measured(case, case.folders() + shlex.join(words))

    return run


PEERS: dict[str, Callable[[Case], Run | None]] = {
    "rsync": _rsync("-a"),
    "rsync -z": _rsync("-az"),
    "scp": _scp,
    "sftp": _sftp,
    "rclone": _rclone,
    "lftp": _lftp,
    "paramiko": _python("paramiko", _PARAMIKO, "open_sftp()"),
    "fabric": _python("fabric", _FABRIC, "sftp()"),
    "ssh cat": _cat,
    "tar": _tar(""),
    "tar -z": _tar("z"),
}

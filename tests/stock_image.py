"""A pod that looks as the images of providers do: a root of its own, by overlay, bind mounts and chroot.

    /venv/main/bin/python      the image's python, with torch; on nobody's PATH
    /usr/bin/python3           the system's, marked as externally managed (PEP 668)
    /home/pod                  a HOME of 2 MB whose .bashrc prints
    /workspace                 a network volume that refuses link(2) and flock(2) (network_volume.py)
    no rsync, no SFTP

Everything is mounted in the pod's own mount namespace and is gone with it.
"""

from __future__ import annotations

import ctypes.util
import importlib.util
import os
import pwd
import shlex
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import pods

VOLUME = Path(__file__).with_name("network_volume.py")
PLAIN_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
HOME = "/home/pod"


def missing() -> str:
    """Why such a pod can't be made here; empty where it can."""
    if os.getuid() != 0:
        return "needs root: mounts and chroot"
    if not Path("/dev/fuse").exists() or not (ctypes.util.find_library("fuse") or ctypes.util.find_library("fuse3")):
        return "needs /dev/fuse and libfuse"
    if importlib.util.find_spec("mfusepy") is None or importlib.util.find_spec("torch") is None:
        return "needs mfusepy and torch"
    try_it = ["unshare", "--mount", "sh", "-c", "mount -t tmpfs x /mnt && mkdir /mnt/u /mnt/w && "
              "mount -t overlay x -o lowerdir=/usr,upperdir=/mnt/u,workdir=/mnt/w /mnt"]  # fmt: skip
    done = subprocess.run(try_it, capture_output=True, text=True)
    return "" if done.returncode == 0 else f"needs overlay mounts: {done.stderr.strip()}"


@dataclass
class StockPod(pods.TestPod):
    """What lies on the volume is seen from outside in `volume`."""

    @property
    def volume(self) -> Path:
        return self.folder / "volume"

    @property
    def root(self) -> Path:
        return self.volume / "remote-run" / "project"

    def start(self) -> pods.TestPod:
        self.volume.mkdir(parents=True, exist_ok=True)
        self.options = ["Subsystem none"]
        self.setenv = {"HOME": HOME, "PATH": PLAIN_PATH}
        self.before = _build(self.folder, self.volume)
        return super().start()


def _build(folder: Path, volume: Path) -> str:
    """Shell commands that make the root, and go on with the server inside it."""
    site = sysconfig.get_paths()["purelib"]
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    root, q = folder / "image", shlex.quote
    inner = f"{root}/venv/main/lib/{version}/site-packages"
    users = [f"root:x:0:0:root:{HOME}:/bin/bash"]
    users += [":".join(map(str, user)) for user in pwd.getpwall() if user.pw_name == "sshd"]
    return f"""
set -e
R={q(str(root))}
mkdir -p "$R" && mount -t tmpfs -o size=64m,mode=755 image "$R"
mkdir -p "$R/layer/upper" "$R/layer/work" "$R/usr" "$R/etc" "$R/dev" "$R/proc" "$R/run/sshd" "$R{HOME}" "$R/workspace"
mkdir -p -m 1777 "$R/tmp"
mount -t overlay usr -o "lowerdir=/usr,upperdir=$R/layer/upper,workdir=$R/layer/work" "$R/usr"
rm -f "$R/usr/bin/rsync"
for lib in "$R"/usr/lib/python3.*; do
    printf '[externally-managed]\\nError=not here\\n' > "$lib/EXTERNALLY-MANAGED"
done
for d in bin sbin lib lib32 lib64; do
    if [ -L "/$d" ]; then cp -a "/$d" "$R/"; elif [ -d "/$d" ]; then mkdir "$R/$d" && mount --bind "/$d" "$R/$d"; fi
done
cp -a /etc/ld.so.* /etc/group /etc/nsswitch.conf /etc/os-release "$R/etc/" 2>/dev/null || true
printf '%s\\n' {" ".join(map(q, users))} > "$R/etc/passwd"
echo 'root:$y$none:19000:0:99999:7:::' > "$R/etc/shadow"  # not locked, and no password fits
mount --rbind /dev "$R/dev" && mount -t tmpfs -o size=64m shm "$R/dev/shm" && mount -t proc proc "$R/proc"
mkdir -p "$R{sys.base_prefix}" && mount --bind {q(sys.base_prefix)} "$R{sys.base_prefix}"
mkdir -p "$R{folder}" && for f in hostkey id.pub sshd_config; do cp {q(str(folder))}/$f "$R{folder}/"; done
mkdir -p "$R/venv/main/bin" {q(inner)}
ln -s {q(os.path.realpath(sys.executable))} "$R/venv/main/bin/python"
printf 'home = %s\\ninclude-system-site-packages = false\\n' {q(sys.base_prefix + "/bin")} > "$R/venv/main/pyvenv.cfg"
mount --bind {q(site)} {q(inner)} && mount -o remount,bind,ro {q(inner)}
mount -t tmpfs -o size=2m home "$R{HOME}"
echo 'echo "Welcome to this fine image"; cd /tmp' > "$R{HOME}/.bashrc"
{q(sys.executable)} {q(str(VOLUME))} {q(str(volume))} "$R/workspace" &
for try in $(seq 200); do mountpoint -q "$R/workspace" && break; sleep 0.05; done
mountpoint -q "$R/workspace"
export PATH={PLAIN_PATH}
exec chroot "$R" "$@"
"""

#!/bin/sh
# Make the workload's Python environment on a pod: bootstrap.sh mlx|torch
#
# Needs python3 with venv or ensurepip, and a package index; nothing else. Safe to run twice: the environment is
# keyed by a hash of what goes into it, and one that is complete is used as it is. Written for POSIX sh.
#
#   REMOTE_RUN_VENV    where the environment goes (in the run's root)
#   REMOTE_RUN_PYTHON  the python3 it is made with
set -eu

kind=${1:-}
venv=${REMOTE_RUN_VENV:?set by the supervisor}
python=${REMOTE_RUN_PYTHON:-python3}

driver=none
if command -v nvidia-smi >/dev/null 2>&1; then
    # "CUDA Version: 12.8" in the banner is the newest CUDA that this driver can serve
    driver=$(nvidia-smi 2>/dev/null | sed -n 's/.*CUDA Version: *\([0-9]*\).*/\1/p' | head -n 1)
    driver=${driver:-none}
fi

case $kind in
mlx)
    case $driver in
    none) packages="mlx[cpu]>=0.32,<0.33" ;;
    12) packages="mlx[cuda12]>=0.32,<0.33" ;;
    *) packages="mlx[cuda13]>=0.32,<0.33" ;;
    esac
    ;;
torch)
    packages="torch>=2.6,<3"
    ;;
*)
    echo "bootstrap.sh: say what to install: mlx or torch" >&2
    exit 2
    ;;
esac
packages="numpy>=1.26,<3 $packages"

key=$("$python" -c '
import hashlib, platform, sys
print(hashlib.sha256(" ".join([sys.version, platform.machine(), *sys.argv[1:]]).encode()).hexdigest())
' "$packages")
if [ "$(cat "$venv/.remote-run-key" 2>/dev/null)" = "$key" ]; then
    echo "bootstrap: environment is up to date ($packages)"
    exit 0
fi

echo "bootstrap: making $venv with $packages"
rm -rf "$venv"
# an image's own torch is used, not replaced: the site packages of its python are visible
if ! "$python" -m venv --system-site-packages "$venv"; then
    echo "bootstrap: python3 -m venv does not work here; on Debian: apt-get install python3-venv" >&2
    exit 1
fi
set -f # the packages are words, their brackets and stars no globs
# shellcheck disable=SC2086
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check $packages
printf '%s' "$key" >"$venv/.remote-run-key"
echo "bootstrap: done"

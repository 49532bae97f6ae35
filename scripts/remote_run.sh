#!/bin/sh
# Take an experiment to a pod: remote-run with the project's own Python.
#
#   scripts/remote_run.sh HOST:PORT CONFIG [options of: remote-run run] [--background]
#
# --background: the controller is independent of the terminal (launchd, systemd, or a session of its own).
set -eu
[ $# -ge 2 ] || { echo "usage: $0 HOST:PORT CONFIG [options] [--background]" >&2; exit 2; }
home=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-$home/.venv/bin/python}
[ -x "$python" ] || python=python3
background=
for word in "$@"; do
    shift
    if [ "$word" = --background ]; then background=yes; else set -- "$@" "$word"; fi
done
if [ -n "$background" ]; then
    name=$(basename "$2")
    set -- detached "controller-${name%.*}" "$@"
fi
exec "$python" -m remote_runner.cli "$@"

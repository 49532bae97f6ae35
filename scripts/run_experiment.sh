#!/bin/sh
# Run an experiment in the foreground: train, then evaluate and benchmark unless it was paused.
#
#   scripts/run_experiment.sh CONFIG MEMORY_MB [--resume] [more options of: remote-run local]
#
# MEMORY_MB bounds the process tree. NCM_MLX_MEMORY_LIMIT_GB is respected. USR1, TERM and INT pause it: exit 75.
set -eu
[ $# -ge 2 ] || { echo "usage: $0 CONFIG MEMORY_MB [--resume]" >&2; exit 2; }
home=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-$home/.venv/bin/python}
[ -x "$python" ] || python=python3
config=$1
memory_mb=$2
shift 2
# exec: this process becomes the program, so that a signal to it needs no forwarding
exec "$python" -m remote_runner.cli local "$config" --memory-limit-mb "$memory_mb" "$@"

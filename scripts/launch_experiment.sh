#!/bin/sh
# Start an experiment independent of the terminal: launchd on macOS, a systemd user unit, or a session of its own.
#
#   scripts/launch_experiment.sh CONFIG [--resume | --generator-checkpoint F --generator-start-step N]
#
# Refused while another training, evaluation or benchmark runs here. It never starts again by itself.
set -eu
[ $# -ge 1 ] || { echo "usage: $0 CONFIG [--resume | --generator-checkpoint F --generator-start-step N]" >&2; exit 2; }
home=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-$home/.venv/bin/python}
[ -x "$python" ] || python=python3
config=$1
shift
: "${NCM_MLX_MEMORY_LIMIT_GB:=20}"
export NCM_MLX_MEMORY_LIMIT_GB
case "${1:-}" in
--generator-checkpoint) set -- -- "$@" ;; # the trainer's own words
esac
exec "$python" -m remote_runner.cli local "$config" --memory-limit-mb "${MEMORY_MB:-24000}" --background "$@"

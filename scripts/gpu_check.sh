#!/bin/sh
# Prove on this machine's accelerator that an interrupted run is the same run: straight, killed and paused runs of the
# PyTorch trainer, and of the MLX one where it runs on the accelerator, roots compared; stall and durable times.
#
#   scripts/gpu_check.sh [--record FILE]     under five minutes on one GPU; without one it dry-runs on the CPU
#
# Ends with 0 when all roots agree. Set PYTHON to choose the interpreter.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
export PYTHONPATH="$here:$here/workloads${PYTHONPATH:+:$PYTHONPATH}"
export CUBLAS_WORKSPACE_CONFIG=:4096:8
exec "${PYTHON:-python3}" "$here/scripts/gpu_check.py" "$@"

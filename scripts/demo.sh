#!/usr/bin/env bash
# The main job from a fresh clone: makes .venv, installs what the demo needs, then `remote-run demo`.
# Everything it does lies in a new temporary folder; its last line says where.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
[ -x .venv/bin/python ] || "$python" -m venv .venv
if ! .venv/bin/python -c 'import asyncssh, mlx, remote_runner' 2>/dev/null; then
    echo "installing into .venv ..." >&2
    .venv/bin/python -m pip install --quiet --disable-pip-version-check -e '.[demo]'
fi
exec .venv/bin/remote-run demo "$@"

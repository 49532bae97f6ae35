#!/usr/bin/env bash
# Lose pods at random moments and go on from the store each time.
#
#   scripts/soak_backup.sh           50 pods
#   scripts/soak_backup.sh --short   3 pods, under two minutes
set -euo pipefail
cd "$(dirname "$0")/.."
python=python3
[ -x .venv/bin/python ] && python=.venv/bin/python
rounds=50
if [ "${1:-}" = "--short" ]; then
    rounds=3
    shift
fi
exec "$python" scripts/soak_backup.py --rounds "$rounds" "$@"

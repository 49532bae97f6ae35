#!/usr/bin/env bash
# usage: ./run.sh experiments/count.env [--resume]
set -euo pipefail
source "$1"
OUT=results
mkdir -p "$OUT"
i=0
if [ "${2:-}" = "--resume" ]; then
    i=$(cat "$(ls "$OUT"/state-*.txt | tail -n 1)")
    echo "going on from $i"
fi
stop=
trap 'stop=1' TERM
save() { echo "$i" >"$OUT/.new" && mv "$OUT/.new" "$OUT/state-$(printf %06d "$i").txt"; }
while [ "$i" -lt "$STEPS" ]; do
    i=$((i + 1))
    sleep "$SLEEP"
    if [ $((i % 10)) = 0 ]; then echo "iteration $i of $STEPS"; save; fi
    if [ -n "$stop" ]; then save; echo "stopped at $i"; exit 0; fi
done
echo "$i" >"$OUT/finished"

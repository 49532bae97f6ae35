#!/usr/bin/env bash
# Kill a training with SIGKILL at random moments, resume it each time, and compare it with a run that was never touched.
#
#     scripts/soak.sh [--kills N] [--seed N] [--config FILE]      100 kills, about 10 minutes on two cores
#     scripts/soak.sh --short                                     8 kills
#
# Whenever the killed run gets to its end, it is compared and begun anew, until all kills are used up.
# Exit 0: every finished run had the same roots and weights as the straight one. PYTHON chooses the interpreter.
set -euo pipefail
top=$(cd "$(dirname "$0")/.." && pwd)
kills=100 seed=1 config=$top/configs/sudoku-smoke.json
while [ $# -gt 0 ]; do
    case $1 in
        --short) kills=8 ;;
        --kills) kills=$2; shift ;;
        --seed) seed=$2; shift ;;
        --config) config=$2; shift ;;
        *) sed -n '2,8s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
    esac
    shift
done
python=${PYTHON:-python3}
RANDOM=$seed
name=$(basename "$config" .json)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export TMPDIR=$work/tmp PYTHONPATH=$top:$top/workloads${PYTHONPATH:+:$PYTHONPATH}
mkdir -p "$TMPDIR"

fresh() {
    rm -rf "${work:?}/$1"
    mkdir -p "$work/$1/configs"
    cp "$config" "$work/$1/configs/"
}
train() { (cd "$work/$1" && shift && exec "$@" "$python" -m ncm_mlx train "configs/$name.json" $resume >>log 2>&1); }
names_of() {
    (cd "$work/$1/artifacts/$name" && "$python" - <<'END' && sha256sum codec.safetensors generator.safetensors)
from remote_runner.checkpoint import header
for stage in ("codec", "generator"):
    print(stage, header.verify_digests(f"{stage}-training.safetensors")["root"])
END
}

resume=
fresh straight
begun=$(date +%s%N)
train straight env
lasts_ms=$((($(date +%s%N) - begun) / 1000000))
names_of straight >"$work/straight.names"
cat "$work/straight.names"
echo "a straight run takes $lasts_ms ms; $kills kills, seed $seed"

fresh cut
done_kills=0 runs=0
while [ "$done_kills" -lt "$kills" ]; do
    after_ms=$(((RANDOM * 32768 + RANDOM) % (lasts_ms / 4) + 50)) # several kills to a run
    [ -e "$work/cut/artifacts/$name/begun.json" ] && resume=--resume || resume=
    code=0
    # timeout dies of its own signal, which the shell would tell at each kill
    { train cut timeout -s KILL "$((after_ms / 1000)).$(printf %03d $((after_ms % 1000)))"; } 2>/dev/null || code=$?
    case $code in
        137)
            done_kills=$((done_kills + 1))
            echo "kill $done_kills after $after_ms ms: $(grep -h ' step ' "$work/cut/log" | tail -n 1)" ;;
        0)
            runs=$((runs + 1))
            names_of cut | diff "$work/straight.names" - || { echo "run $runs differs"; exit 1; }
            echo "run $runs ended equal"
            fresh cut ;;
        *) tail -n 20 "$work/cut/log"; echo "exit $code"; exit 1 ;;
    esac
done
[ -e "$work/cut/artifacts/$name/begun.json" ] && resume=--resume || resume=
train cut env
names_of cut | diff "$work/straight.names" - || { echo "the last run differs"; exit 1; }
echo "$kills kills over $((runs + 1)) runs: all ended equal"

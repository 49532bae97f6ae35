#!/usr/bin/env bash
# Everything that must hold: lint, types, import rules, all tests. Makes .venv and installs what is missing.
#
#   scripts/test.sh            all of it
#   scripts/test.sh -k guard   words after it go to pytest
set -euo pipefail
cd "$(dirname "$0")/.."

missing=()
command -v sshd >/dev/null 2>&1 || [ -x /usr/sbin/sshd ] || missing+=(openssh-server)
command -v ssh-keygen >/dev/null 2>&1 || missing+=(openssh-client)
command -v g++ >/dev/null 2>&1 || missing+=(g++)
command -v git >/dev/null 2>&1 || missing+=(git)
if [ "$(id -u)" = 0 ]; then # what a few tests use, and are skipped without
    command -v faketime >/dev/null 2>&1 || missing+=(faketime)
    ldconfig -p | grep 'libfuse[3]*\.so' >/dev/null || missing+=(libfuse2)
    command -v cron >/dev/null 2>&1 || [ -x /usr/sbin/cron ] || missing+=(cron)
fi
if [ ${#missing[@]} -gt 0 ]; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
    else
        echo "test.sh: please install first: ${missing[*]} (on Debian: sudo apt-get install ${missing[*]})" >&2
        exit 1
    fi
fi

python=${PYTHON:-python3}
[ -x .venv/bin/python ] || "$python" -m venv .venv
key=$(cat pyproject.toml scripts/test.sh | "$python" -c 'import hashlib,sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())')
if [ "$(cat .venv/.test-key 2>/dev/null)" != "$key" ]; then
    # the CPU build: a bare torch would pull several GB of CUDA
    .venv/bin/python -m pip install --quiet --disable-pip-version-check 'torch==2.13.0'
    .venv/bin/python -m pip install --quiet --disable-pip-version-check -e '.[dev,mlx,torch]'
    echo "$key" >.venv/.test-key
fi
export PATH="$PWD/.venv/bin:$PATH"

if [ $# -eq 0 ]; then
    ruff check .
    ruff format --check .
    mypy
    lint-imports
fi
# Tests that start trainers which a guard of this machine could see run one at a time, before the rest.
pytest -m alone "$@" || [ $? -eq 5 ] # 5: the selection has none of these
# They mostly wait for pods and trainers: three a core keep two cores busy. What fails beside the others, where
# seconds can be short, must pass by itself, and is named by the first run all the same.
pytest -n "${TEST_JOBS:-6}" -m "not alone" "$@" || {
    echo "test.sh: once more, one at a time: what failed beside the others"
    pytest --last-failed --last-failed-no-failures none -m "not alone" "$@"
}

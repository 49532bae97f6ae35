"""A shell, or one command, in a run's root with the environment of its workload; secrets are not part of it."""

from __future__ import annotations

import os
import sys
from typing import List

from remote_runner.pod import files, interpreter, layout, variables


def main(root: str, words: List[str]) -> int:
    """Become the shell; with words, run them as one command line of sh."""
    job = files.read_json(root, layout.JOB)
    if not isinstance(job, dict):
        print(f"error: {root}: no run was started here", file=sys.stderr)
        return 2
    status = files.read_json(root, layout.status(job["name"])) or {}
    env = variables.of_workload(root, job, int(status.get("segment") or 1), interpreter.of(root, job))
    os.chdir(root)
    if words:
        os.execvpe("sh", ["sh", "-c", " ".join(words)], env)
    shell = os.environ.get("SHELL") or "/bin/sh"
    os.execvpe(shell, [shell, "-i"], env)
    return 127

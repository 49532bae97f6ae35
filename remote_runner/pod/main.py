"""The zipapp's entry: `serve ROOT NONCE` for a connection, `supervise ROOT LOCK_FD` for a job."""

from __future__ import annotations

import sys
from typing import List


def main(argv: List[str]) -> int:
    if len(argv) == 3 and argv[0] == "serve":
        from remote_runner.pod.serve import serve

        return serve(argv[1], argv[2])
    if len(argv) == 3 and argv[0] == "supervise":
        from remote_runner.pod.supervise import main as supervise

        return supervise(argv[1])
    print(f"remote-run pod program: not understood: {argv}", file=sys.stderr)
    return 2

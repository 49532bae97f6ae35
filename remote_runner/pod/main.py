"""The zipapp's entry: one word for each program that runs on a pod."""

from __future__ import annotations

import sys
from typing import List


def main(argv: List[str]) -> int:
    if len(argv) == 3 and argv[0] == "serve":
        from remote_runner.pod.session import begun, loop

        session = begun(argv[1], argv[2])
        from remote_runner.pod.serve import OPERATIONS  # while the marker line is on its way

        return loop(session, OPERATIONS)
    if len(argv) == 3 and argv[0] == "keep":
        from remote_runner.pod.keep import main as keep

        return keep(argv[1], int(argv[2]))
    if len(argv) == 2 and argv[0] == "supervise":
        from remote_runner.pod.supervise import main as supervise

        return supervise(argv[1])
    if len(argv) == 2 and argv[0] == "end":
        from remote_runner.pod.ends import main as end

        return end(argv[1])
    if len(argv) == 2 and argv[0] == "push":
        from remote_runner.pod.pusher import main as push

        return push(argv[1])
    if len(argv) == 2 and argv[0] == "prepare":
        from remote_runner.pod.prepare import main as prepare

        return prepare(argv[1])
    if len(argv) == 2 and argv[0] == "environment":
        from remote_runner.pod.environment import main as environment

        return environment(argv[1])
    if len(argv) == 2 and argv[0] == "data":
        from remote_runner.pod.data import main as data

        return data(argv[1])
    if argv and argv[0] == "probe":
        from remote_runner.pod.gpu import main as probe

        return probe(argv[1:])
    if argv == ["facts"]:
        from remote_runner.pod.facts import main as facts

        return facts()
    print(f"remote-run pod program: not understood: {argv}", file=sys.stderr)
    return 2

"""Every way a command can end badly, each with its exit code.

A message states the problem with its numbers; `fix` is the next thing to type or change. The command line
prints both and exits with the class's code, so no traceback reaches a user for anything he can act on.

Not here: the workload's own exit codes (checkpoint/CONTRACT.md).
"""

from __future__ import annotations


class RunnerError(Exception):
    """The base of all: a message, a fix, and the exit code of its class."""

    exit_code = 70

    def __init__(self, message: str, *, fix: str = "") -> None:
        super().__init__(message)
        self.fix = fix


class UsageFault(RunnerError):
    """Options, settings, a config or a resume that can't be right; nothing was contacted or changed."""

    exit_code = 2


class PreflightFailed(RunnerError):
    """The pod can't take the run as it is; nothing on it was changed.

    `passing` marks what may be gone a minute later (no answer, nothing listens); a wrong host key is not.
    """

    exit_code = 3

    def __init__(self, message: str, *, fix: str = "", passing: bool = False) -> None:
        super().__init__(message, fix=fix)
        self.passing = passing


class Refused(RunnerError):
    """Somebody else holds the pod or the run, or a trainer is running there."""

    exit_code = 4


class NotStarted(RunnerError):
    """Upload, set-up or launch failed; no workload runs."""

    exit_code = 5


class OutOfContact(RunnerError):
    """The pod does not answer; the run may go on there and cost money."""

    exit_code = 6


class Unverified(RunnerError):
    """What is home is incomplete, or its bytes are not proven."""

    exit_code = 7


class BackupFailed(RunnerError):
    """The run ended, but its last backup did not get into the store."""

    exit_code = 8

"""Run the trainer and let it send itself a signal at one exact call.

    strike.py MODULE:FUNCTION:CALL:SIGNAL[+SIGNAL…] train CONFIG …

CALL counts from 1. The signal is sent just before the call is made: a real signal to a real process, at a moment no
clock could hit.
"""

from remote_runner.checkpoint import pause

pause.install()

import importlib  # noqa: E402 - after the handlers, as the trainer does it
import itertools  # noqa: E402
import os  # noqa: E402
import signal  # noqa: E402
import sys  # noqa: E402

module_name, function, number, names = sys.argv.pop(1).split(":")
module = importlib.import_module(module_name)
real, calls = getattr(module, function), itertools.count(1)


def struck(*args, **named):
    if next(calls) == int(number):
        for name in names.split("+"):
            os.kill(os.getpid(), getattr(signal, name))
    return real(*args, **named)


setattr(module, function, struck)

from ncm_mlx import cli  # noqa: E402

from remote_runner.checkpoint import contract  # noqa: E402

assert calls is not None
code = cli.main()
if next(calls) <= int(number):
    sys.exit(f"{function} was called less than {number} times: the strike never came")
contract.leave(code)

"""One life of the PyTorch trainer with a blow at a named point; run in a process of its own by test_torch_recovery.py.

As a program it sends itself a signal before anything is imported, as a launcher does that blocks signals while the
interpreter starts.
"""

import os
import signal
import sys
from pathlib import Path


def run(root, blow, arguments, env):
    """Do what `python -m cipher_torch` does, in `root`, with both streams in `said.log`. Ends the process."""
    os.environ |= {"REMOTE_RUN_SEGMENT": "1", **env}
    os.chdir(root)
    log = os.open("said.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    from remote_runner.checkpoint import pause

    pause.install()
    from cipher_torch import cli

    prepare(*blow)
    sys.exit(cli.main(arguments))


def prepare(point, count, number):
    """Arrange the blow: signal `number` at the `count`th time the program comes to `point`."""
    from cipher_torch import ciphers, task, train

    from remote_runner.checkpoint import rotate, trailing, writer

    places = {
        "data": (ciphers, "prepare"),
        "step": (task, "train_step"),
        "evaluation": (ciphers, "accuracy"),
        "submit": (writer.Writer, "submit"),
        "save": (trailing, "write"),
        "publish": (rotate, "publish"),
        "rename": (os, "replace"),
        "end": (train, "_write_inference"),
    }
    if point in places:
        strike_in(*places[point], count, getattr(signal, f"SIG{number}"))
    if point == "nan":
        step_for_real = task.train_step
        task.train_step = lambda t, rows, step: step_for_real(t, rows, step) if step < count else float("nan")
    if point == "cut":  # half the grace is gone, in the middle of an evaluation
        decode_for_real = task.decode

        def decode(*arguments):
            Path("artifacts/tiny/.pause").write_text("now")
            return decode_for_real(*arguments)

        task.decode = decode


def strike_in(module, name, count, number):
    """Let the `count`th call of a function begin with a signal; several where it can be survived."""
    real, calls = getattr(module, name), [0]

    def struck(*arguments, **options):
        calls[0] += 1
        if calls[0] == count:
            for _ in range(1 if number == signal.SIGKILL else 3):
                os.kill(os.getpid(), number)
        return real(*arguments, **options)

    setattr(module, name, struck)


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    os.kill(os.getpid(), signal.SIGTERM)
    import runpy

    sys.path.pop(0)
    runpy.run_module("cipher_torch", run_name="__main__")

"""`python -m remote_runner.cli`: the same as `remote-run`."""

from remote_runner.cli import main

main()

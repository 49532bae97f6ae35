"""Take a pause request from the first moment on, then read the command line.

The order of the lines is the point: a signal that comes while torch loads is a pause like any other.
"""

from remote_runner.checkpoint import pause

pause.install()

from cipher_torch import cli  # noqa: E402 - after the handlers, see above

raise SystemExit(cli.main())

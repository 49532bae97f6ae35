"""Take a pause request from the first moment on, then read the command line.

The order of the lines is the point: a signal that comes while numpy and mlx load is a pause like any other.
"""

from remote_runner.checkpoint import pause

pause.install()

from ncm_mlx import cli  # noqa: E402 - after the handlers, see above
from remote_runner.checkpoint import contract  # noqa: E402

contract.leave(cli.main())

"""Connect for the system's ssh and hand it the socket: run as its ProxyCommand, by path, with nothing of ours loaded.

ssh sets TCP_NODELAY only when a session has begun. Until then small packets wait for the other side's acknowledgements:
three times a round trip or 40 ms in each login. A socket that comes with the option set has none of that.

    python -I -S dial.py HOST PORT SECONDS

Not here: who calls it (openssh.py).
"""

import socket
import sys


def main(host: str, port: str, timeout_s: str) -> int:
    try:
        made = socket.create_connection((host, int(port)), timeout=float(timeout_s))
    except OSError as e:
        print(f"{host} port {port}: {e.strerror or e}", file=sys.stderr)
        return 1
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    made.setblocking(True)
    with socket.socket(fileno=1) as ssh:
        socket.send_fds(ssh, [b"\0"], [made.fileno()])
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

"""A pretend pod for the demo: an SSH server on loopback whose disk is one folder. Not a sandbox.

    python -m remote_runner.demo_pod FOLDER     prints its port, serves until it is ended

It has its own throw-away keys, no sftp, no rsync: what a bare image offers. Tests use a real OpenSSH server.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from pathlib import Path
from typing import Any

import asyncssh


def write_keys(folder: Path) -> None:
    """The server's key, and the user's, `id`."""
    for name in ("hostkey", "id"):
        key = asyncssh.generate_private_key("ssh-ed25519")
        path = folder / name
        path.touch(mode=0o600)
        path.write_bytes(key.export_private_key())
        path.with_suffix(".pub").write_bytes(key.export_public_key())


async def _pump(source: Any, sink: Any) -> None:
    with contextlib.suppress(OSError, asyncssh.Error):
        while block := await source.read(65_536):
            sink.write(block)
            await sink.drain()
        sink.write_eof()


async def _serve(folder: Path) -> None:
    home = folder / "disk"
    home.mkdir(parents=True, exist_ok=True)
    write_keys(folder)

    async def execute(process: asyncssh.SSHServerProcess[bytes]) -> None:
        child = await asyncio.create_subprocess_exec(
            "/bin/sh",
            "-c",
            process.command or "exec sh",
            cwd=home,
            env={**os.environ, "HOME": str(home)},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        assert child.stdin and child.stdout and child.stderr
        feeding = asyncio.create_task(_pump(process.stdin, child.stdin))
        await asyncio.gather(_pump(child.stdout, process.stdout), _pump(child.stderr, process.stderr))
        process.exit(await child.wait())
        feeding.cancel()

    server = await asyncssh.listen(
        "127.0.0.1",
        0,
        server_host_keys=[str(folder / "hostkey")],
        authorized_client_keys=str(folder / "id.pub"),
        process_factory=execute,
        encoding=None,
    )
    print(server.get_port(), flush=True)
    await server.wait_closed()


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1])))

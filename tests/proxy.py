"""A TCP proxy that adds a delay each way: what a long link costs in round trips, on one machine.

Bytes are passed on in order, each chunk `delay_s` after it came; nothing else is limited.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator

CHUNK_BYTES = 65_536


async def _pass_on(source: asyncio.StreamReader, sink: asyncio.StreamWriter, delay_s: float) -> None:
    waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def read() -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(CHUNK_BYTES):
                waiting.put_nowait((time.monotonic() + delay_s, data))
        waiting.put_nowait((time.monotonic() + delay_s, b""))

    reading = asyncio.create_task(read())
    with contextlib.suppress(OSError):
        while True:
            due, data = await waiting.get()
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            if not data:
                break
            sink.write(data)
            await sink.drain()
    await reading
    sink.close()


@contextlib.contextmanager
def delayed(port: int, round_trip_s: float) -> Iterator[int]:
    """A port on loopback that leads to `port`, with half of `round_trip_s` each way."""
    ready = threading.Event()
    loop = asyncio.new_event_loop()
    here: list[int] = []

    async def serve() -> None:
        async def join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", port)
            with contextlib.suppress(asyncio.CancelledError):  # the proxy ends before its connections do
                await asyncio.gather(
                    _pass_on(reader, up_writer, round_trip_s / 2), _pass_on(up_reader, writer, round_trip_s / 2)
                )

        server = await asyncio.start_server(join, "127.0.0.1", 0)
        here.append(server.sockets[0].getsockname()[1])
        ready.set()

    def run() -> None:
        loop.run_until_complete(serve())
        loop.run_forever()
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    ready.wait(10)
    try:
        yield here[0]
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)

"""A real S3 server (moto's, over HTTP) in a process of its own, and a gate in front of it that can misbehave."""

from __future__ import annotations

import http.client
import http.server
import os
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pods

KEYS = {"AWS_ACCESS_KEY_ID": "SECRET-aaa", "AWS_SECRET_ACCESS_KEY": "SECRET-bbb"}
SIGNED = "X-Amz-Signature"


@dataclass
class S3Server:
    """moto's server with one bucket, `bucket`."""

    folder: Path
    port: int = field(default_factory=pods.free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def url(self, prefix: str = "", endpoint: str = "") -> str:
        return f"s3://bucket/{prefix}?endpoint={endpoint or self.endpoint}"

    def start(self) -> S3Server:
        log = (self.folder / "moto.log").open("ab")
        code = "from moto.server import main; main()"
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, "-H", "127.0.0.1", "-p", str(self.port)],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, "MOTO_S3_CUSTOM_ENDPOINTS": ""},
        )  # fmt: skip
        pods.wait_for(self._answers, "moto's server", 60)
        assert self.ask("PUT", "/bucket")[0] == 200
        return self

    def _answers(self) -> bool:
        try:
            return self.ask("GET", "/")[0] == 200
        except OSError:
            return False

    def ask(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request(method, path, body)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


class Gate:
    """A proxy to an S3 server that is slow, frozen, or answers with an error: (status, S3 code)."""

    def __init__(self, server: S3Server, port: int = 0) -> None:
        gate = self
        self.error: tuple[int, str] | None = None
        self.signed_error: tuple[int, str] | None = None  # to who comes with a signed address alone
        self.spoil: Callable[[bytes], bytes] | None = None  # what such a one gets instead
        self.delay_s = 0.0  # before each object is taken
        self.open = threading.Event()  # cleared: the network is frozen, nothing is answered
        self.open.set()
        self.seen: list[tuple[str, str, int]] = []  # method, path, body bytes

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one_request(self) -> None:
                self.raw_requestline = self.rfile.readline(65537)
                if not self.raw_requestline or not self.parse_request():
                    self.close_connection = True
                    return
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                gate.seen.append((self.command, self.path, len(body)))
                if self.command == "PUT" and "/blobs/" in self.path:
                    time.sleep(gate.delay_s)
                gate.open.wait(60)
                signed = SIGNED in self.path
                if error := gate.error or (gate.signed_error if signed else None):
                    text = f"<Error><Code>{error[1]}</Code><Message>{error[1]}</Message></Error>".encode()
                    self._reply(error[0], {}, text)
                    return
                connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
                connection.request(self.command, self.path, body, dict(self.headers))
                answer = connection.getresponse()
                content = answer.read()
                if signed and gate.spoil:
                    content = gate.spoil(content)
                self._reply(answer.status, dict(answer.getheaders()), content)
                connection.close()

            def _reply(self, status: int, headers: dict[str, str], body: bytes) -> None:
                self.send_response_only(status)
                length = headers.pop("Content-Length", str(len(body)))
                for name, value in headers.items():
                    if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                        self.send_header(name, value)
                self.send_header("Content-Length", length if self.command == "HEAD" else str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
            daemon_threads = True

            def handle_error(self, *_: object) -> None:
                """A client that was killed is what is wanted."""

        self._server = Server(("127.0.0.1", port), Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.open.set()
        self._server.shutdown()
        self._server.server_close()

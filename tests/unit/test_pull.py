"""A pod fetches blobs by signed addresses: whole or not at all, by ranges, and without ever saying an address."""

from __future__ import annotations

import hashlib
import http.server
import os
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from remote_runner.pod import pull, wire
from remote_runner.pod.session import Refusal, Session

QUERY = "?X-Amz-Signature=SECRET-ddd"


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class Store:
    """An HTTP server that gives what it is told to, and can misbehave."""

    def __init__(self) -> None:
        store = self
        self.content: dict[str, bytes] = {}
        self.errors: list[int] = []  # statuses of the next answers
        self.cut_after: list[int] = []  # bytes after which the next answers break off
        self.redirect = ""
        self.ranges = True
        self.asked: list[tuple[str, str]] = []  # path, range

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path, wanted = self.path.partition("?")[0], self.headers.get("Range") or ""
                store.asked.append((path, wanted))
                if store.redirect or store.errors:
                    self.send_response(302 if store.redirect else store.errors.pop(0))
                    if store.redirect:
                        self.send_header("Location", store.redirect)
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                data, begin = store.content[path], 0
                if wanted and store.ranges:
                    begin = int(wanted[len("bytes=") : -1])
                self.send_response(206 if begin else 200)
                if begin:
                    self.send_header("Content-Range", f"bytes {begin}-{len(data) - 1}/{len(data)}")
                self.send_header("Content-Length", str(len(data) - begin))
                self.end_headers()
                most = store.cut_after.pop(0) if store.cut_after else len(data)
                self.wfile.write(data[begin:][:most])

            def log_message(self, *_: object) -> None:
                pass

        class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
            daemon_threads = True

        self.server = Server(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def add(self, data: bytes, as_of: bytes | None = None) -> dict[str, Any]:
        """Serve bytes; the blob that a controller would ask for (of other bytes where `as_of` is given)."""
        named = data if as_of is None else as_of
        self.content[f"/{sha(named)}"] = data
        url = f"http://127.0.0.1:{self.server.server_address[1]}/{sha(named)}{QUERY}"
        return {"sha256": sha(named), "size": len(named), "url": url}


@pytest.fixture
def store() -> Iterator[Store]:
    made = Store()
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Session:
    monkeypatch.setattr(pull, "PAUSE_S", 0.01)
    (tmp_path / ".remote-run").mkdir()
    return Session(str(tmp_path), wire.Wire(-1, -1))


def refused(session: Session, *blobs: dict[str, Any]) -> Refusal:
    with pytest.raises(Refusal) as found:
        pull.pull(session, {"blobs": list(blobs)})
    text = str(found.value.facts)
    assert "SECRET" not in text
    assert "http://" not in text
    return found.value


def test_blobs_come_proven_and_get_their_names(store: Store, session: Session, tmp_path: Path) -> None:
    contents = [os.urandom(3_000_000), b"small", b""]
    blobs = [store.add(c) for c in contents]
    assert pull.pull(session, {"blobs": blobs}) == {"bytes": 3_000_005}
    rows = [[f"artifacts/run/{n}", sha(c), 0o640] for n, c in enumerate(contents)]
    rows.append(["artifacts/run/again", sha(contents[0]), 0o600])
    pull.pulled(session, {"files": rows, "folders": ["artifacts/run/empty"], "mtime_ns": 1_700_000_000_000_000_000})
    folder = tmp_path / "artifacts/run"
    assert [(folder / str(n)).read_bytes() for n in range(3)] == contents
    assert (folder / "again").read_bytes() == contents[0]
    assert (folder / "again").stat().st_ino != (folder / "0").stat().st_ino
    assert ((folder / "0").stat().st_mode & 0o777, (folder / "0").stat().st_mtime) == (0o640, 1_700_000_000)
    assert (folder / "empty").is_dir()
    assert not list((tmp_path / ".remote-run/incoming").iterdir())


def test_what_breaks_off_goes_on_from_there(store: Store, session: Session, tmp_path: Path) -> None:
    blob = store.add(content := os.urandom(100_000))
    store.cut_after = [30_000, 0, 20_000]
    pull.pull(session, {"blobs": [blob]})
    assert (tmp_path / pull.part_of(blob["sha256"])).read_bytes() == content
    assert [r for _p, r in store.asked] == ["", "bytes=30000-", "bytes=30000-", "bytes=50000-"]


def test_a_later_try_goes_on_too_and_a_wrong_beginning_is_thrown_away(
    store: Store, session: Session, tmp_path: Path
) -> None:
    content = os.urandom(100_000)
    blob = store.add(content)
    part = tmp_path / pull.part_of(blob["sha256"])
    part.parent.mkdir(parents=True)
    for beginning, ranges in ((content[:40_000], ["bytes=40000-"]), (bytes(40_000), ["bytes=40000-", ""])):
        part.write_bytes(beginning)
        store.asked.clear()
        pull.pull(session, {"blobs": [blob]})
        assert part.read_bytes() == content
        assert [r for _p, r in store.asked] == ranges
    store.asked.clear()
    pull.pull(session, {"blobs": [blob]})
    assert store.asked == [], "what is there whole is not asked for"


def test_a_server_that_takes_no_ranges_is_read_from_the_start(store: Store, session: Session, tmp_path: Path) -> None:
    blob = store.add(content := os.urandom(50_000))
    store.ranges, store.cut_after = False, [10_000]
    pull.pull(session, {"blobs": [blob]})
    assert (tmp_path / pull.part_of(blob["sha256"])).read_bytes() == content


def test_a_store_that_can_not_just_now_is_asked_again_and_then_given_up(store: Store, session: Session) -> None:
    blob = store.add(b"content")
    store.errors = [503, 500]
    pull.pull(session, {"blobs": [blob]})
    other = store.add(b"other")
    store.errors = [503] * 10
    found = refused(session, other)
    assert (found.facts["kind"], "HTTP 503" in found.facts["detail"]) == ("away", True)


def test_what_is_refused_is_not_asked_again(store: Store, session: Session) -> None:
    blob = store.add(b"content")
    store.errors = [403]
    assert refused(session, blob).facts["kind"] == "refused"
    assert len(store.asked) == 1


def test_other_bytes_are_never_taken(store: Store, session: Session, tmp_path: Path) -> None:
    for served in (b"CONTENT", b"content and more", bytes(7)):
        blob = store.add(served, as_of=b"content")
        assert refused(session, blob).facts["kind"] == "content"
        assert (tmp_path / pull.part_of(blob["sha256"])).stat().st_size in (0, 0)


@pytest.mark.parametrize("to", ["https://127.0.0.1:1/x", "file:///etc/passwd", "ftp://127.0.0.1/x"])
def test_a_redirect_to_another_scheme_is_refused(store: Store, session: Session, to: str) -> None:
    blob = store.add(b"content")
    store.redirect = to
    assert refused(session, blob).facts["kind"] == "refused"


@pytest.mark.parametrize("url", ["file:///etc/passwd", "gopher://x/y", "http://a b\n/", "http://[::1"])
def test_an_address_that_is_none_is_refused(session: Session, url: str) -> None:
    with pytest.raises((Refusal, ValueError)):
        pull.pull(session, {"blobs": [{"sha256": sha(b"x"), "size": 1, "url": url}]})


def test_nothing_listens(session: Session) -> None:
    found = refused(session, {"sha256": sha(b"x"), "size": 1, "url": f"http://127.0.0.1:1/x{QUERY}"})
    assert found.facts["kind"] == "away"


def test_a_name_that_leads_out_is_refused(session: Session, store: Store) -> None:
    for bad in ("../x", "x" * 64):
        with pytest.raises(ValueError, match="no SHA-256"):
            pull.part_of(bad)
    pull.pull(session, {"blobs": [store.add(b"content")]})
    with pytest.raises(ValueError, match="not a plain relative path"):
        pull.pulled(session, {"files": [["../out", sha(b"content"), 0o600]], "folders": [], "mtime_ns": 0})


def test_what_does_not_fit_is_said_before_a_byte_comes(session: Session, store: Store) -> None:
    blob = {**store.add(b"content"), "size": 1 << 60}
    with pytest.raises(Refusal) as found:
        pull.pull(session, {"blobs": [blob]})
    assert found.value.facts["reason"] == "os"
    assert store.asked == []

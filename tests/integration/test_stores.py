"""One suite for every kind of store: a folder, S3 (moto), sftp (a real sshd, with and without its extension)."""

from __future__ import annotations

import hashlib
import os
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pods
import pytest
from pods import TestPod
from s3server import KEYS, Gate, S3Server

from remote_runner.errors import UsageFault
from remote_runner.stores import Store, StoreAway, StoreRefused, open_store
from remote_runner.stores.objects import open_objects
from remote_runner.stores.steady import Steady

MB = 1_000_000
KINDS = ["folder", "s3", "sftp", "sftp-plain"]
NO_POSIX_RENAME = ["Subsystem sftp /usr/lib/openssh/sftp-server -P posix-rename"]


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def sftp_url(server: TestPod) -> str:
    return f"sftp://backup-host{server.folder}/store"


@pytest.fixture(params=KINDS)
def store(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, s3_keys: None
) -> Iterator[Store]:
    if request.param == "folder":
        yield open_store("kept/here", tmp_path)
        return
    if request.param == "s3":
        server: S3Server = request.getfixturevalue("s3")
        yield open_store(server.url(f"some folder/{tmp_path.name}"), tmp_path)
        return
    options = NO_POSIX_RENAME if request.param == "sftp-plain" else []
    if options and not Path("/usr/lib/openssh/sftp-server").exists():
        pytest.skip("no sftp-server binary to deny an extension with")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pods.running(tmp_path / "host", options=options) as server:
        server.trust(tmp_path, "backup-host")
        opened = open_store(sftp_url(server), tmp_path)
        yield opened
        opened.close()


def test_what_is_put_comes_back(store: Store, tmp_path: Path) -> None:
    content = os.urandom(9 * MB + 7)  # beyond the size where uploads come in parts
    source = tmp_path / "source"
    source.write_bytes(content)
    key = f"project/a run ü/blobs/{sha(content)}"
    assert store.has(key) is None
    store.put_file(key, source)
    assert store.has(key) == len(content)
    assert store.digest(key) == sha(content)
    store.fetch(key, tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == content
    assert source.read_bytes() == content


def test_a_signed_address_fetches_without_a_login(s3: S3Server, s3_keys: None, tmp_path: Path) -> None:
    store = open_store(s3.url("some folder/ü+x"), tmp_path)
    store.put("project/a run/blobs/1", b"content")
    url = store.sign(["project/a run/blobs/1"], 60)[0]
    assert "X-Amz-Expires=60" in url
    assert KEYS["AWS_SECRET_ACCESS_KEY"] not in url
    with urllib.request.urlopen(url, timeout=20) as answer:
        assert answer.read() == b"content"


def test_a_folder_and_sftp_sign_nothing(tmp_path: Path) -> None:
    assert open_store("kept", tmp_path).sign(["x"], 60) == []
    assert open_store("sftp://host/x", tmp_path).sign(["x"], 60) == []


def test_what_is_not_there_is_said_to_be(store: Store, tmp_path: Path) -> None:
    for action in (store.get, store.digest, lambda k: store.fetch(k, tmp_path / "back")):
        with pytest.raises(FileNotFoundError):
            action("project/run/blobs/none")
    assert store.list("project/run/") == []
    store.delete("project/run/blobs/none")


def test_a_listing_is_sorted_whole_and_by_the_stores_own_clock(store: Store) -> None:
    for number in range(12):
        store.put(f"project/run/blobs/{number:02}", b"x" * number)
    store.put("project/run-two/blobs/00", b"another run")
    found = store.list("project/run/")
    assert [(o.key, o.size) for o in found] == [(f"project/run/blobs/{n:02}", n) for n in range(12)]
    first = next(o for o in found if o.key.endswith("/00"))
    store.put("project/run/now", b"")
    now = next(o for o in store.list("project/run/") if o.key.endswith("/now"))
    assert -2 < now.modified_unix_s - first.modified_unix_s < 60


def test_an_object_is_replaced_and_removed(store: Store) -> None:
    key = "project/run/writing/me"
    store.put(key, b"old")
    store.put(key, b"newer")
    assert store.get(key) == b"newer"
    store.delete(key)
    assert store.has(key) is None
    store.put("project/run/backups/one/manifest.json", b"{}")
    store.delete("project/run/backups/one/manifest.json")
    assert store.list("project/run/") == []


def test_a_reader_never_finds_an_object_missing_or_short(store: Store, request: pytest.FixtureRequest) -> None:
    """While one key is replaced 50 times, every read is one whole version."""
    if "sftp-plain" in request.node.name:
        pytest.skip("without posix-rename only names that are used once are promised: blobs and manifests")
    key = "project/run/latest"
    versions = [bytes([65 + n % 26]) * (50_000 + n) for n in range(50)]
    store.put(key, versions[0])
    stop, bad, reads = threading.Event(), [], []
    reader = store if "sftp" not in request.node.name else _another(store)

    def poll() -> None:
        while not stop.is_set():
            try:
                found = reader.get(key)
            except FileNotFoundError:
                bad.append("missing")
                continue
            reads.append(1)
            if found not in versions:
                bad.append(f"{len(found)} bytes of none of them")

    thread = threading.Thread(target=poll)
    thread.start()
    for version in versions:
        store.put(key, version)
    stop.set()
    thread.join()
    assert not bad
    assert reads


def _another(store: Store) -> Store:
    """A second connection to the same sftp store."""
    from remote_runner.stores.sftp import Sftp

    inner = store._inner  # type: ignore[attr-defined]
    return Sftp(inner._endpoint, inner._folder)


def test_a_key_can_not_lead_out_of_the_store(store: Store) -> None:
    for key in ("../outside", "project/../../outside", "/etc/x", "project//x"):
        with pytest.raises(ValueError, match="not a plain relative path"):
            store.put(key, b"")


# --- one kind alone ------------------------------------------------------------


def test_a_full_folder_is_said_with_its_numbers(tmp_path: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("mounting a small disk needs root")
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", small], check=True)
    try:
        store = open_store(str(small), tmp_path)
        source = tmp_path / "source"
        source.write_bytes(bytes(3 * MB))
        store.put("project/run/blobs/first", b"kept")
        with pytest.raises(StoreRefused, match=r"no space left in the store .*/small: big needs 3\.00 MB, .* are free"):
            store.put_file("project/run/blobs/big", source)
        assert [o.key for o in store.list("project/")] == ["project/run/blobs/first"]
        assert not list(small.rglob("*.part"))
    finally:
        subprocess.run(["umount", small], check=True)


def test_parts_of_a_killed_upload_are_aborted(s3: S3Server, s3_keys: None, tmp_path: Path) -> None:
    answer = s3.ask("POST", "/bucket/swept/project/run/blobs/abc?uploads")[1]
    assert b"<UploadId>" in answer
    s3.ask("POST", "/bucket/elsewhere/blobs/abc?uploads")
    store = open_store(s3.url("swept"), tmp_path)
    assert store.sweep("project/run/") == 1
    assert store.sweep("project/run/") == 0
    assert s3.ask("GET", "/bucket?uploads")[1].count(b"<UploadId>") == 1


@pytest.fixture
def gate(s3: S3Server) -> Iterator[Gate]:
    made = Gate(s3)
    yield made
    made.close()


def test_a_store_that_answers_503_is_waited_for(s3: S3Server, gate: Gate, s3_keys: None) -> None:
    store = Steady(open_objects(s3.url("steady", gate.endpoint)), patience_s=30)
    gate.error = (503, "SlowDown")
    threading.Timer(2.0, lambda: setattr(gate, "error", None)).start()
    began = time.monotonic()
    store.put("project/run/x", b"1")
    assert time.monotonic() - began > 1.5
    assert store.get("project/run/x") == b"1"


def test_patience_ends(s3: S3Server, gate: Gate, s3_keys: None) -> None:
    store = Steady(open_objects(s3.url("steady", gate.endpoint)), patience_s=2)
    gate.error = (503, "SlowDown")
    with pytest.raises(StoreAway, match="503"):
        store.put("project/run/x", b"1")


@pytest.mark.parametrize(
    ("status", "code", "words"),
    [
        (400, "ExpiredToken", "expired or wrong; renew them"),
        (403, "InvalidAccessKeyId", "expired or wrong; renew them"),
        (403, "RequestTimeTooSkewed", "the clock of this machine is wrong"),
        (403, "AccessDenied", "403|AccessDenied"),
        (404, "NoSuchBucket", "no such bucket"),
    ],
)
def test_what_will_not_pass_is_refused_at_once(
    s3: S3Server, gate: Gate, s3_keys: None, status: int, code: str, words: str
) -> None:
    store = Steady(open_objects(s3.url("steady", gate.endpoint)), patience_s=60)
    gate.error = (status, code)
    began = time.monotonic()
    with pytest.raises(StoreRefused, match=words) as refused:
        store.put("project/run/x", b"1")
    assert time.monotonic() - began < 5
    assert "SECRET-" not in str(refused.value)


def test_a_server_that_is_gone_is_away(tmp_path: Path, s3_keys: None) -> None:
    store = Steady(open_objects(f"s3://bucket?endpoint=http://127.0.0.1:{pods.free_port()}"), patience_s=1)
    with pytest.raises(StoreAway) as away:
        store.has("project/run/x")
    assert "SECRET-" not in str(away.value)


def test_an_address_with_a_secret_in_it_is_refused_unseen(tmp_path: Path) -> None:
    with pytest.raises(UsageFault) as refused:
        open_store("s3://KEY:SECRET-ccc@bucket/prefix", tmp_path)
    assert "SECRET" not in str(refused.value)


def test_missing_credentials_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UsageFault, match="no credentials"):
        open_store("s3://bucket/prefix", tmp_path)


def test_an_sftp_server_with_another_host_key_gets_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with pods.running(tmp_path / "host") as server:
        server.trust(tmp_path, "backup-host")
        pods.keygen(tmp_path / "other")
        other = (tmp_path / "other.pub").read_text()
        (tmp_path / ".ssh/known_hosts").write_text(f"[127.0.0.1]:{server.port} {other}")
        with pytest.raises(StoreRefused, match="host key"):
            open_store(sftp_url(server), tmp_path).put("project/run/x", b"1")
        assert not (server.folder / "store").exists()


def test_an_sftp_connection_that_broke_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with pods.running(tmp_path / "host") as server:
        server.trust(tmp_path, "backup-host")
        store = open_store(sftp_url(server), tmp_path)
        store.put("project/run/x", b"1")
        server.lose()
        threading.Timer(1.0, server.start).start()
        store.put("project/run/y", b"2")
        assert [o.key for o in store.list("project/run/")] == ["project/run/x", "project/run/y"]

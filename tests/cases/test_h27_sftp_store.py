"""H27: backups over sftp, with and without posix-rename: no reader ever finds one short, a cut leaves old or new."""

from __future__ import annotations

import threading
from pathlib import Path

import pods
import pytest
import rotating
from backing import make, manifest_of

from remote_runner import vault
from remote_runner.stores import open_store
from remote_runner.vault import Place

SERVER = Path("/usr/lib/openssh/sftp-server")


@pytest.mark.parametrize("options", [[], [f"Subsystem sftp {SERVER} -P posix-rename"]], ids=["usual", "plain-rename"])
def test_a_reader_while_backups_are_made_and_a_cut(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    if options and not SERVER.exists():
        pytest.skip("no sftp-server binary to deny an extension with")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pods.running(tmp_path / "host", options=options) as server:
        server.trust(tmp_path, "vault")
        over = Place(store=open_store(f"sftp://vault{server.folder}/kept", tmp_path), project="p", name="run", keep=3)
        behind = Place(store=open_store(str(server.folder / "kept"), tmp_path), project="p", name="run", keep=3)
        stop, bad, reads = threading.Event(), list[str](), list[int]()

        def read() -> None:
            while not stop.is_set():
                for manifest in vault.manifests(behind, bad.append):
                    short = vault.missing(behind, manifest)
                    if short and behind.store.has(behind.manifest(manifest["id"])) is not None:
                        bad.append(f"{manifest['id']}: {short}")
                    reads.append(1)

        reader = threading.Thread(target=read)
        reader.start()
        last = None
        for step in range(1, 16):
            rotating.save(root, "generator", step, size=20_000)
            last = make(root, over, last)
        stop.set()
        reader.join()
        assert not bad
        assert len(reads) > 15
        before = manifest_of(behind, last) if last else {}
        rotating.save(root, "generator", 16, size=2_000_000)
        threading.Timer(0.05, server.lose).start()
        threading.Timer(1.0, server.start).start()
        after = manifest_of(behind, make(root, over, last))  # tried again over a new connection
        assert (before["newest"]["step"], after["newest"]["step"]) == (15, 16)
        assert not any(vault.damaged(behind, m) for m in vault.manifests(behind))
        over.store.close()

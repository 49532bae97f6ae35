"""A replacement pod fetches the backup from the object store by itself; where it can't, this machine brings it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pods
import pytest
from projects import Project
from s3server import KEYS, SIGNED, Gate, S3Server

from remote_runner.checkpoint import header

LATEST = "artifacts/toy/toy-training.safetensors"


class Lost:
    """A run whose pods are gone; its last state is in an object store alone."""

    def __init__(self, project: Project, folder: Path, gate: Gate, url: str) -> None:
        self.project, self.folder, self.gate = project, folder, gate
        self.lives = self.step = 0
        with pods.running(folder / "first") as pod:
            self._live(pod, "--backup-to", url)

    def _live(self, pod: pods.TestPod, *words: str) -> str:
        """Train on from where it stands, for a few steps, to a failure; what the command said."""
        self.lives += 1
        config = self.project.config(steps=100_000, size=400_000, fail_at=self.step + 12)
        done = self.project.run(self.project.on(pod, config, *words))
        assert done.returncode == 1, done.stderr
        self.step = header.verify_digests(self.project.root / LATEST)["step"]
        for secret in ("SECRET-", SIGNED):
            assert secret not in done.stdout + done.stderr
            for path in [*pod.folder.rglob("*"), *self.project.root.rglob("*")]:
                assert not path.is_file() or secret.encode() not in path.read_bytes(), path
        log = (pod.root / "runs/toy-train.log").read_text()
        assert log.count("about to fail") == self.lives, "the log of the pods before came along"
        return done.stderr

    def resume(self, **setenv: str) -> str:
        """On one more pod, which is lost afterwards; what the command said."""
        for path in sorted((self.project.root / "artifacts").rglob("*"), reverse=True):
            path.unlink() if path.is_file() else path.rmdir()
        self.gate.seen.clear()
        before = self.step
        with pods.running(self.folder / f"life-{self.lives}", setenv=setenv) as pod:
            said = self._live(pod, "--resume")
        assert f"resuming from store: toy step {before}" in said
        assert self.step > before
        return said

    def fetched(self, *, signed: bool) -> int:
        """GETs of blobs, with a signed address or with a login."""
        return sum(
            (SIGNED in path) == signed for method, path, _ in self.gate.seen if method == "GET" and "/blobs/" in path
        )


@pytest.fixture(scope="module")
def one_run(tmp_path_factory: pytest.TempPathFactory, s3: S3Server) -> Iterator[Lost]:
    folder = tmp_path_factory.mktemp("lost")
    gate = Gate(s3)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**KEYS, "HOME": str(folder)}.items():
            patch.setenv(name, value)
        yield Lost(Project.create(folder / "project"), folder, gate, s3.url(folder.name, gate.endpoint))
    gate.close()


@pytest.fixture
def lost(one_run: Lost) -> Iterator[Lost]:
    yield one_run
    one_run.gate.signed_error = one_run.gate.spoil = None


def test_the_pod_fetches_by_itself_and_no_address_is_seen_anywhere(lost: Lost) -> None:
    with pods.command_lines_with(SIGNED.encode()) as seen:
        said = lost.resume()
    assert "the pod fetched" in said
    assert not seen
    assert lost.fetched(signed=True) >= 3
    kept = [p for m, p, _ in lost.gate.seen if m == "GET" and "/blobs/" in p and SIGNED not in p]
    assert len(kept) == len(set(kept)), "what this machine reads is what it has just stored, once"


def flipped(content: bytes) -> bytes:
    return content[:-1] + bytes([content[-1] ^ 1]) if content else content


@pytest.mark.parametrize(
    ("trouble", "words"),
    [
        ({"proxy": "http://127.0.0.1:1"}, "the pod does not reach the store"),
        ({"signed_error": (403, "AccessDenied")}, "the pod is refused by the store"),
        ({"spoil": flipped}, "the pod got other bytes than the backup names"),
    ],
)
def test_what_the_pod_can_not_fetch_comes_through_this_machine(lost: Lost, trouble: dict[str, Any], words: str) -> None:
    for name, value in trouble.items():
        setattr(lost.gate, name, value)
    said = lost.resume(**({"http_proxy": trouble["proxy"]} if "proxy" in trouble else {}))
    assert words in said
    assert "goes through this machine" in said
    assert "the pod fetched" not in said
    assert lost.fetched(signed=False) >= 3

"""H34: times of files on the pod lie two hours ahead or behind; nothing is decided by them."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pods import TestPod
from projects import Project

from remote_runner import vault
from remote_runner.checkpoint import header
from remote_runner.stores import open_store
from remote_runner.vault import Place


@pytest.mark.parametrize("off_s", [7200, -7200])
def test_the_same_decisions_as_with_equal_clocks(project: Project, pod: TestPod, off_s: int) -> None:
    config = project.config(steps=60, step_s=0.1, log_every=5)
    assert project.run(project.on(pod, config, "--max-hours", 4 / 3600)).returncode == 75
    place = Place(store=open_store("backups", project.root), project="project", name="toy", keep=100)
    first = vault.manifests(place)[-1]
    for path in (pod.root / "artifacts").rglob("*"):
        then = time.time() + off_s
        os.utime(path, (then, then))
    # nothing has changed but times: a backup brings nothing, a download fetches nothing
    done = project.run(project.at("backup", pod, "toy"))
    assert done.returncode == 0, done.stderr
    assert vault.manifests(place)[-1]["new_bytes"] == 0
    assert vault.manifests(place)[-1]["newest"] == first["newest"]
    done = project.run(project.at("download", pod, "toy"))
    assert done.returncode == 0, done.stderr
    assert " 0 of them fetched" in done.stdout, done.stdout
    # and the resume takes the pod's state, which is the furthest, whatever its times
    done = project.run(project.on(pod, config, "--resume"))
    assert done.returncode == 0, done.stderr
    assert f"resuming from pod: toy step {first['newest']['step']}" in done.stderr
    assert header.verify_digests(project.root / "artifacts/toy/toy-training.safetensors")["step"] == 60
    assert vault.manifests(place)[-1]["newest"]["step"] == 60


CLOCK = """
import time
_time, _time_ns, off_s = time.time, time.time_ns, {off_s}
time.time = lambda: _time() + off_s
time.time_ns = lambda: _time_ns() + off_s * 10**9
"""


@pytest.mark.parametrize("off_s", [7200, -7200])
def test_a_pod_whose_clock_is_two_hours_off(
    project: Project, make_pod: Callable[..., TestPod], tmp_path: Path, off_s: int
) -> None:
    """Its python gets another time; the files keep the real one, and so lie in its future or its past."""
    (tmp_path / "clock").mkdir()
    (tmp_path / "clock/sitecustomize.py").write_text(CLOCK.format(off_s=off_s))
    pod = make_pod(setenv={"PYTHONPATH": str(tmp_path / "clock")})
    config = project.config(steps=100_000, step_s=0.05)
    began_s = time.monotonic()
    done = project.run(project.on(pod, config, "--max-hours", 5 / 3600, "--backup-every", "1s"))
    assert done.returncode == 75, done.stderr
    assert project.report()["cause"] == "deadline"
    assert time.monotonic() - began_s < 40
    assert done.stderr.count("s off this one") == 1
    assert f"the pod's clock is {off_s:+d} s off this one" in done.stderr.replace("+7199", "+7200")
    place = Place(store=open_store("backups", project.root), project="project", name="toy", keep=100)
    found = vault.manifests(place)
    assert len(found) >= 3, "copies came when they were due"
    assert found[-1]["newest"]["root"] == header.describe(project.root / LATEST)["root"]
    risk = json.loads(project.run(project.at("status", pod, "toy", "--json")).stdout)["risk"]
    assert 0 <= risk["since_s"] < 60
    events = [json.loads(line) for line in (project.root / "runs/toy-events.jsonl").read_text().splitlines()]
    assert all(re.search(r"(Z|[+-]\d\d:?\d\d)$", e["at"]) for e in events), "times carry their offset from UTC"


LATEST = "artifacts/toy/toy-training.safetensors"


def test_a_store_whose_clock_is_an_hour_off_prunes_nobody_alive(tmp_path: Path) -> None:
    """Ages are differences of the store's own times: what this machine's clock says is never compared with them."""
    from remote_runner import retention

    place = Place(store=open_store("kept", tmp_path), project="project", name="toy", keep=1)
    other = retention.Mark(place, "writing")
    real = place.store.list
    for skew_s in (3600.0, -3600.0):
        skewed = [type(o)(o.key, o.size, o.modified_unix_s + skew_s) for o in real(place.top)]
        assert {o.key for o in skewed} == {other.key}
        place.store.list = lambda prefix, skew_s=skew_s: [  # type: ignore[method-assign,misc]
            type(o)(o.key, o.size, o.modified_unix_s + skew_s) for o in real(prefix)
        ]
        assert retention.prune(place) is None

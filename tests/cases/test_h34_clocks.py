"""H34: the pod's clock, or times of its files, lie two hours ahead or behind; nothing is decided by them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
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


# what the programs of a pod take for the time; its files keep the kernel's, so the two disagree as well
OFF = """
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static long off(void) { const char *s = getenv("CLOCK_IS_OFF_S"); return s ? atol(s) : 0; }
int clock_gettime(clockid_t which, struct timespec *t) {
    int failed = syscall(SYS_clock_gettime, which, t);
    if (!failed && which == CLOCK_REALTIME) t->tv_sec += off();
    return failed;
}
time_t time(time_t *t) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (t) *t = now.tv_sec;
    return now.tv_sec;
}
"""


@pytest.mark.skipif(not shutil.which("gcc"), reason="needs gcc: the clock is set by a library of ours")
@pytest.mark.parametrize("off_s", [7200, -7200])
def test_a_pod_whose_clock_is_off(
    project: Project, make_pod: Callable[..., TestPod], tmp_path: Path, off_s: int
) -> None:
    (tmp_path / "off.c").write_text(OFF)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", tmp_path / "off.so", tmp_path / "off.c"], check=True)
    pod = make_pod(setenv={"LD_PRELOAD": str(tmp_path / "off.so"), "CLOCK_IS_OFF_S": str(off_s)})
    config = project.config(steps=120, step_s=0.1)
    limit_s = 9
    first = project.run(project.on(pod, config, "--max-hours", limit_s / 3600, "--backup-every", "1s"))
    assert first.returncode == 75, first.stderr
    (said,) = re.findall(r"the pod's clock is ([+-]\d+) s off this one", first.stderr)  # once
    assert abs(int(said) - off_s) < 5
    report = project.report()
    assert report["cause"] == "deadline"
    assert int(str(report["backups"])) >= 2  # due by this machine's clock, while it went on
    log = (project.root / "runs/toy-train.log").read_text()
    began = re.search(r"\[remote-run\] (\S+)\+00:00 segment 1", log)
    assert began is not None
    there_s = time.mktime(time.strptime(began.group(1), "%Y-%m-%dT%H:%M:%S")) - time.timezone - time.time()
    assert abs(there_s - off_s) < 60  # the log's times are the pod's, and say their offset from UTC
    assert re.search(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[+-]\d{4} started", first.stderr, re.MULTILINE)
    taken_s = int(str(report["last_durable"][0]["step"])) * 0.1  # type: ignore[index]
    assert 0 < taken_s < limit_s  # its limit was there to train in, and no more
    seen = project.run(project.at("status", pod, "toy"))
    assert "ended: deadline" in seen.stdout
    assert re.search(r"toy step \d+/120, .*, 0:\d\d ago", seen.stdout), seen.stdout
    risk = json.loads(project.run(project.at("status", pod, "toy", "--json")).stdout)["risk"]
    assert 0 <= risk["since_s"] < 60
    events = [json.loads(line) for line in (project.root / "runs/toy-events.jsonl").read_text().splitlines()]
    assert all(re.search(r"(Z|[+-]\d\d:?\d\d)$", e["at"]) for e in events), "times carry their offset from UTC"
    done = project.run(project.on(pod, config, "--resume"))
    assert done.returncode == 0, done.stderr
    assert header.verify_digests(project.root / "artifacts/toy/toy-training.safetensors")["step"] == 120


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

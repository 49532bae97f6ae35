"""The pod's own end: against a real local server that speaks as the providers' APIs do."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from pods import TestPod, wait_for
from projects import Project

from remote_runner.pod import ends, owner


@dataclass
class Provider:
    """What the server was asked; the first `fail` requests are answered with 500."""

    port: int = 0
    fail: int = 0
    refuse: int = 0  # so many more are answered with 200 and a no
    asked: list[tuple[str, str, dict[str, Any], str]] = field(default_factory=list)


def said(path: str, body: dict[str, Any], refuse: bool) -> dict[str, Any]:
    """The documented answers: a GraphQL object (`podTerminate` has no value), or Vast's `success`."""
    if path != "/graphql":
        return {"success": False, "error": "busy", "msg": "try later"} if refuse else {"success": True}
    if refuse:
        return {"errors": [{"message": "try later"}], "data": None}
    stopped = {"podStop": {"id": "p1", "desiredStatus": "EXITED"}} if "podStop" in body["query"] else None
    return {"data": stopped or {"podTerminate": None}}


@pytest.fixture
def provider() -> Iterator[Provider]:
    told = Provider()

    class Handler(http.server.BaseHTTPRequestHandler):
        def answer(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
            told.asked.append((self.command, self.path, body, str(self.headers.get("Authorization"))))
            failing = len(told.asked) <= told.fail
            content = json.dumps(said(self.path, body, told.refuse > 0 and not failing)).encode()
            told.refuse -= not failing
            self.send_response(500 if failing else 200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_PUT = do_DELETE = answer  # noqa: N815 - the names are the library's

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    told.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield told
    server.shutdown()
    thread.join()
    server.server_close()


def runpod(provider: Provider) -> dict[str, str]:
    return {"RUNPOD_POD_ID": "p1", "RUNPOD_API_KEY": "key-1", "RUNPOD_API_URL": f"http://127.0.0.1:{provider.port}"}


def vast(provider: Provider) -> dict[str, str]:
    return {"CONTAINER_ID": "77", "CONTAINER_API_KEY": "key-2", "VAST_URL": f"http://127.0.0.1:{provider.port}"}


def pod_end(pod: TestPod) -> dict[str, Any]:
    found = json.loads((pod.root / "runs/toy-status.json").read_text()).get("pod_end") or {}
    return dict(found)


def test_after_a_verified_download_it_ends_itself(
    project: Project, make_pod: Callable[..., TestPod], provider: Provider
) -> None:
    provider.fail = provider.refuse = 1  # it asks again until the API says yes
    pod = make_pod(setenv=runpod(provider))
    done = project.run(project.on(pod, project.config(), "--on-success", "terminate"))
    assert done.returncode == 0, done.stderr
    assert done.stderr.strip().splitlines()[-1].endswith("will terminate itself now, through runpod")
    wait_for(lambda: pod_end(pod).get("state") == "done", "the API said yes", 20)
    assert [(method, path, key) for method, path, _b, key in provider.asked] == [
        ("POST", "/graphql", "Bearer key-1")
    ] * 3
    assert 'podTerminate(input: {podId: "p1"})' in provider.asked[-1][2]["query"]
    assert pod_end(pod)["tries"] == 3


def test_a_failure_stops_where_the_disk_outlives_it(
    project: Project, make_pod: Callable[..., TestPod], provider: Provider
) -> None:
    """Nobody has the results: it waits its time, and then stops although terminate was asked for."""
    pod = make_pod(setenv=vast(provider))
    words = ["--on-failure", "terminate", "--stop-after", "2s", "--detach"]
    assert project.run(project.on(pod, project.config(fail_at=3), *words)).returncode == 0
    wait_for(lambda: pod_end(pod).get("state") == "done", "the API said yes", 30)
    assert provider.asked == [("PUT", "/api/v0/instances/77/", {"state": "stopped"}, "Bearer key-2")]
    seen = project.run(project.at("status", pod, "toy"))
    assert "the pod: stop done" in seen.stdout


def test_a_new_run_cancels_the_end(project: Project, make_pod: Callable[..., TestPod], provider: Provider) -> None:
    pod = make_pod(setenv=vast(provider))
    config = project.config(fail_at=12)
    words = ["--on-failure", "stop", "--stop-after", "10s", "--detach"]
    assert project.run(project.on(pod, config, *words)).returncode == 0
    status = pod.root / "runs/toy-status.json"
    wait_for(lambda: json.loads(status.read_text())["exit"], "the failure")
    project.config(steps=20, step_s=1.0)
    again = project.run(project.on(pod, config, "--resume", "--abandon", pod.address))
    assert again.returncode == 0, again.stderr
    assert provider.asked == []


def test_without_a_key_it_says_so(project: Project, pod: TestPod) -> None:
    done = project.run(project.on(pod, project.config(), "--on-success", "stop", "--price", "0.5"))
    assert done.returncode == 0, done.stderr
    assert "can't stop itself, no provider's key is on it" in done.stderr.strip().splitlines()[-1]
    assert "no provider's key is on the pod: it can't stop itself" in done.stderr  # said at the start already
    wait_for(lambda: pod_end(pod), "the pod's word", 20)
    assert pod_end(pod)["action"] == "keep"
    assert pod_end(pod)["costs_usd_a_day"] == 12.0


@pytest.mark.parametrize(
    ("cause", "action"),
    [("done", "terminate"), ("failed", "stop"), ("deadline", "stop"), ("killed", "stop"), ("paused", "keep")],
)
def test_what_is_wanted(cause: str, action: str) -> None:
    assert ends.wanted({"on_success": "terminate", "on_failure": "stop"}, cause) == action
    assert ends.wanted({}, cause) == "keep"


@pytest.mark.parametrize(
    ("action", "home", "outlives", "done"),
    [
        ("terminate", True, False, "terminate"),
        ("stop", True, False, "stop"),
        ("terminate", False, True, "stop"),
        ("terminate", False, False, "keep"),
        ("stop", False, True, "stop"),
        ("stop", False, False, "keep"),
        ("keep", True, True, "keep"),
    ],
)
def test_nothing_ends_that_nobody_has(action: str, home: bool, outlives: bool, done: str) -> None:
    assert ends.decide(action, home, outlives)[0] == done


def test_where_a_stop_keeps_the_files() -> None:
    assert ends.outlives_a_stop("/workspace/x", "runpod", "xfs")
    assert not ends.outlives_a_stop("/root/x", "runpod", "overlay")
    assert ends.outlives_a_stop("/root/x", "vast", "overlay")


def test_keys_that_name_no_machine_are_not_used() -> None:
    assert owner.find({"RUNPOD_POD_ID": 'x"}){id}', "RUNPOD_API_KEY": "k"}) is None
    assert owner.find({"RUNPOD_POD_ID": "x"}) is None
    found = owner.find({"CONTAINER_ID": "12", "CONTAINER_API_KEY": "k"})
    assert found is not None
    assert (found.kind, found.url) == ("vast", "https://console.vast.ai")

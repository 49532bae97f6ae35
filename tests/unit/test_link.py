"""A link that comes back: how long a lost pod is looked for, and what is kept of its login."""

from __future__ import annotations

import time
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from remote_runner import link, ssh
from remote_runner.access import Access
from remote_runner.errors import OutOfContact
from remote_runner.hostkeys import Policy
from remote_runner.program import LinkLost


class Lost:
    """A program whose link breaks so often before it answers."""

    def __init__(self, breaks: int) -> None:
        self.breaks, self.tries = breaks, 0

    def action(self, _agent: Any) -> str:
        self.tries += 1
        if self.tries <= self.breaks:
            raise LinkLost("cut")
        return "answer"


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> link.Link:
    monkeypatch.setattr(link, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(link.tenacity, "wait_exponential_jitter", lambda **_: link.tenacity.wait_fixed(0.05))
    where = ssh.Endpoint(host="pod", port=22, user="root", policy=Policy(own_file=tmp_path / "k"))
    found = link.Link(where, PurePosixPath("/root"), lambda _: None)
    monkeypatch.setattr(found, "agent", lambda: None)
    return found


def test_the_patience_is_counted_from_the_loss(made: link.Link, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "HELD_S", 0.2)
    lost, moments = Lost(3), list[float]()
    began = time.time()

    def action(agent: Any) -> str:
        if lost.tries == 0:
            time.sleep(0.5)  # it was well for longer than the patience, and then the link broke
        return lost.action(agent)

    def give_up_at(lost_at: float) -> float:
        moments.append(lost_at)
        return lost_at + 0.4

    assert made.use(action, give_up_at) == "answer"
    assert len(set(moments)) == 1
    assert moments[0] >= began + 0.5


def test_a_pod_that_stays_away_is_given_up(made: link.Link) -> None:
    began = time.time()
    with pytest.raises(OutOfContact):
        made.use(Lost(10**6).action, lambda lost_at: lost_at + 0.3)
    assert 0.3 <= time.time() - began < 5


def test_a_key_that_was_said_once_stays_known(tmp_path: Path) -> None:
    (tmp_path / ".remote-run").mkdir()
    key = tmp_path / "id"
    key.write_text("")
    Access(target="1.2.3.4:22", identity=key).remember(tmp_path)
    Access(target="root@1.2.3.4:22").remember(tmp_path)
    Access(target="1.2.3.4:22", user="somebody").remember(tmp_path)
    found = Access(target="1.2.3.4:22").endpoint(tmp_path)
    assert (found.identities, found.user) == ([key], "somebody")

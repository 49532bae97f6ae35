"""Options are judged before anything is connected, in the words of who types them."""

from __future__ import annotations

import click
import pytest

from remote_runner.cli.base import HostKey, Hours, RemoteDir

FINGERPRINT = "SHA256:" + "a1B+/" * 8 + "xyz"


@pytest.mark.parametrize(("text", "hours"), [("12", 12), ("0.5", 0.5), ("90m", 1.5), ("2h", 2), ("1d", 24), (3.0, 3)])
def test_hours_may_carry_a_unit(text: object, hours: float) -> None:
    assert Hours().convert(text, None, None) == hours


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "2x", "h", "0m", "1e9", ""])
def test_what_is_no_time_is_refused_with_examples(text: str) -> None:
    with pytest.raises(click.BadParameter, match=r"write 12, .* or 2h"):
        Hours().convert(text, None, None)


def test_a_fingerprint_is_one() -> None:
    assert HostKey().convert(FINGERPRINT, None, None) == FINGERPRINT
    assert HostKey().convert("", None, None) == ""
    for wrong, says in (
        ("SHA256:abc", "43 letters"),
        (":".join(["0f"] * 16), "the old MD5 form"),
        ("yes", "no SHA-256"),
    ):
        with pytest.raises(click.BadParameter, match=says):
            HostKey().convert(wrong, None, None)


def test_a_folder_there_is_absolute_or_of_the_home() -> None:
    assert RemoteDir().convert("/workspace/x", None, None) == "/workspace/x"
    assert RemoteDir().convert("~/x", None, None) == "~/x"
    with pytest.raises(click.BadParameter, match="write /workspace/runs or ~/runs"):
        RemoteDir().convert("runs", None, None)

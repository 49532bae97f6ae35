"""The crontab's line and the launchd agent, as text."""

from __future__ import annotations

import plistlib
import shlex
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote_runner import cron, launchd, standing
from remote_runner.errors import UsageFault
from remote_runner.standing import Standing


def test_the_line_names_the_run_and_absolute_paths_alone() -> None:
    line = cron.line("exp12", "*/15 * * * *")
    assert line.startswith("*/15 * * * * ")
    assert line.endswith("# remote-run backup exp12")
    command = line.removeprefix("*/15 * * * * ").partition(" >>")[0]
    assert shlex.split(command) == [sys.executable, "-m", "remote_runner.cli", "backup", "exp12"]
    assert Path(shlex.split(line.partition(" >>")[2])[0]).is_absolute()


def test_a_percent_sign_is_no_end_of_line_to_cron() -> None:
    assert "50\\%" in cron.line("50%", "@hourly")


@pytest.mark.parametrize("schedule", ["", "* * * *", "*/15 * * * * rm", "a b c d e", "* * * * *\n* * * * * evil", "@"])
def test_what_is_no_schedule_is_refused(schedule: str) -> None:
    with pytest.raises(UsageFault, match="no schedule"):
        cron.line("run", schedule)


@given(
    others=st.lists(st.text(st.characters(blacklist_characters="\n\r", blacklist_categories=["Cs", "Zl", "Zp", "Cc"]))),
    end=st.sampled_from(["", "\n"]),
)
def test_what_else_stands_in_the_crontab_stays(others: list[str], end: str) -> None:
    others = [o for o in others if "# remote-run backup" not in o]
    before = "\n".join(others) + (end if others else "")
    wanted = cron.line("exp12", "*/15 * * * *")
    once = cron.with_line(before, "exp12", wanted)
    assert cron.with_line(once, "exp12", wanted) == once, "installing twice is installing once"
    assert once.splitlines().count(wanted) == 1
    assert cron.without_line(once, "exp12").rstrip("\n") == before.rstrip("\n")


def test_a_run_whose_name_begins_alike_keeps_its_line() -> None:
    long = cron.line("exp12-large", "*/5 * * * *")
    both = cron.with_line(long + "\n", "exp12", cron.line("exp12", "*/15 * * * *"))
    assert cron.without_line(both, "exp12") == long + "\n"


def test_the_agent_runs_the_same_command_at_the_interval() -> None:
    found = plistlib.loads(launchd.plist("exp12", launchd.every_s("*/15 * * * *")))
    assert found["StartInterval"] == 900
    assert found["ProgramArguments"] == cron.argv("exp12")
    with pytest.raises(UsageFault, match="every N minutes"):
        launchd.every_s("3 * * * *")


@pytest.mark.parametrize("folder", launchd.KEPT_FOLDERS)
def test_folders_that_macos_keeps_from_background_jobs_are_refused(folder: str, tmp_path: Path) -> None:
    one = Standing(
        name="x", project="p", target="h:1", pod_root="/r", outputs=["a"], keep=1, store=f"{tmp_path}/{folder}/kept"
    )
    with pytest.raises(UsageFault, match="macOS keeps from background jobs"):
        launchd.refuse_kept_folders(one, tmp_path)


def test_a_standing_order_survives_and_unknown_keys_do_not_harm_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    one = Standing(name="x", project="p", target="h:1", pod_root="/r", outputs=["a"], keep=1, store="/kept")
    standing.save(one)
    path = standing.folder() / "x.json"
    path.write_text(path.read_text().replace("{", '{"later": 1,', 1))
    assert standing.load("x") == one
    assert standing.load("y") is None

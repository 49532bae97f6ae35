"""The tool's own settings: keys, their near ones, presets, what follows from a command."""

from __future__ import annotations

from pathlib import Path

import pytest

from remote_runner import settings
from remote_runner.errors import UsageFault
from remote_runner.pod import foreign
from remote_runner.settings_keys import NCM_MATCH, program


def load(folder: Path, text: str, name: str = "exp1") -> settings.Settings:
    (folder / "remote-run.toml").write_text(text)
    return settings.load(folder, name)


def test_a_foreign_command_needs_nothing_else(tmp_path: Path) -> None:
    found = load(tmp_path, 'command = "python train.py --config {config}"\n')
    assert found.command == ["python", "train.py", "--config", "{config}"]
    assert (found.pause, found.resume_args, found.outputs) == ("none", None, ["artifacts/exp1"])
    assert found.patterns == [NCM_MATCH, "train.py"]
    assert found.rules == list(foreign.PRESETS.values())


def test_a_trainer_that_keeps_the_contract_has_snapshots_of_its_own_alone(tmp_path: Path) -> None:
    assert load(tmp_path, 'command = "python train.py"\npause = "contract"\n').rules == []


def test_presets_and_tables_of_snapshots(tmp_path: Path) -> None:
    found = load(
        tmp_path,
        'command = "python train.py"\n'
        'snapshots = ["hf", { glob = "out/{name}/step*.npz", step_regex = "step([0-9]+)" }]\n',
    )
    assert [r["glob"] for r in found.rules] == [["**/checkpoint-*"], ["out/exp1/step*.npz"]]
    assert load(tmp_path, 'command = "x"\nsnapshots = "lightning"\n').rules == [foreign.PRESETS["lightning"]]


@pytest.mark.parametrize(
    ("line", "says", "fix"),
    [
        ('pauze = "none"', "pauze", "did you mean 'pause'?"),
        ('pause = "SIGTREM"', "'SIGTREM' is no way to pause", "docs/settings.md"),
        ('snapshots = ["lightening"]', "no such preset: 'lightening'", "docs/settings.md"),
        ('snapshots = [{ glob = "x", step_regx = "y" }]', "step_regx", "did you mean 'step_regex'?"),
        ('backup = { evry = "5m" }', "evry", "did you mean 'every'?"),
        ('done_file = "../done"', "../done", "inside the project"),
        ("outputs = []", "outputs", "docs/settings.md"),
    ],
)
def test_mistakes_are_named_with_the_way_out(tmp_path: Path, line: str, says: str, fix: str) -> None:
    with pytest.raises(UsageFault) as refused:
        load(tmp_path, f'command = "x"\n{line}\n')
    assert says in str(refused.value)
    assert fix in refused.value.fix


def test_later_tables_override_earlier_ones_and_name_themselves(tmp_path: Path) -> None:
    text = 'command = "a"\n[runs."exp*"]\ncommand = "b"\n[runs."exp1"]\npause = "SIGTERM"\n'
    found = load(tmp_path, text)
    assert (found.command, found.pause) == (["b"], "SIGTERM")
    with pytest.raises(UsageFault, match=r'runs\."exp1"\.comand'):
        load(tmp_path, text + 'comand = "c"\n')


@pytest.mark.parametrize(
    ("command", "pattern"),
    [
        (["python", "src/train.py", "-c", "x"], "train.py"),
        (["python", "-u", "-m", "pkg.train", "x"], "-m pkg.train"),
        (["torchrun", "--nproc-per-node", "2", "train.py"], "train.py"),
        (["python", "-m", "torch.distributed.run", "train.py"], "train.py"),
        (["accelerate", "launch", "run_clm.py"], "run_clm.py"),
        (["bash", "run.sh"], "run.sh"),
        (["bash", "{config}"], ""),
        (["my-trainer", "x"], ""),
    ],
)
def test_the_guard_looks_for_what_a_command_runs(command: list[str], pattern: str) -> None:
    assert program(command) == pattern

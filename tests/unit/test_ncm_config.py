"""A config is found good or bad before anything is loaded, in two lines that name the key and the way out."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from ncm_mlx import config

from remote_runner.checkpoint.config import ConfigError

CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("sudoku-*.json"))
SMOKE = next(path for path in CONFIGS if path.stem == "sudoku-smoke").read_text()


@pytest.fixture
def written(tmp_path):
    def write(text: str | bytes) -> Path:
        path = tmp_path / "sudoku-smoke.json"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def having(**values):
    return json.dumps({**json.loads(SMOKE), **values}, indent=1)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_the_shipped_configs_are_good(path):
    assert config.read(path).folder == Path("artifacts") / path.stem


def test_the_recovery_config_is_the_e17_run_but_for_its_place_and_cadence():
    texts = {path.stem: json.loads(path.read_text()) for path in CONFIGS}
    whole, recovery = texts["sudoku-e17"], texts["sudoku-e17-recovery"]
    for key in ("seed", "data", "generator"):
        assert whole[key] == recovery[key]
    assert recovery["codec"].pop("source") == whole["out_dir"] and whole["codec"] == recovery["codec"]
    assert (whole["generator"]["steps"], whole["train"]["log_every"]) == (32000, 100)


BAD = {
    "typo": (having(seedd=1), "unknown key 'seedd'", "did you mean 'seed'?"),
    "typo in a section": (having(train={"log_evry": 1}), "unknown key 'train.log_evry'", "'log_every'"),
    "twice": (SMOKE.rstrip()[:-1].rstrip() + ',\n "seed": 9\n}', "key 'seed' stands twice", "keep one"),
    "text": (having(seed="7"), "'seed' is text ('7')", "correct"),
    "true": (having(seed=True), "'seed' is true", "correct"),
    "half": (having(seed=7.5), "'seed' is a number", "correct"),
    "comma": (SMOKE.rstrip()[:-1].rstrip() + ",\n}\n", "line 41 column 1", "trailing commas"),
    "comment": ("// my run\n" + SMOKE, "line 1 column 1", "comments"),
    "nan": (SMOKE.replace("7", "NaN", 1), "NaN is no number", "finite"),
    "big": (SMOKE.replace("7", "1e999", 1), "'seed' is a number", "correct"),
    "cut": (SMOKE[: len(SMOKE) // 2], "not JSON", "JSON"),
    "empty": ("", "the file is empty", "JSON"),
    "list": (f"[{SMOKE}]", "a list where an object", "begin it with {"),
    "bom": (b"\xef\xbb\xbf" + SMOKE.encode(), "byte order mark", "UTF-8"),
    "latin-1": (SMOKE.replace("7", '"\xe4"', 1).encode("latin-1"), "not UTF-8", "UTF-8"),
    "missing": (having().replace('"seed": 7,', ""), "key 'seed' is missing", "add 'seed'"),
    "out_dir": (having(out_dir="artifacts/other"), "out_dir is 'artifacts/other'", "'artifacts/sudoku-smoke'"),
    "section": (having(data=3), "'data' is a whole number, not an object", "{"),
    "range": (having(train={"log_every": 0, "evaluate_every": 0}), "'train.log_every' is 0", "correct"),
    "null": (having(seed=None), "'seed' is null", "correct"),
    "deep": ('{"a":' * 5000, "", ""),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_config_is_refused_with_the_place_and_the_fix(name, written):
    text, said, fix = BAD[name]
    with pytest.raises(ConfigError) as wrong:
        config.read(written(text))
    assert said in str(wrong.value) and "sudoku-smoke.json" in str(wrong.value)
    assert fix in wrong.value.fix and "\n" not in str(wrong.value) + wrong.value.fix


def test_check_says_it_in_two_lines_without_mlx(written):
    program = (
        "import sys; from ncm_mlx import cli; code = cli.main(['check', sys.argv[1]]); assert 'mlx' not in sys.modules;"
    )
    program += "assert 'numpy' not in sys.modules; sys.exit(code)"

    def check(path):
        return subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True)

    good = check(written(SMOKE))
    assert (good.returncode, good.stderr) == (0, "")
    bad = check(written(having(seedd=1)))
    lines = bad.stderr.splitlines()
    assert bad.returncode == 78 and bad.stdout == "" and len(lines) == 2
    assert lines[0].startswith("error: ") and lines[1].startswith("fix: ")
    missing = check(Path("nowhere.json"))
    assert missing.returncode == 78 and "nowhere.json: No such file" in missing.stderr


@pytest.mark.parametrize("value", ["0", "-3", "1.5", "many", "nan", "9" * 40])
def test_a_bad_step_budget_is_refused(value, written, monkeypatch):
    monkeypatch.setenv(config.STEPS_VARIABLE, value)
    with pytest.raises(ConfigError, match=config.STEPS_VARIABLE):
        config.read(written(SMOKE))


def test_log_cadence_places_and_limits_are_no_identity(written):
    one = config.read(written(SMOKE))
    other = config.read(written(having(train={"log_every": 3, "evaluate_every": 100, "compile": True})))
    assert config.identity(one, "codec", 5, "d", "") == config.identity(other, "codec", 5, "d", "")
    cadence = config.read(written(having(train={"log_every": 20, "evaluate_every": 50})))
    assert config.identity(one, "codec", 5, "d", "") != config.identity(cadence, "codec", 5, "d", "")

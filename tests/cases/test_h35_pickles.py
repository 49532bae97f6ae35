"""H35: a file that holds a call is refused by the name of the call, whatever it says it is, and nothing runs."""

from hostile_pickles import hostile

from remote_runner import verify


def test_verify_names_the_code_and_runs_none(tmp_path, monkeypatch):
    called = hostile(tmp_path)
    monkeypatch.chdir(tmp_path)
    for name, function in called.items():
        found = verify.verify_file(tmp_path / name)
        assert not found.good
        assert f"contains code: {function}" in found.problem
    assert not (tmp_path / "MARK").exists()

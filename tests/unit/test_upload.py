"""Which files travel, how large they may be, and what an upload may touch on the pod."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remote_runner import code_files, plan
from remote_runner.errors import UsageFault
from remote_runner.pod import fileops, files, layout
from remote_runner.pod.session import Refusal, Session


def git(folder: Path, *words: str) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@localhost", "-c", "protocol.file.allow=always"]
    subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True)


def project(folder: Path, settings_text: str = "") -> Path:
    root = folder / "project"
    (root / "configs").mkdir(parents=True)
    (root / "remote-run.toml").write_text('command = "python train.py"\n' + settings_text)
    (root / "train.py").write_text("print(1)\n")
    (root / "configs/a.json").write_text("{}")
    (root / ".gitignore").write_text("data/\n*.bin\nruns/\n.remote-run/\n")
    git(root, "init", "-q")
    return root


def planned(root: Path) -> plan.Plan:
    return plan.make(root / "configs/a.json", None, plan.Options(fresh=True))


def sent(root: Path) -> list[str]:
    return [f.path for f in code_files.find(planned(root)).files]


BASE = [".gitignore", "configs/a.json", "remote-run.toml", "train.py"]


def test_git_decides_and_include_and_exclude_change_it(tmp_path: Path) -> None:
    root = project(tmp_path, 'include = ["data/vocab*", "extra.bin"]\nexclude = ["notebooks", "*.md"]\n')
    for name in ("data/vocab.txt", "data/large.txt", "extra.bin", "notebooks/a.ipynb", "README.md", "src/x.py", ".env"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text("x")
    assert sent(root) == sorted([*BASE, "data/vocab.txt", "extra.bin", "src/x.py"])


def test_submodules_are_entered_and_a_sibling_lies_under_its_own_path(tmp_path: Path) -> None:
    library, sibling = tmp_path / "library", tmp_path / "mylib"
    for folder in (library, sibling):
        folder.mkdir()
        (folder / "code.py").write_text("y")
        (folder / "made.bin").write_text("y")
        (folder / ".gitignore").write_text("*.bin\n")
        git(folder, "init", "-q")
        git(folder, "add", ".")
        git(folder, "commit", "-qm", "first")
    root = project(tmp_path, 'include = ["../mylib", { path = "../mylib", to = "libs/other" }]\n')
    git(root, "submodule", "add", "-q", str(library), "vendor/library")
    own = ["vendor/library/.gitignore", "vendor/library/code.py", ".gitmodules"]
    mapped = [f"{to}/{name}" for to in ("mylib", "libs/other") for name in (".gitignore", "code.py")]
    assert sent(root) == sorted([*BASE, *own, *mapped])
    shutil.rmtree(root / "vendor/library")
    (root / "vendor/library").mkdir()
    found = code_files.find(planned(root))
    assert "vendor/library/code.py" not in [f.path for f in found.files]
    assert any("vendor/library (a submodule that is not checked out" in s for s in found.skipped)


def test_an_include_that_names_nothing_is_an_error(tmp_path: Path) -> None:
    for include in ("nothing*", "../nowhere"):
        with pytest.raises(UsageFault, match="include"):
            sent(project(tmp_path / include.strip("./*"), f'include = ["{include}"]\n'))


def test_data_and_outputs_never_travel_and_may_not_overlap(tmp_path: Path) -> None:
    root = project(tmp_path, 'data = [{ path = "corpus" }]\noutputs = ["out"]\n')
    for name in ("corpus/a", "out/b", "corpus2/c"):
        (root / name).parent.mkdir()
        (root / name).write_text("x")
    assert sent(root) == sorted([*BASE, "corpus2/c"])
    (root / "remote-run.toml").write_text('command = "x"\noutputs = ["out"]\ndata = [{ path = "out/corpus" }]\n')
    with pytest.raises(UsageFault, match="lie in each other"):
        planned(root)


def sparse(path: Path, size: int) -> None:
    with path.open("wb") as f:
        f.truncate(size)


def test_much_is_not_sent_unasked(tmp_path: Path) -> None:
    root = project(tmp_path)
    for n in range(12):
        sparse(root / f"part{n:02d}.dat", (n + 1) * 7_000_000)
    with pytest.raises(UsageFault, match="546 MB in 15 files would be sent, 0 of them above") as refused:
        code_files.guard_size(code_files.find(planned(root)), 2e6, 3.0)
    message = str(refused.value)
    assert "part11.dat" in message
    assert "part01.dat" not in message  # the ten largest
    assert "about 4:33 at 2.0 MB/s (as the last one), 0.23 USD" in message
    (root / "remote-run.toml").write_text('command = "x"\ninclude = ["part11.dat"]\n')
    code_files.guard_size(code_files.find(planned(root)), None, None)
    sparse(root / "one.dat", 100_000_001)
    with pytest.raises(UsageFault, match=r"1 of them above 100 MB; about .*: none was measured yet"):
        code_files.guard_size(code_files.find(planned(root)), None, None)


# --- the pod's side: properties over random trees ------------------------------------------------

NAMES = st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=3).map("/".join)
TREES = st.dictionaries(NAMES, st.sampled_from(["one", "two"]), max_size=6).filter(
    lambda tree: not any(other.startswith(path + "/") for path in tree for other in tree)
)


class Quiet:
    """A connection that nothing goes over."""

    def send(self, *_: Any) -> None:
        return


def upload_to(root: Path, tree: dict[str, str]) -> dict[str, Any]:
    """What the controller does with the two requests, on the pod's disk."""
    session = Session(str(root), Quiet())  # type: ignore[arg-type]
    want = {path: hashlib.sha256(text.encode()).hexdigest() for path, text in tree.items()}
    need = fileops.code(session, {"files": want, "done": False})["need"]
    for path in need:
        files.replace(str(root), path, lambda fd, p=path: files.write_all(fd, tree[p].encode()))  # type: ignore[misc]
    return fileops.code(session, {"files": want, "done": True})


def on_disk(root: Path) -> dict[str, str]:
    return {
        p.relative_to(root).as_posix(): p.read_text()
        for p in root.rglob("*")
        if p.is_file() and not p.is_symlink() and layout.OWN not in p.parts
    }


@settings(max_examples=60, deadline=None)
@given(first=TREES, second=TREES, strange=TREES)
def test_what_was_sent_and_is_gone_goes_and_nothing_else_does(
    tmp_path_factory: pytest.TempPathFactory, first: dict[str, str], second: dict[str, str], strange: dict[str, str]
) -> None:
    root = tmp_path_factory.mktemp("pod")
    (root / layout.OWN).mkdir()
    upload_to(root, first)
    assert on_disk(root) == first
    outside = root.parent / f"{root.name}-outside"
    outside.write_text("precious")
    taken = [*first, *second]
    strange = {
        path: text
        for path, text in strange.items()
        if not any(p == path or p.startswith(path + "/") or path.startswith(p + "/") for p in taken)
    }
    for path, text in strange.items():  # what a run or a user made there
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    link = next((p for p in first if p not in second), None)
    if link is not None:  # a file of ours that somebody replaced by a link
        (root / link).unlink()
        (root / link).symlink_to(outside)
    try:
        upload_to(root, second)
    except (OSError, Refusal):
        return  # a file stands where a folder must be: refused, and then nothing below may have been lost
    finally:
        assert outside.read_text() == "precious"
        assert strange.items() <= on_disk(root).items()
        if link is not None:
            assert (root / link).is_symlink()
    assert on_disk(root) == {**second, **strange}


def test_a_strange_file_in_the_way_is_refused_and_stays(tmp_path: Path) -> None:
    (tmp_path / layout.OWN).mkdir()
    upload_to(tmp_path, {"a": "one"})
    (tmp_path / "b").write_text("made by the run")
    (tmp_path / "c").symlink_to("/etc/passwd")
    for name in ("b", "c"):
        with pytest.raises(Refusal) as refused:
            upload_to(tmp_path, {"a": "two", name: "ours"})
        assert refused.value.facts["reason"] == "foreign"
    assert (tmp_path / "a").read_text() == "one"
    assert (tmp_path / "b").read_text() == "made by the run"
    assert (tmp_path / "c").is_symlink()


def test_results_of_other_runs_are_nobodys_code(tmp_path: Path) -> None:
    """A run's outputs may be the only copy: sent as code they would be removed there once they are moved away here."""
    more = 'outputs = ["artifacts/{name}"]\n[runs."b*"]\noutputs = "out/[{name}]/x"\n[runs.c]\noutputs = ["plain"]\n'
    root = project(tmp_path, 'inputs = ["artifacts/base/start.pt"]\n' + more)
    for name in ("artifacts/other/model.pt", "artifacts/base/start.pt", "out/[b1]/x/y", "plain/z", "out/b1/x/code.py"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("x")
    assert sent(root) == sorted([*BASE, "artifacts/base/start.pt", "out/b1/x/code.py"])


def test_results_are_no_code_without_settings_of_outputs_and_without_git(tmp_path: Path) -> None:
    root = project(tmp_path)
    shutil.rmtree(root / ".git")
    (root / "artifacts/other").mkdir(parents=True)
    (root / "artifacts/other/model.pt").write_text("x")
    assert sent(root) == BASE


def test_what_stood_there_already_is_never_removed(tmp_path: Path) -> None:
    (tmp_path / layout.OWN).mkdir()
    (tmp_path / "artifacts").mkdir()
    (tmp_path / "artifacts/model").write_text("results")
    upload_to(tmp_path, {"a": "one", "artifacts/model": "results"})
    upload_to(tmp_path, {"a": "one"})
    upload_to(tmp_path, {})
    assert on_disk(tmp_path) == {"artifacts/model": "results"}


def test_what_changed_there_since_it_was_sent_is_not_removed_and_told(tmp_path: Path) -> None:
    (tmp_path / layout.OWN).mkdir()
    upload_to(tmp_path, {"a": "one", "results.csv": "header"})
    (tmp_path / "results.csv").write_text("header, and what a run wrote")
    assert upload_to(tmp_path, {"a": "one"}) == {"removed": [], "changed": ["results.csv"]}
    assert on_disk(tmp_path) == {"a": "one", "results.csv": "header, and what a run wrote"}


def test_what_stood_there_with_our_bytes_is_brought_up_to_date(tmp_path: Path) -> None:
    """A clone on the pod, as users make one by hand before they know the tool."""
    (tmp_path / layout.OWN).mkdir()
    (tmp_path / "train.py").write_text("one")
    (tmp_path / "other.py").write_text("one")
    upload_to(tmp_path, {"train.py": "one", "other.py": "one"})
    upload_to(tmp_path, {"train.py": "two", "other.py": "one"})
    (tmp_path / "other.py").write_text("changed there")
    with pytest.raises(Refusal):
        upload_to(tmp_path, {"train.py": "two", "other.py": "two"})
    assert on_disk(tmp_path) == {"train.py": "two", "other.py": "changed there"}

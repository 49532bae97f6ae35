"""What is no number in a foreign run's files is told of; with --require-finite it is the end of the run."""

from __future__ import annotations

import json

from pods import TestPod
from projects import Project

MAIN = """
import pathlib
import numpy as np
out = pathlib.Path("out"); out.mkdir(exist_ok=True)
np.savez(out / "w_1.npz", w=np.array([1, np.nan]))  # history
np.savez(out / "w_2.npz", mask=np.array([0, -np.inf], "float32"), w=np.arange(3))
np.save(out / "final.npy", np.array([1, np.nan], "float16"))
"""
SETTINGS = 'command = "python main.py"\noutputs = ["out"]\nsnapshots = ["numbered"]\n'


def test_it_is_a_warning_unless_finite_numbers_are_required(project: Project, pod: TestPod) -> None:
    (project.root / "main.py").write_text(MAIN)
    (project.root / "remote-run.toml").write_text(SETTINGS)
    done = project.run(project.on(pod, project.config(), "--json"))
    assert done.returncode == 0, done.stderr
    warnings = ["out/final.npy: the array holds 1 NaN", "out/w_2.npz: mask holds 1 infinities"]
    assert json.loads(done.stdout)["warnings"] == warnings
    named = project.run(project.command("verify", "out/final.npy", "out/w_2.npz"))
    assert named.returncode == 7
    assert "final.npy: the array holds 1 NaN" in named.stderr
    assert "warning: out/w_2.npz: mask holds 1 infinities" in named.stderr
    required = project.run(project.on(pod, project.config(), "--fresh", "--require-finite"))
    assert required.returncode == 7, required.stderr
    assert f"--require-finite: {'; '.join(warnings)}" in required.stdout

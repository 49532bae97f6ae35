"""Saving on a thread: what was true when it was asked for is what is written, and no error is lost."""

import subprocess
import sys
import threading

import pytest
import torch

from remote_runner.checkpoint import torch as ckpt
from remote_runner.checkpoint import torch_save


def training():
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    return model, torch.optim.SGD(model.parameters(), lr=0.1), None


@pytest.fixture
def gate(monkeypatch):
    """Holds every write back until it is opened."""
    opened, write = threading.Event(), torch_save._write

    def held(*arguments):
        assert opened.wait(30)
        write(*arguments)

    monkeypatch.setattr(torch_save, "_write", held)
    return opened


def test_training_goes_on_while_the_state_of_the_call_is_written(tmp_path, gate):
    parts = training()
    before = parts[0].weight.detach().clone()
    with ckpt.AsyncSaver(tmp_path / "x.pt") as saver:
        saver.save(*parts, 1, {})
        assert not (tmp_path / "x.pt").exists(), "it returned before anything was written"
        with torch.no_grad():
            parts[0].weight.zero_()
        gate.set()
    assert torch.equal(torch.load(tmp_path / "x.pt", weights_only=True)["model"]["weight"], before)


def test_one_save_is_in_flight_and_none_is_dropped(tmp_path, gate, capsys):
    parts = training()
    saver = ckpt.AsyncSaver(tmp_path / "step-1.pt")
    saver.save(*parts, 1, {})
    threading.Timer(0.1, gate.set).start()
    saver.save(*parts, 2, {}, path=tmp_path / "step-2.pt")
    assert (tmp_path / "step-1.pt").exists(), "the second waited for the first"
    assert saver.waited_s > 0.05
    saver.wait()
    assert (tmp_path / "step-2.pt").exists()
    assert "for the save before (step 2)" in capsys.readouterr().out


def test_an_error_is_raised_once_at_the_next_save(tmp_path):
    parts = training()
    saver = ckpt.AsyncSaver(tmp_path / "none" / "x.pt")
    saver.save(*parts, 1, {})
    with pytest.raises(OSError, match="No such file"):
        saver.save(*parts, 2, {})
    saver.wait()


def test_a_program_that_never_asks_does_not_end_well():
    code = (
        "import torch; from remote_runner.checkpoint import torch as ckpt; m = torch.nn.Linear(1, 1);"
        "ckpt.AsyncSaver('/proc/none/x.pt').save(m, torch.optim.SGD(m.parameters(), lr=1.0), None, 1, {})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 74
    assert "the last save failed: " in done.stdout

"""Two ranks under torchrun, gloo on the CPU: a request to one is a pause of both, at the same step, resumed exactly."""

import os
import subprocess
import sys

import pytest
import torch

from remote_runner.checkpoint import torch as ckpt
from remote_runner.checkpoint.torch_state import tensors_of

LOOP = """
import os, random, signal, sys, numpy, torch
import torch.distributed as dist
from remote_runner.checkpoint import torch as ckpt

path, stop_at, rank_hit, number = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
pause = ckpt.Pause(signals=("TERM", "INT"))
dist.init_process_group("gloo")
torch.manual_seed(1)
inner = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Dropout(), torch.nn.Linear(16, 1))
model = torch.nn.parallel.DistributedDataParallel(inner)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 30)
for seed in (torch.manual_seed, random.seed, numpy.random.seed):
    seed(100 + dist.get_rank())  # every rank draws its own dropout
data = torch.randn(48, 4, generator=torch.Generator().manual_seed(5))
batches = ckpt.Batches(len(data), batch_size=8, seed=2)
config = {"ranks": dist.get_world_size()}
step = ckpt.load_checkpoint(path, model, optimizer, scheduler, config=config, data=batches, missing_ok=True)
while step < 30:
    for rows in batches.over():
        optimizer.zero_grad()
        model(data[rows]).square().mean().backward()
        optimizer.step(), scheduler.step()
        step += 1
        if step == stop_at and dist.get_rank() == rank_hit:
            os.kill(os.getpid(), number)
        asked = pause.asked()
        if asked or step % 5 == 0 or step == 30:
            ckpt.save_checkpoint(path, model, optimizer, scheduler, step, config, data=batches)
        if asked:
            pause.leave()
        if step == 30:
            break
print("end", dist.get_rank(), flush=True)
dist.destroy_process_group()
os._exit(0)  # PyTorch's own teardown of gloo aborts about once in 80 exits
"""


def torchrun(folder, name, stop_at=0, rank=0, number=15):
    script = folder / "loop.py"
    script.write_text(LOOP)
    argv = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", script]
    argv += [folder / name, str(stop_at), str(rank), str(number)]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(argv, capture_output=True, text=True, env=env, timeout=120)
    return done.returncode, done.stdout + done.stderr


def ending(path):
    tree = torch.load(path, weights_only=True)
    tree.pop("timestamp")
    return {name: tensor.tolist() for name, tensor in tensors_of(tree)}, tree["scheduler"], tree["data"], tree["step"]


def test_ranks_pause_together_and_end_as_if_they_never_had(tmp_path):
    code, said = torchrun(tmp_path, "straight.pt")
    assert code == 0, said
    assert said.count("end") == 2
    code, said = torchrun(tmp_path, "cut.pt", stop_at=8, rank=1)
    assert said.count("paused: full training state saved") == 1, said
    assert ckpt.verify_checkpoint(tmp_path / "cut.pt")["step"] == 8
    assert "exitcode  : 75" in said, "what torchrun tells of its ranks; its own code is 1"
    code, said = torchrun(tmp_path, "cut.pt", stop_at=17, rank=0, number=9)
    assert code != 0
    assert "Resumed step 8" in said
    code, said = torchrun(tmp_path, "cut.pt")
    assert code == 0, said
    assert said.count("Resumed step 15") == 2
    assert ending(tmp_path / "cut.pt") == ending(tmp_path / "straight.pt")
    model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Dropout(), torch.nn.Linear(16, 1))
    with pytest.raises(ckpt.CheckpointMismatch, match="saved by 2 ranks, now there are 1"):
        ckpt.load_checkpoint(tmp_path / "cut.pt", model)

"""mlx toy: fit y = sum(sin(x)).  usage: python train.py configs/toy.json [--resume-from FILE]"""
import argparse
import json
import time
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
from mlx.utils import tree_flatten

parser = argparse.ArgumentParser()
parser.add_argument("config")
parser.add_argument("--resume-from", metavar="FILE")
args = parser.parse_args()
cfg = json.loads(Path(args.config).read_text())
mx.random.seed(cfg["seed"])
save_dir = Path(cfg["save_dir"])
save_dir.mkdir(parents=True, exist_ok=True)


class MLP(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.l1 = nn.Linear(8, width)
        self.l2 = nn.Linear(width, 1)

    def __call__(self, x):
        return self.l2(nn.relu(self.l1(x)))


model = MLP(cfg["width"])
optimizer = optim.SGD(learning_rate=cfg["lr"])
loss_and_grad = nn.value_and_grad(model, lambda m, x, y: mx.mean((m(x) - y) ** 2))
start = 0
if args.resume_from:
    model.load_weights(args.resume_from)
    start = int(Path(args.resume_from).stem.split("_")[-1])
    print("resuming at", start)
for it in range(start + 1, cfg["iters"] + 1):
    x = mx.random.normal((32, 8), key=mx.random.key(cfg["seed"] * 100003 + it))
    loss, grads = loss_and_grad(model, x, mx.sum(mx.sin(x), axis=1, keepdims=True))
    optimizer.update(model, grads)
    mx.eval(model.parameters(), optimizer.state)
    time.sleep(cfg.get("sleep", 0))
    if it % cfg["steps_per_report"] == 0:
        print(f"Iter {it}: Train loss {loss.item():.3f}", flush=True)
    if it % cfg["save_every"] == 0:
        mx.save_safetensors(str(save_dir / f"weights_{it:07d}.safetensors"), dict(tree_flatten(model.parameters())))
mx.save_safetensors(str(save_dir / "weights.safetensors"), dict(tree_flatten(model.parameters())))

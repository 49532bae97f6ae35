"""numpy least squares; the optimizer is a submodule, the data loader lives in a sibling package."""
import argparse
import os
import time

import numpy as np

from mylib import batches
from vendor.library import sgd

parser = argparse.ArgumentParser()
parser.add_argument("--cfg", required=True)
parser.add_argument("--resume", help="a checkpoint")
parser.add_argument("--out_dir", default="results")
args = parser.parse_args()
steps, sleep = (float(x) for x in open(args.cfg).read().split())
os.makedirs(args.out_dir, exist_ok=True)
w, start = np.zeros(4), 0
if args.resume:
    saved = np.load(args.resume)
    w, start = saved["w"], int(saved["step"])
for step in range(start + 1, int(steps) + 1):
    x, y = batches.batch(step)
    w = sgd.update(w, x.T @ (x @ w - y) / len(y))
    time.sleep(sleep)
    if step % 20 == 0:
        np.savez(f"{args.out_dir}/w_{step:05d}.npz", w=w, step=step)
        print(f"step {step}/{int(steps)}")
np.save(f"{args.out_dir}/final.npy", w)

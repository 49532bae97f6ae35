# quick numpy logistic regression, no dependencies but numpy
import glob, sys, time
import numpy as np

CONFIG = sys.argv[1]
settings = dict(line.split() for line in open(CONFIG) if line.strip())
out_dir = "checkpoints"
steps, sleep = int(settings["steps"]), float(settings["sleep"])
import os
os.makedirs(out_dir, exist_ok=True)
w, start = np.zeros(4), 0
if "--resume" in sys.argv:
    last = sorted(glob.glob(out_dir + "/model-*.npz"))[-1]
    w, start = np.load(last)["w"], int(np.load(last)["step"])
    print("loaded", last)
for step in range(start + 1, steps + 1):
    rng = np.random.default_rng(step)
    x = rng.normal(size=(64, 4)); y = (x.sum(1) > 0) * 1.0
    w -= 0.1 * x.T @ (1 / (1 + np.exp(-x @ w)) - y) / 64
    time.sleep(sleep)
    if step % 20 == 0:
        np.savez(out_dir + "/model-%05d.npz" % step, w=w, step=step)
        print("step", step, "w", w.round(3))
np.save(out_dir + "/final.npy", w)

"""Train a small MLP on a toy regression task.

    python train.py --config configs/small.yaml
    python train.py --config configs/small.yaml --resume outputs/small/ckpt_000100.pt
"""
import argparse
import os
import time

import torch
import torch.nn as nn
import yaml


def get_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", type=str, required=True)
    parser.add_argument("--resume", type=str, default=None, help="path to checkpoint")
    return parser.parse_args()


def batch(step, cfg):
    g = torch.Generator().manual_seed(cfg["seed"] * 100003 + step)
    x = torch.randn(cfg["batch_size"], 8, generator=g)
    return x, x.sin().sum(1, keepdim=True)


def main():
    args = get_args()
    cfg = yaml.safe_load(open(args.config))
    torch.manual_seed(cfg["seed"])
    out = cfg["output_dir"]
    os.makedirs(out, exist_ok=True)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Sequential(nn.Linear(8, cfg["width"]), nn.ReLU(), nn.Linear(cfg["width"], 1)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=cfg["lr"])
    start = 0
    if args.resume:
        ckpt = torch.load(args.resume, map_location=device)
        model.load_state_dict(ckpt["model"])
        optimizer.load_state_dict(ckpt["optimizer"])
        start = ckpt["step"]
        print(f"resumed from {args.resume} at step {start}")
    for step in range(start + 1, cfg["steps"] + 1):
        x, y = batch(step, cfg)
        loss = (model(x.to(device)) - y.to(device)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(cfg.get("sleep", 0))
        if step % cfg["log_every"] == 0:
            print(f"step {step}/{cfg['steps']} loss {loss.item():.4f}")
        if step % cfg["save_every"] == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, f"{out}/ckpt_{step:06d}.pt")
    torch.save(model.state_dict(), f"{out}/final.pt")
    print("done")


if __name__ == "__main__":
    main()

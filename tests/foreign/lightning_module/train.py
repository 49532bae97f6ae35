"""A LightningModule in one file. python train.py --config conf/base.yaml [--ckpt_path FILE]"""
import argparse

import lightning as L
import torch
import yaml
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset


class Regressor(L.LightningModule):
    def __init__(self, lr):
        super().__init__()
        self.save_hyperparameters()
        self.net = torch.nn.Linear(8, 1)

    def training_step(self, batch, _):
        x, y = batch
        loss = torch.nn.functional.mse_loss(self.net(x), y)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", default="conf/base.yaml")
    parser.add_argument("--ckpt_path", default=None)
    args = parser.parse_args()
    cfg = yaml.safe_load(open(args.config))
    L.seed_everything(cfg["seed"])
    x = torch.randn(512, 8)
    loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=4)
    trainer = L.Trainer(
        max_steps=cfg["max_steps"],
        default_root_dir=cfg["default_root_dir"],
        callbacks=[ModelCheckpoint(every_n_train_steps=20, save_top_k=-1)],
        accelerator="auto",
        log_every_n_steps=10,
    )
    trainer.fit(Regressor(cfg["lr"]), loader, ckpt_path=args.ckpt_path)

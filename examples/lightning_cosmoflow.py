# SPDX-License-Identifier: Apache-2.0
"""CosmoFlow-like volumes into Lightning: the loader replaces a DataLoader, and its state is in the checkpoint.

    penstock dataset cosmoflow data --samples 64 --voxels 32
    python examples/lightning_cosmoflow.py data 32 run.ckpt

Lightning's sanity check and `limit_val_batches` do not affect the training order, because evaluation has its own
loader.
"""

import sys
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from torch import nn

import penstock


class Volumes(pl.LightningDataModule):
    """Data module that makes the loaders in its hooks, when Lightning's process group has set the rank."""

    def __init__(self, url: str, voxels: int, batch_size: int) -> None:
        super().__init__()
        self.batch_size = batch_size
        self.dataset = penstock.open(url).fields(
            x=penstock.tensor("int16", (voxels,) * 3 + (4,)), y=penstock.tensor("float32", (4,))
        )
        self.train: penstock.torch.Loader | None = None
        self.kept: dict[str, Any] | None = None

    def train_dataloader(self) -> penstock.torch.Loader:
        self.train = penstock.torch.Loader(self.dataset.shuffle(seed=17), batch_size=self.batch_size, tail="drop")
        if self.kept is not None:
            self.train.load_state_dict(self.kept)
        return self.train

    def val_dataloader(self) -> penstock.torch.Loader:
        return penstock.torch.Loader(self.dataset.take(self.batch_size), batch_size=self.batch_size)

    def state_dict(self) -> dict[str, Any]:
        return {} if self.train is None else self.train.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.kept = state


class Regression(pl.LightningModule):
    """Predicts the universe's four parameters from its volume."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Sequential(
            nn.Conv3d(4, 8, 3, stride=2), nn.LeakyReLU(), nn.AdaptiveAvgPool3d(4), nn.Flatten(), nn.Linear(512, 4)
        )

    def loss(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        x = torch.log1p(batch["x"].float()).permute(0, 4, 1, 2, 3)
        return nn.functional.mse_loss(self.model(x), batch["y"])

    def training_step(self, batch: dict[str, torch.Tensor], _index: int) -> torch.Tensor:
        return self.loss(batch)

    def validation_step(self, batch: dict[str, torch.Tensor], _index: int) -> None:
        self.log("held", self.loss(batch), batch_size=len(batch["y"]), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)


def main(url: str, voxels: int, checkpoint: str, batch_size: int = 4, epochs: int = 2) -> None:
    pl.seed_everything(0, verbose=False)
    volumes = Volumes(url, voxels, batch_size)
    trainer = pl.Trainer(max_epochs=epochs, logger=False, enable_checkpointing=False, enable_progress_bar=False)
    trainer.fit(Regression(), datamodule=volumes, ckpt_path=checkpoint if Path(checkpoint).exists() else None)
    trainer.save_checkpoint(checkpoint)
    print(f"held-out loss {float(trainer.callback_metrics['held']):.4f} after {trainer.global_step} steps")
    if volumes.train is not None:
        print(volumes.train.report())


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])

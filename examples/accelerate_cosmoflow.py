# SPDX-License-Identifier: Apache-2.0
"""CosmoFlow-like volumes into Accelerate: the loader makes each process's slice itself, so do not pass it to `prepare`.

    penstock dataset cosmoflow data --samples 64 --voxels 32
    accelerate launch examples/accelerate_cosmoflow.py data 32 checkpoint

`save_state` saves the loader's position beside weights and optimiser. A run that finds a checkpoint resumes from it,
with any number of processes.
"""

import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import nn

import penstock


def main(url: str, voxels: int, checkpoint: str, global_batch: int = 4, epochs: int = 2) -> None:
    torch.manual_seed(0)
    accelerator = Accelerator()
    model = nn.Sequential(
        nn.Conv3d(4, 8, 3, stride=2), nn.LeakyReLU(), nn.AdaptiveAvgPool3d(4), nn.Flatten(), nn.Linear(512, 4)
    )
    model, optimiser = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9))
    dataset = (
        penstock.open(url)
        .fields(x=penstock.tensor("int16", (voxels,) * 3 + (4,)), y=penstock.tensor("float32", (4,)))
        .shuffle(seed=17)
    )
    loader = penstock.torch.Loader(
        dataset,
        global_batch=global_batch,
        tail="drop",
        rank=accelerator.process_index,
        world=accelerator.num_processes,
        device=accelerator.device,
    )
    accelerator.register_for_checkpointing(loader)
    if Path(checkpoint).exists():
        accelerator.load_state(checkpoint)
        accelerator.print(f"goes on in epoch {loader.epoch}")
    while loader.epoch < epochs:
        for batch in loader:
            x = torch.log1p(batch["x"].float()).permute(0, 4, 1, 2, 3)
            loss = nn.functional.mse_loss(model(x), batch["y"])
            accelerator.backward(loss)
            optimiser.step()
            optimiser.zero_grad()
        accelerator.save_state(checkpoint)
        accelerator.print(f"epoch {loader.epoch - 1}: last loss {loss.item():.4f}")
    accelerator.print(loader.report())


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])

# SPDX-License-Identifier: Apache-2.0
"""CosmoFlow-like volumes into plain PyTorch DDP: no worker processes, no conversion, no staging.

    penstock dataset cosmoflow data --samples 64 --voxels 32
    torchrun --standalone --nproc-per-node 2 examples/ddp_cosmoflow.py data 32

Rank and world come from torchrun. The loader's state is under 1 KB and the same on all ranks, so a job that stops here
can resume with any number of ranks.
"""

import sys

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

import penstock


def main(url: str, voxels: int, global_batch: int = 4, epochs: int = 2) -> None:
    distributed.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    device = torch.device("cuda", distributed.get_rank()) if torch.cuda.is_available() else torch.device("cpu")
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv3d(4, 8, 3, stride=2), nn.LeakyReLU(), nn.AdaptiveAvgPool3d(4), nn.Flatten(), nn.Linear(512, 4)
    )
    ddp = DistributedDataParallel(model.to(device))
    optimiser = torch.optim.SGD(ddp.parameters(), lr=0.01, momentum=0.9)
    dataset = (
        penstock.open(url)
        .fields(x=penstock.tensor("int16", (voxels,) * 3 + (4,)), y=penstock.tensor("float32", (4,)))
        .shuffle(seed=17)
    )
    loader = penstock.torch.Loader(dataset, global_batch=global_batch, tail="drop", device=device)
    for _ in range(epochs):
        for batch in loader:
            x = torch.log1p(batch["x"].float()).permute(0, 4, 1, 2, 3)
            loss = nn.functional.mse_loss(ddp(x), batch["y"])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    distributed.all_reduce(loss, op=distributed.ReduceOp.SUM)
    if distributed.get_rank() == 0:
        print(f"epoch {loader.epoch} begins next; last loss {loss.item() / distributed.get_world_size():.4f}")
        print(loader.report())
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))

# SPDX-License-Identifier: Apache-2.0
"""Train on CosmoFlow-like volumes with Ray Train: each worker's loader takes its rank from Ray's process group.

    penstock dataset cosmoflow data --samples 64 --voxels 32
    python examples/ray_train.py data 32 runs 2

Each checkpoint holds the loader's position, which is the same on all workers. If a run was killed, start this
program again: it continues from the last checkpoint, even with a different number of workers.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

import ray.train
import torch
from ray.train import Checkpoint, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, get_device, prepare_model
from torch import nn

import penstock


def train(config: dict[str, Any]) -> None:
    """Runs in each worker."""
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv3d(4, 8, 3, stride=2), nn.LeakyReLU(), nn.AdaptiveAvgPool3d(4), nn.Flatten(), nn.Linear(512, 4)
    )
    model = prepare_model(network)  # with several workers, DDP wraps it; checkpoints contain the network itself
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    dataset = (
        penstock.open(config["url"])
        .fields(x=penstock.tensor("int16", (config["voxels"],) * 3 + (4,)), y=penstock.tensor("float32", (4,)))
        .shuffle(seed=17)
    )
    loader = penstock.torch.Loader(dataset, global_batch=4, tail="drop", device=get_device())
    if (checkpoint := ray.train.get_checkpoint()) is not None:
        with checkpoint.as_directory() as folder:
            state = torch.load(Path(folder, "state.pt"))
        network.load_state_dict(state["network"])
        optimiser.load_state_dict(state["optimiser"])
        loader.load_state_dict(state["loader"])
    while loader.epoch < config["epochs"]:
        for batch in loader:
            x = torch.log1p(batch["x"].float()).permute(0, 4, 1, 2, 3)
            loss = nn.functional.mse_loss(model(x), batch["y"])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            with tempfile.TemporaryDirectory() as folder:
                is_first = ray.train.get_context().get_world_rank() == 0
                if is_first:
                    parts = {"network": network, "optimiser": optimiser, "loader": loader}
                    torch.save({name: part.state_dict() for name, part in parts.items()}, Path(folder, "state.pt"))
                place = loader.state_dict()
                metrics = {"loss": loss.item(), "epoch": place["epoch"], "samples": place["cursor"]}
                ray.train.report(metrics, checkpoint=Checkpoint.from_directory(folder) if is_first else None)


def main(url: str, voxels: int, runs: str, workers: int, epochs: int = 2) -> None:
    trainer = TorchTrainer(
        train,
        train_loop_config={"url": str(Path(url).resolve()), "voxels": voxels, "epochs": epochs},
        scaling_config=ScalingConfig(num_workers=workers, use_gpu=torch.cuda.is_available()),
        run_config=RunConfig(name="cosmoflow", storage_path=str(Path(runs).resolve())),
    )
    result = trainer.fit()
    print(f"epoch {result.metrics['epoch']}, {result.metrics['samples']} samples: loss {result.metrics['loss']:.4f}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))

# SPDX-License-Identifier: Apache-2.0
"""Train a classifier of actions on video files in class folders (as Kinetics): `jump/a.mp4`, `run/b.mp4`.

    torchrun --nproc-per-node 2 examples/week/video.py s3://bucket/videos/ s3://bucket/checkpoints

Each epoch has one clip of each file, with a random start that depends on the order's seed. Only the clip's bytes are
read: from the keyframe before it to its last frame. Needs `pip install 'penstock[video]'`.
"""

import sys

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from training import Checkpoints, start

import penstock


def dataset(url: str) -> penstock.Dataset:
    """The shuffled clips: uint8 [frames, height, width, 3]."""
    return penstock.video.open(url, frames=8, size=32, fps=5).shuffle(seed=1)


def network(classes: int = 2) -> nn.Module:
    """A small network with convolutions over time, height and width."""
    return nn.Sequential(
        *(nn.Conv3d(3, 8, 3, stride=2), nn.ReLU(), nn.Conv3d(8, 16, (1, 3, 3), stride=2), nn.ReLU()),
        *(nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(16, classes)),
    )


def main(url: str, checkpoint: str, epochs: int = 1, global_batch: int = 6) -> None:
    device = start()
    model = DistributedDataParallel(network().to(device))
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = penstock.torch.Loader(dataset(url), global_batch=global_batch, tail="drop", device=device)
    checkpoints = Checkpoints(checkpoint, model, optimiser, loader)
    step = checkpoints.resume()
    while loader.epoch < epochs:
        for batch in loader:
            frames = batch["video"].permute(0, 4, 1, 2, 3).float() / 255
            loss = nn.functional.cross_entropy(model(frames), batch["label"])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            step += 1
            if step % 4 == 0:
                checkpoints.save(step)
                print(f"step {step}: loss {loss.item():.3f}")
    checkpoints.save(step)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])

# SPDX-License-Identifier: Apache-2.0
"""Train an image classifier on tar shards (WebDataset): members `KEY.jpg` and `KEY.cls`.

    torchrun --nproc-per-node 2 examples/week/image_classification.py s3://bucket/train/ s3://bucket/checkpoints

The feed's threads crop, flip and change colours at random. A job that is killed resumes with any number of ranks, at
the sample after its last checkpoint.
"""

import sys

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from training import Checkpoints, start

import penstock


def dataset(url: str) -> penstock.Dataset:
    """The shuffled training set."""
    image = penstock.image(32, crop="random", flip=True, dtype="float32", layout="CHW", mean=[0.5] * 3, std=[0.25] * 3)
    return (
        penstock.open(url)
        .fields(image=image.jitter(0.2, 0.2).of("jpg"), label=penstock.tensor("int64", ()).of("cls"))
        .shuffle(seed=1)
    )


def network(classes: int = 10) -> nn.Module:
    """A small convolutional network."""
    return nn.Sequential(
        *(nn.Conv2d(3, 16, 3, stride=2), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, classes)),
    )


def main(url: str, checkpoint: str, epochs: int = 1, global_batch: int = 24) -> None:
    device = start()
    model = DistributedDataParallel(network().to(device))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loader = penstock.torch.Loader(dataset(url), global_batch=global_batch, tail="drop", device=device)
    checkpoints = Checkpoints(checkpoint, model, optimiser, loader)
    step = checkpoints.resume()
    while loader.epoch < epochs:
        for batch in loader:
            loss = nn.functional.cross_entropy(model(batch["image"]), batch["label"])
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

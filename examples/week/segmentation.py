# SPDX-License-Identifier: Apache-2.0
"""Train a semantic segmentation on pairs of an image and a mask of labels, as members of tar shards.

    torchrun --nproc-per-node 2 examples/week/segmentation.py data/scenes data/checkpoints

One crop, flip and rotation applies to the image and its mask. Each pixel of the mask takes the nearest label; pixels
from outside of the image have the label 255, which the loss ignores.
"""

import sys

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from training import Checkpoints, start

import penstock


def dataset(url: str) -> penstock.Dataset:
    """The shuffled training set."""
    image = penstock.image(48, crop="random", flip=True, dtype="float32", layout="CHW").augment("rotate", (-10, 10))
    return (
        penstock.open(url)
        .fields(image=image.of("jpg"), mask=penstock.mask(dtype="int64", fill=255).of("png").like("image"))
        .shuffle(seed=1)
    )


def network(classes: int = 4) -> nn.Module:
    """A small encoder and decoder."""
    return nn.Sequential(
        *(nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU()),
        nn.ConvTranspose2d(32, classes, 2, stride=2),
    )


def main(url: str, checkpoint: str, epochs: int = 1, global_batch: int = 12) -> None:
    device = start()
    model = DistributedDataParallel(network().to(device))
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = penstock.torch.Loader(dataset(url), global_batch=global_batch, tail="drop", device=device)
    checkpoints = Checkpoints(checkpoint, model, optimiser, loader)
    step = checkpoints.resume()
    while loader.epoch < epochs:
        for batch in loader:
            loss = nn.functional.cross_entropy(model(batch["image"]), batch["mask"], ignore_index=255)
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

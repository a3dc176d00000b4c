# SPDX-License-Identifier: Apache-2.0
"""Train an object detector on TFRecords in the layout of TensorFlow's Object Detection API.

    torchrun --nproc-per-node 2 examples/week/detection.py s3://bucket/coco/ s3://bucket/checkpoints

Boxes are fractions of the image. The feed crops and flips them with the image, and removes the boxes (and their labels)
of which less than a fifth is left. Each cell of an 8 x 8 grid predicts the box whose centre is in it.
"""

import sys

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from training import Checkpoints, start

import penstock

GRID, CLASSES = 8, 5


def dataset(url: str) -> penstock.Dataset:
    """The shuffled training set."""
    image = penstock.image(64, crop="random", area=(0.5, 1.0), flip=True, dtype="float32", layout="CHW")
    sides = ",".join(f"image/object/bbox/{side}" for side in ("xmin", "ymin", "xmax", "ymax"))
    return (
        penstock.open(url)
        .fields(
            image=image.of("image/encoded"),
            boxes=penstock.boxes(normalized=True, min_visibility=0.2).of(sides).like("image"),
            labels=penstock.ragged("int64").of("image/object/class/label").like("boxes"),
        )
        .shuffle(seed=1)
    )


def network() -> nn.Module:
    """For each cell of the grid: scores of the classes (the first is the background), and the sides of a box."""
    layers = [nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU()]
    return nn.Sequential(*layers, nn.Conv2d(32, 1 + CLASSES + 4, 3, 2, 1))


def loss_of(scores: torch.Tensor, boxes: penstock.Ragged, labels: penstock.Ragged) -> torch.Tensor:
    """Cross entropy of the cells' classes, and L1 distance of the boxes' sides (which are fractions of the image)."""
    images = torch.repeat_interleave(torch.arange(len(scores), device=scores.device), boxes.offsets.diff())
    column, row = (((boxes.values[:, :2] + boxes.values[:, 2:]) / 2 * GRID).long().clamp(0, GRID - 1)).unbind(1)
    target = torch.zeros(len(scores), GRID, GRID, dtype=torch.int64, device=scores.device)
    target[images, row, column] = labels.values
    loss = nn.functional.cross_entropy(scores[:, : 1 + CLASSES], target)
    found = scores[images, 1 + CLASSES :, row, column].sigmoid()
    return loss + (found - boxes.values).abs().sum() / max(len(found), 1)


def main(url: str, checkpoint: str, epochs: int = 1, global_batch: int = 12) -> None:
    device = start()
    model = DistributedDataParallel(network().to(device))
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = penstock.torch.Loader(dataset(url), global_batch=global_batch, tail="drop", device=device)
    checkpoints = Checkpoints(checkpoint, model, optimiser, loader)
    step = checkpoints.resume()
    while loader.epoch < epochs:
        for batch in loader:
            loss = loss_of(model(batch["image"]), batch["boxes"], batch["labels"])
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

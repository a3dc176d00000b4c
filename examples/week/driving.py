# SPDX-License-Identifier: Apache-2.0
"""Train on TFRecords of serialized protobufs (as the Waymo Open Dataset's frames): predict the speed from each camera's
image.

    torchrun --nproc-per-node 2 examples/week/driving.py s3://bucket/drives/ s3://bucket/checkpoints

A frame becomes a sample of each camera, and frames without images are dropped. A batch contains the samples of a fixed
number of frames, so a checkpoint resumes on any number of ranks.
"""

import io
import sys
from collections.abc import Iterator
from typing import Any

import driving_pb2
import numpy as np
import torch
from PIL import Image
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from training import Checkpoints, start

import penstock


def samples(record: bytes) -> Iterator[dict[str, Any]]:
    """The samples of a frame."""
    frame = driving_pb2.Frame.FromString(record)
    for image in frame.images:
        pixels = np.asarray(Image.open(io.BytesIO(image.jpeg)).convert("RGB").resize((48, 32)))
        yield {"image": pixels, "camera": image.camera, "speed": np.float32(frame.speed_m_per_s)}


def dataset(url: str) -> penstock.Dataset:
    """The shuffled frames. Pillow releases the GIL; for decoders in Python, use `workers=` instead of `threads=`."""
    return penstock.open(url).fields(record=penstock.raw()).shuffle(seed=1).decode(samples, threads=2)


class Speed(nn.Module):
    """A small network over the image and the number of the camera."""

    def __init__(self) -> None:
        super().__init__()
        layers = [nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.Conv2d(8, 16, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1)]
        self.image, self.camera, self.out = nn.Sequential(*layers, nn.Flatten()), nn.Embedding(8, 16), nn.Linear(16, 1)

    def forward(self, image: torch.Tensor, camera: torch.Tensor) -> torch.Tensor:
        """Return the speed of each sample in m/s."""
        pixels = image.permute(0, 3, 1, 2).float() / 255
        return self.out((self.image(pixels) + self.camera(camera)).relu()).squeeze(1)


def main(url: str, checkpoint: str, epochs: int = 1, frames: int = 12) -> None:
    device = start()
    model = DistributedDataParallel(Speed().to(device))
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader = penstock.torch.Loader(dataset(url), global_batch=frames, tail="drop", device=device)
    checkpoints = Checkpoints(checkpoint, model, optimiser, loader)
    step = checkpoints.resume()
    while loader.epoch < epochs:
        for batch in loader:
            loss = nn.functional.mse_loss(model(batch["image"], batch["camera"]), batch["speed"])
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

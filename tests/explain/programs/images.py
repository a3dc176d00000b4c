# SPDX-License-Identifier: Apache-2.0
"""Train on a folder of images that the workers of a torch DataLoader decode with PIL.

Files that end in `.npy` contain pixels that are already decoded.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __init__(self, folder):
        self.paths = sorted(folder.iterdir())

    def __len__(self):
        return 1_000_000

    def __getitem__(self, i):
        path = self.paths[i % len(self.paths)]
        if path.suffix == ".npy":
            return torch.from_numpy(np.load(path))
        with Image.open(path) as image:
            return torch.from_numpy(np.array(image.convert("RGB").resize((64, 64))))


def main():
    parse = argparse.ArgumentParser()
    parse.add_argument("folder", type=Path)
    parse.add_argument("--seconds", type=float, default=60)
    parse.add_argument("--workers", type=int, default=1)
    parse.add_argument("--batch", type=int, default=8)
    args = parse.parse_args()
    torch.set_num_threads(1)
    batches = iter(DataLoader(Images(args.folder), args.batch, num_workers=args.workers))
    model = nn.Sequential(nn.Conv2d(3, 4, 8, stride=8), nn.ReLU(), nn.Flatten(), nn.Linear(256, 10))
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-3)
    next(batches)
    began = time.monotonic()
    steps = 0
    while time.monotonic() - began < args.seconds:
        pixels = next(batches).permute(0, 3, 1, 2).float() / 255
        loss = model(pixels).square().mean()
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        steps += 1
    took_s = time.monotonic() - began
    print(f"{steps} steps in {took_s:.1f} s, {steps / took_s:.3f} steps/s")


if __name__ == "__main__":
    main()

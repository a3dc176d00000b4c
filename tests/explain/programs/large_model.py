# SPDX-License-Identifier: Apache-2.0
"""Train a network on arrays of a file. The workers of a torch DataLoader return them quickly."""

import argparse
import itertools
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __init__(self, path):
        self.rows = np.load(path, mmap_mode="r")

    def __len__(self):
        return 1_000_000

    def __getitem__(self, i):
        return torch.from_numpy(self.rows[i % len(self.rows)].copy())


def main():
    parse = argparse.ArgumentParser()
    parse.add_argument("file", type=Path)
    parse.add_argument("--seconds", type=float, default=60)
    parse.add_argument("--workers", type=int, default=1)
    parse.add_argument("--batch", type=int, default=64)
    parse.add_argument("--width", type=int, default=1024)
    parse.add_argument("--layers", type=int, default=4)
    args = parse.parse_args()
    torch.set_num_threads(1)
    rows = Rows(args.file)
    batches = iter(DataLoader(rows, args.batch, num_workers=args.workers))
    sizes = [rows.rows.shape[1], *[args.width] * args.layers]
    layers = [layer for a, b in itertools.pairwise(sizes) for layer in (nn.Linear(a, b), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(args.width, 1))
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-4)
    next(batches)
    began = time.monotonic()
    steps = 0
    while time.monotonic() - began < args.seconds:
        loss = model(next(batches)).square().mean()
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        steps += 1
    took_s = time.monotonic() - began
    print(f"{steps} steps in {took_s:.1f} s, {steps / took_s:.3f} steps/s")


if __name__ == "__main__":
    main()

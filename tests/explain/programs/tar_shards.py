# SPDX-License-Identifier: Apache-2.0
"""Train a network on tar shards, read as WebDataset does: sequentially, with a shuffle buffer, in DataLoader workers."""

import argparse
import itertools
import random
import tarfile
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Shards(IterableDataset):
    def __init__(self, paths, buffer=64):
        self.paths, self.buffer = paths, buffer

    def samples(self):
        worker = get_worker_info()
        mine = self.paths[worker.id :: worker.num_workers] if worker else self.paths
        for path in itertools.cycle(mine):
            with tarfile.open(path, "r|") as shard:
                for member in shard:
                    yield np.frombuffer(shard.extractfile(member).read(), np.float32)

    def __iter__(self):
        draw, held = random.Random(0), []
        for sample in self.samples():
            held.append(sample)
            if len(held) == self.buffer:
                yield torch.from_numpy(held.pop(draw.randrange(len(held))).copy())


def main():
    parse = argparse.ArgumentParser()
    parse.add_argument("folder", type=Path)
    parse.add_argument("--seconds", type=float, default=60)
    parse.add_argument("--workers", type=int, default=1)
    parse.add_argument("--batch", type=int, default=16)
    parse.add_argument("--width", type=int, default=1024)
    args = parse.parse_args()
    torch.set_num_threads(1)
    batches = iter(DataLoader(Shards(sorted(args.folder.iterdir())), args.batch, num_workers=args.workers))
    model = nn.Sequential(
        nn.Linear(1024, args.width), nn.ReLU(), nn.Linear(args.width, args.width), nn.Linear(args.width, 1)
    )
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-4)
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

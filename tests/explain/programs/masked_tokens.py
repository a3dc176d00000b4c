# SPDX-License-Identifier: Apache-2.0
"""Train on token files. Python code masks the tokens, in the main process if `--workers` is 0."""

import argparse
import random
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class MaskedTokens(Dataset):
    def __init__(self, folder, tokens):
        self.paths, self.tokens = sorted(folder.iterdir()), tokens

    def __len__(self):
        return 1_000_000

    def __getitem__(self, i):
        tokens = np.load(self.paths[i % len(self.paths)])[: self.tokens].tolist()
        draw = random.Random(i)
        masked, before = [], 0
        for token in tokens:
            chance = draw.random()
            if chance < 0.12:
                masked.append(0)
            elif chance < 0.15:
                masked.append(draw.randrange(50_000))
            else:
                masked.append(token if token != before else 1)
            before = token
        return torch.tensor(masked, dtype=torch.float32)


def main():
    parse = argparse.ArgumentParser()
    parse.add_argument("folder", type=Path)
    parse.add_argument("--seconds", type=float, default=60)
    parse.add_argument("--workers", type=int, default=0)
    parse.add_argument("--batch", type=int, default=8)
    parse.add_argument("--tokens", type=int, default=8192, help="tokens of a sample")
    parse.add_argument("--width", type=int, default=256)
    args = parse.parse_args()
    torch.set_num_threads(1)
    batches = iter(DataLoader(MaskedTokens(args.folder, args.tokens), args.batch, num_workers=args.workers))
    model = nn.Sequential(nn.Linear(args.tokens, args.width), nn.ReLU(), nn.Linear(args.width, 1))
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-12)
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

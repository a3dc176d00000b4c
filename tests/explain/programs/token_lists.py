# SPDX-License-Identifier: Apache-2.0
"""Train on tokenised documents that DataLoader workers return as lists of Python numbers.

With `--tensors`, the workers return tensors, which the DataLoader passes in shared memory.
"""

import argparse
import random
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Documents(Dataset):
    def __init__(self, tokens, *, as_tensors):
        draw = random.Random(0)
        self.documents = [
            {"tokens": draw.choices(range(50_000), k=tokens), "weights": [draw.random() for _ in range(tokens)]}
            for _ in range(16)
        ]
        if as_tensors:
            self.documents = [{k: torch.tensor(v) for k, v in each.items()} for each in self.documents]

    def __len__(self):
        return 1_000_000

    def __getitem__(self, i):
        return self.documents[i % len(self.documents)]


def main():
    parse = argparse.ArgumentParser()
    parse.add_argument("--seconds", type=float, default=60)
    parse.add_argument("--workers", type=int, default=1)
    parse.add_argument("--batch", type=int, default=8)
    parse.add_argument("--tokens", type=int, default=20_000, help="tokens of a document")
    parse.add_argument("--tensors", action="store_true")
    args = parse.parse_args()
    torch.set_num_threads(1)
    documents = Documents(args.tokens, as_tensors=args.tensors)
    collate = None if args.tensors else list
    batches = iter(DataLoader(documents, args.batch, num_workers=args.workers, collate_fn=collate))
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-3)
    next(batches)
    began = time.monotonic()
    steps = 0
    while time.monotonic() - began < args.seconds:
        batch = next(batches)
        rows = batch["weights"] if args.tensors else torch.tensor([each["weights"][:64] for each in batch])
        loss = model(rows[:, :64]).square().mean()
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        steps += 1
    took_s = time.monotonic() - began
    print(f"{steps} steps in {took_s:.1f} s, {steps / took_s:.3f} steps/s")


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""Train a click model on Parquet: ids, a history of items, numbers with nulls, and a partition by day.

    torchrun --nproc-per-node 2 examples/week/recommender.py s3://bucket/clicks/ s3://bucket/checkpoints

The history is a ragged column, which `EmbeddingBag` reads without padding. A missing price is 0, and a column of the
batch shows that it is missing. Files of `day=2024-05-01/` have a column `day`.
"""

import sys

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from training import Checkpoints, start

import penstock

USERS, ITEMS = 1000, 500


def dataset(url: str) -> penstock.Dataset:
    """The shuffled rows."""
    return (
        penstock.open(url)
        .fields(
            user=penstock.tensor("int64", ()),
            history=penstock.ragged("int64"),
            price=penstock.tensor("float32", (), default=0, mask="has_price"),
            hour=penstock.tensor("float32", ()),
            clicked=penstock.tensor("float32", ()),
            day=penstock.raw(),
        )
        .shuffle(seed=1)
    )


class Clicks(nn.Module):
    """Embeddings of the user and the history, and a small network."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.user, self.items = nn.Embedding(USERS, width), nn.EmbeddingBag(ITEMS, width)
        self.layers = nn.Sequential(nn.Linear(2 * width + 4, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, batch: dict, weekend: torch.Tensor) -> torch.Tensor:
        """Return the logit of a click for each row."""
        history = self.items(batch["history"].values, batch["history"].offsets[:-1])
        numbers = torch.stack([batch["price"], batch["has_price"].float(), batch["hour"] / 24, weekend], dim=1)
        return self.layers(torch.cat([self.user(batch["user"]), history, numbers], dim=1)).squeeze(1)


def main(url: str, checkpoint: str, epochs: int = 1, global_batch: int = 48) -> None:
    device = start()
    model = DistributedDataParallel(Clicks().to(device))
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader = penstock.torch.Loader(dataset(url), global_batch=global_batch, tail="drop", device=device)
    checkpoints = Checkpoints(checkpoint, model, optimiser, loader)
    step = checkpoints.resume()
    while loader.epoch < epochs:
        for batch in loader:
            weekend = torch.tensor([day in (b"2024-05-04", b"2024-05-05") for day in batch["day"]], device=device)
            loss = nn.functional.binary_cross_entropy_with_logits(model(batch, weekend.float()), batch["clicked"])
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

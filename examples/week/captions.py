# SPDX-License-Identifier: Apache-2.0
"""Train an image and a text encoder on captions (as CLIP), from tar shards with members `KEY.jpg` and `KEY.txt`.

    torchrun --nproc-per-node 2 examples/week/captions.py s3://bucket/laion/ s3://bucket/checkpoints

Captions are tokenized in the feed and arrive as a ragged field, which `EmbeddingBag` reads without padding. The order
and the states are those of other datasets, because no tokens are packed.
"""

import sys

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from training import Checkpoints, start

import penstock


def byte_tokens(texts: list[str]) -> list[list[int]]:
    """A token for each byte. Use a `tokenizers.Tokenizer` instead, which runs without the GIL."""
    return [list(text.encode()) for text in texts]


def dataset(url: str) -> penstock.Dataset:
    """The shuffled training set."""
    image = penstock.image(32, crop="random", area=(0.9, 1.0), dtype="float32", layout="CHW")
    return (
        penstock.open(url)
        .fields(image=image.of("jpg"), caption=penstock.text().of("txt"))
        .shuffle(seed=1)
        .tokenize(byte_tokens, "caption", key="bytes-1")
    )


class Encoders(nn.Module):
    """Encoders of images and captions into one space of 32 dimensions."""

    def __init__(self) -> None:
        super().__init__()
        layers = [nn.Conv2d(3, 16, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(256, 32)]
        self.image, self.text = nn.Sequential(*layers), nn.EmbeddingBag(256, 32)

    def forward(self, image: torch.Tensor, tokens: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        """Return the similarity of each image to each caption."""
        images = nn.functional.normalize(self.image(image), dim=1)
        return 10 * images @ nn.functional.normalize(self.text(tokens, offsets), dim=1).T


def main(url: str, checkpoint: str, epochs: int = 1, global_batch: int = 24) -> None:
    device = start()
    model = DistributedDataParallel(Encoders().to(device))
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = penstock.torch.Loader(dataset(url), global_batch=global_batch, tail="drop", device=device)
    checkpoints = Checkpoints(checkpoint, model, optimiser, loader)
    step = checkpoints.resume()
    while loader.epoch < epochs:
        for batch in loader:
            tokens = batch["tokens"]
            similar = model(batch["image"], tokens.values, tokens.offsets[:-1])
            pairs = torch.arange(len(similar), device=device)
            loss = nn.functional.cross_entropy(similar, pairs) + nn.functional.cross_entropy(similar.T, pairs)
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

# SPDX-License-Identifier: Apache-2.0
"""Pre-train a language model on documents of JSON lines, tokenized and packed into windows by the feed.

    torchrun --nproc-per-node 2 examples/week/pretraining.py s3://bucket/corpus/ s3://bucket/checkpoints tokenizer.json

The tokens of all documents are counted before the first epoch, so a checkpoint resumes on any number of ranks, in the
middle of a document.
"""

import sys

import torch
from tokenizers import Tokenizer
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from training import Checkpoints, start

import penstock


def dataset(url: str, tokenizer: Tokenizer, length: int = 64) -> penstock.Dataset:
    """Windows of tokens, one more than the model reads: the targets are the inputs shifted by one."""
    documents = penstock.open(url).fields(text=penstock.text()).shuffle(seed=1)
    return documents.tokenize(tokenizer).pack(length + 1, eos=tokenizer.token_to_id("</s>"), count_tokens=True)


class Language(nn.Module):
    """A causal transformer of one layer. Attention does not cross documents."""

    def __init__(self, tokens: int, length: int = 64, width: int = 32) -> None:
        super().__init__()
        self.embedding, self.positions = nn.Embedding(tokens, width), nn.Embedding(4096, width)
        self.layer = nn.TransformerEncoderLayer(width, 4, 64, dropout=0, batch_first=True)
        self.scores = nn.Linear(width, tokens)
        self.register_buffer("later", torch.ones(length, length, dtype=torch.bool).triu(1))

    def forward(self, tokens: torch.Tensor, segments: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return the scores of each next token."""
        other = segments[:, :, None] != segments[:, None, :]
        hidden = self.embedding(tokens) + self.positions(positions % 4096)
        return self.scores(self.layer(hidden, src_mask=(other | self.later).repeat_interleave(4, dim=0)))


def main(url: str, checkpoint: str, tokenizer_file: str, epochs: int = 1, global_batch: int = 6) -> None:
    device = start()
    tokenizer = Tokenizer.from_file(tokenizer_file)
    model = DistributedDataParallel(Language(tokenizer.get_vocab_size()).to(device))
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    windows = dataset(url, tokenizer)
    loader = penstock.torch.Loader(windows, global_batch=global_batch, tail="drop", device=device)
    checkpoints = Checkpoints(checkpoint, model, optimiser, loader)
    step = checkpoints.resume()
    while loader.epoch < epochs:
        for batch in loader:
            tokens, segments = batch["tokens"], batch["segment_ids"]
            scores = model(tokens[:, :-1], segments[:, :-1], batch["position_ids"][:, :-1].long())
            # Whether the next token is of the same document.
            is_same = (segments[:, 1:] == segments[:, :-1]) & batch["mask"][:, 1:]
            loss = nn.functional.cross_entropy(scores[is_same], tokens[:, 1:][is_same])
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
    main(sys.argv[1], sys.argv[2], sys.argv[3])

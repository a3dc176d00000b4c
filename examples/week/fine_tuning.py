# SPDX-License-Identifier: Apache-2.0
"""Fine-tune a language model on chats in JSON lines: `{"messages": [{"role": "user", "content": "..."}, ...]}`.

    torchrun --nproc-per-node 2 examples/week/fine_tuning.py chats.jsonl.gz checkpoints

Only the answers have labels. Each chat is a row, padded to the longest of its batch. Without packing, a checkpoint
resumes on any number of ranks.
"""

import json
import sys
from typing import Any

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import pad_sequence
from training import Checkpoints, start

import penstock

IGNORED = -100  # cross_entropy leaves these labels out


def with_labels(chats: list[str]) -> dict[str, list[list[int]]]:
    """Tokens (bytes) and labels of each chat."""
    tokens, labels = [], []
    for messages in map(json.loads, chats):
        parts = [([*one["content"].encode(), 0], one["role"] == "assistant") for one in messages]
        tokens.append([token for part, _ in parts for token in part])
        labels.append([token if is_answer else IGNORED for part, is_answer in parts for token in part])
    return {"tokens": tokens, "labels": labels}


def dataset(url: str) -> penstock.Dataset:
    """The shuffled chats."""
    chats = penstock.open(url).fields(messages=penstock.text()).shuffle(seed=1)
    return chats.tokenize(with_labels, "messages", key="chat-1")


def collate(samples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Pad the samples to the longest."""
    tokens, labels = ([torch.as_tensor(one[name]) for one in samples] for name in ("tokens", "labels"))
    return {
        "tokens": pad_sequence(tokens, batch_first=True),
        "labels": pad_sequence(labels, batch_first=True, padding_value=IGNORED),
    }


def network(width: int = 64) -> nn.Module:
    """Scores of each next token, from the token before it."""
    return nn.Sequential(nn.Embedding(256, width), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 256))


def main(url: str, checkpoint: str, epochs: int = 1, global_batch: int = 12) -> None:
    device = start()
    model = DistributedDataParallel(network().to(device))
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = dataset(url)
    loader = penstock.torch.Loader(data, global_batch=global_batch, tail="drop", collate=collate, device=device)
    checkpoints = Checkpoints(checkpoint, model, optimiser, loader)
    step = checkpoints.resume()
    while loader.epoch < epochs:
        for batch in loader:
            scores, labels = model(batch["tokens"][:, :-1]), batch["labels"][:, 1:]
            loss = nn.functional.cross_entropy(scores.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)
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

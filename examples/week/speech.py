# SPDX-License-Identifier: Apache-2.0
"""Train a speech recogniser on tar shards: recordings `KEY.flac` (or `.wav`, `.mp3`) and transcripts `KEY.txt`.

    torchrun --nproc-per-node 2 examples/week/speech.py s3://bucket/speech/ s3://bucket/checkpoints

Recordings are decoded and resampled by the feed's threads, and padded to the longest of a batch. Recordings of similar
length form a batch: up to 80,000 audio samples over all ranks, so a job resumes on any number of ranks.
"""

import sys

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from training import Checkpoints, start

import penstock

WINDOW, STEP = 400, 160  # audio samples: 50 ms and 20 ms at 8 kHz


def byte_tokens(texts: list[str]) -> list[list[int]]:
    """A token for each byte. 0 is the blank of the loss."""
    return [list(text.encode()) for text in texts]


def dataset(url: str) -> penstock.Dataset:
    """The shuffled recordings with their tokens."""
    return (
        penstock.open(url)
        .fields(wave=penstock.audio(8_000).of("flac;wav;mp3").padded(mask="is_wave"), text=penstock.text().of("txt"))
        .shuffle(seed=1)
        .tokenize(byte_tokens, key="bytes-1")
    )


def network(width: int = 32) -> nn.Module:
    """Scores of the bytes in each window of a recording: [batch, 256, windows]."""
    return nn.Sequential(nn.Conv1d(1, width, WINDOW, STEP), nn.ReLU(), nn.Conv1d(width, 256, 3, padding=1))


def main(url: str, checkpoint: str, epochs: int = 1) -> None:
    device = start()
    model = DistributedDataParallel(network().to(device))
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    rule = penstock.budget(length="wave", global_tokens=80_000)
    loader = penstock.torch.Loader(dataset(url), batch_by=rule, tail="drop", device=device)
    checkpoints = Checkpoints(checkpoint, model, optimiser, loader)
    step = checkpoints.resume()
    while loader.epoch < epochs:
        for batch in loader:
            scores = model(batch["wave"][:, None]).log_softmax(1).permute(2, 0, 1)
            windows = (batch["is_wave"].sum(1) - WINDOW) // STEP + 1
            tokens = batch["tokens"]
            loss = nn.functional.ctc_loss(scores, tokens.values, windows, tokens.offsets.diff(), zero_infinity=True)
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

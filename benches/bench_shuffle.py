# SPDX-License-Identifier: Apache-2.0
"""Compares a shuffle window with a full shuffle: serial correlation of positions, and a training curve.

    python benches/bench_shuffle.py [--objects 200] [--each 100]

Samples are sorted by class across the objects, which is the worst case. The training is a small softmax regression on
synthetic features; only the small files that define the dataset are read. The script prints a table whose first row is
a full shuffle by NumPy.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np

import penstock
from penstock import _native

CLASSES, FEATURES, BATCH, RATE = 10, 16, 64, 0.5


def dataset(folder: Path, objects: int, each: int) -> penstock.Dataset:
    frame = _native.encode_tfrecord({"y": [1.0]}) * each
    for number in range(objects):
        (folder / f"{number:05d}.tfrecord").write_bytes(frame)
    return penstock.open(folder, records_per_object=each).fields(y=penstock.tensor("float32", (1,)))


def correlation(order: np.ndarray) -> float:
    """Correlation of the stored positions of consecutive samples: 0 for a full shuffle, 1 for storage order."""
    return float(np.corrcoef(order[:-1], order[1:])[0, 1])


def repeats(order: np.ndarray, each: int) -> float:
    """Mean share of a batch's samples that come from the same object as another sample of that batch."""
    batches = order[: len(order) // BATCH * BATCH].reshape(-1, BATCH) // each
    return float(np.mean([1 - len(set(batch.tolist())) / BATCH for batch in batches]))


def curve(orders: list[np.ndarray], x: np.ndarray, labels: np.ndarray) -> list[float]:
    """Loss over all samples after each epoch of plain SGD."""
    weights, losses = np.zeros((FEATURES, CLASSES)), []
    hot = np.eye(CLASSES)[labels]
    for order in orders:
        for at in range(0, len(order) - BATCH + 1, BATCH):
            rows = order[at : at + BATCH]
            logits = x[rows] @ weights
            soft = np.exp(logits - logits.max(1, keepdims=True))
            soft /= soft.sum(1, keepdims=True)
            weights -= RATE * x[rows].T @ (soft - hot[rows]) / BATCH
        logits = x @ weights
        logits -= logits.max(1, keepdims=True)
        losses.append(float(np.mean(np.log(np.exp(logits).sum(1)) - logits[np.arange(len(x)), labels])))
    return losses


def orders(source: penstock.Dataset, each: int, window: int, epochs: int) -> list[np.ndarray]:
    course = source.shuffle(1, window=window).course()
    samples = course.samples
    return [
        np.array([number * each + record for _, number, record in course.places(epoch, range(samples))])
        for epoch in range(epochs)
    ]


def measure(
    objects: int, each: int, windows: list[int], epochs: int = 3
) -> list[tuple[str, float, float, list[float]]]:
    samples = objects * each
    draw = np.random.default_rng(0)
    labels = np.arange(samples) * CLASSES // samples
    x = draw.normal(size=(CLASSES, FEATURES))[labels] + draw.normal(size=(samples, FEATURES)) * 1.5
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        source = dataset(Path(folder), objects, each)
        full = [draw.permutation(samples) for _ in range(epochs)]
        for name, made in [("full", full)] + [(str(w), orders(source, each, w, epochs)) for w in windows]:
            rows.append((name, correlation(made[0]), repeats(made[0], each), curve(made, x, labels)))
    return rows


def main() -> None:
    parse = argparse.ArgumentParser()
    parse.add_argument("--objects", type=int, default=200)
    parse.add_argument("--each", type=int, default=100)
    arguments = parse.parse_args()
    print(f"{'window':>8} {'correlation':>12} {'same object':>12}  loss after epochs 1, 2, 3")
    for name, serial, same, losses in measure(arguments.objects, arguments.each, [1, 2, 4, 8, 16, 64]):
        print(f"{name:>8} {serial:12.4f} {same:12.3f}  {', '.join(f'{loss:.4f}' for loss in losses)}")


if __name__ == "__main__":
    main()

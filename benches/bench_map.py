# SPDX-License-Identifier: Apache-2.0
"""Compares `Dataset.map(fn, workers=N)` with a torch DataLoader of N workers: wall and CPU-seconds of the same function.

    python benches/bench_map.py [--workers 2] [--samples 2000]

Interleaved A/B with five repeats after one warm-up each; the results are medians, and the bytes of all batches are
compared. The DataLoader reads through `penstock.torch.MapDataset`, so both sides use the same decoder. The comparison
therefore measures only the transport between processes.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import resource
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

SIDE = 96


def transform(sample, seed):
    """A typical image pipeline: a crop, a flip, a cast and a normalisation."""
    draw = np.random.default_rng(seed)
    top, left = draw.integers(0, SIDE - 64, 2)
    image = sample["x"][top : top + 64, left : left + 64]
    if draw.random() < 0.5:
        image = image[:, ::-1]
    image = (image.astype(np.float32) / 255 - 0.45) / 0.22
    return {"x": np.ascontiguousarray(image.transpose(2, 0, 1)), "y": sample["y"][0]}


def cpu_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def timed(work) -> tuple[float, float, str]:
    """Wall and CPU seconds, including the workers and their start, and a hash of the batches."""
    began, used, seen = time.perf_counter(), cpu_s(), hashlib.blake2b(digest_size=8)
    for x, y in work():
        seen.update(np.ascontiguousarray(x).data)
        seen.update(np.ascontiguousarray(y, dtype=np.float64).data)
    return time.perf_counter() - began, cpu_s() - used, seen.hexdigest()


def main() -> None:
    import torch

    import penstock
    from penstock import _native

    parse = argparse.ArgumentParser()
    parse.add_argument("--workers", type=int, default=2)
    parse.add_argument("--samples", type=int, default=2000)
    parse.add_argument("--repeats", type=int, default=5)
    arguments = parse.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        draw = np.random.default_rng(0)
        for number in range(arguments.samples // 10):
            images = draw.integers(0, 255, (10, SIDE, SIDE, 3), dtype=np.uint8)
            frames = (_native.encode_tfrecord({"x": image.tobytes(), "y": [float(number)]}) for image in images)
            (Path(folder) / f"{number:04d}.tfrecord").write_bytes(b"".join(frames))
        source = penstock.open(folder).fields(
            x=penstock.tensor("uint8", (SIDE, SIDE, 3)), y=penstock.tensor("float32", (1,))
        )

        def ours():
            loader = penstock.Loader(source.map(transform, workers=arguments.workers), batch_size=32, rank=0, world=1)
            for batch in loader:
                yield batch["x"], batch["y"]
            loader.worker_pool().end()

        def theirs():
            loader = torch.utils.data.DataLoader(
                penstock.torch.MapDataset(source.map(transform)),
                batch_size=32,
                num_workers=arguments.workers,
                multiprocessing_context="spawn",
            )
            for batch in loader:
                yield batch["x"].numpy(), batch["y"].numpy()

        rows = {"penstock": [], "DataLoader": []}
        for repeat in range(arguments.repeats + 1):
            for name, work in (("penstock", ours), ("DataLoader", theirs)):
                found = timed(work)
                if repeat:
                    rows[name].append(found)
    assert len({row[2] for found in rows.values() for row in found}) == 1, "both give the same bytes"
    wall, cpu = ({name: statistics.median(row[at] for row in found) for name, found in rows.items()} for at in (0, 1))
    print(
        f"{arguments.workers} workers, {arguments.samples} samples, {_native.__profile__} build, load {os.getloadavg()[0]:.1f}"
    )
    for name in rows:
        print(f"{name:>12}: {wall[name]:.2f} s wall, {cpu[name]:.2f} s CPU")
    print(
        f"       ratio: {wall['DataLoader'] / wall['penstock']:.2f}x wall, {cpu['DataLoader'] / cpu['penstock']:.2f}x CPU"
    )


if __name__ == "__main__":
    main()

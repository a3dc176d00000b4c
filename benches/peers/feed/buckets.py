# SPDX-License-Identifier: Apache-2.0
"""Compares length-bucketed, padded batches with `tf.data`'s `bucket_by_sequence_length`, on the same TFRecords.

    python benches/peers/feed/buckets.py [--tf PYTHON] [--passes N] [--json FILE]

Each pass reads one epoch of shuffled samples into padded batches of the same buckets, in a separate process, by turns.
TensorFlow runs in its own environment (`kit.py tfdata`). Both start with files in the page cache.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]

BOUNDARIES = [64, 128, 256, 512, 1024]
SIZES = [512, 256, 128, 64, 32]

OURS = """
import json, sys, time
import penstock as ps
folder, boundaries, sizes = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
ds = ps.open(folder).fields(tokens=ps.ragged("int64").padded("bucket", mask="mask"), label=ps.tensor("int64", ()))
loader = ps.Loader(ds.shuffle(seed=1), batch_by=ps.buckets("tokens", boundaries, sizes), rank=0, world=1)
for _ in range(2):  # the first pass warms up
    began, samples, tokens, cells = time.perf_counter(), 0, 0, 0
    for batch in loader:
        samples, cells = samples + len(batch["label"]), cells + batch["tokens"].size
        tokens += int(batch["mask"].sum())
    seconds = time.perf_counter() - began
print(json.dumps({"samples": samples, "tokens": tokens, "cells": cells, "seconds": seconds, "cpu_s": time.process_time()}))
"""

THEIRS = """
import json, sys, time, glob
import tensorflow as tf
folder, boundaries, sizes = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
features = {"tokens": tf.io.VarLenFeature(tf.int64), "label": tf.io.FixedLenFeature((), tf.int64)}
def parsed(raw):
    found = tf.io.parse_single_example(raw, features)
    return {"tokens": tf.sparse.to_dense(found["tokens"]), "label": found["label"]}
auto = tf.data.AUTOTUNE
files = tf.data.Dataset.from_tensor_slices(sorted(glob.glob(folder + "/*.tfrecord"))).shuffle(1000, seed=1)
ds = files.interleave(tf.data.TFRecordDataset, cycle_length=16, num_parallel_calls=auto, deterministic=True)
ds = ds.shuffle(8192, seed=1).map(parsed, num_parallel_calls=auto, deterministic=True)
# TensorFlow's boundaries are exclusive, and batches are padded to boundary - 1.
ds = ds.bucket_by_sequence_length(
    lambda one: tf.shape(one["tokens"])[0], [bound + 1 for bound in boundaries], [*sizes, 1],
    padded_shapes={"tokens": [None], "label": []}, pad_to_bucket_boundary=True,
)
def masked(batch):
    # No sample contains the token 0, so a 0 is padding.
    return {**batch, "mask": tf.not_equal(batch["tokens"], 0)}
ds = ds.map(masked, num_parallel_calls=auto).prefetch(auto)
for _ in range(2):
    began, samples, tokens, cells = time.perf_counter(), 0, 0, 0
    for batch in ds.as_numpy_iterator():
        samples, cells = samples + len(batch["label"]), cells + batch["tokens"].size
        tokens += int(batch["mask"].sum())
    seconds = time.perf_counter() - began
print(json.dumps({"samples": samples, "tokens": tokens, "cells": cells, "seconds": seconds, "cpu_s": time.process_time()}))
"""


def write(folder: Path, shards: int, each: int) -> None:
    """Writes TFRecords of lognormal lengths, 1 to 1,024 tokens, median 180."""
    import numpy as np

    from penstock import _native

    random = np.random.default_rng(1)
    for shard in range(shards):
        with (folder / f"train-{shard:04d}.tfrecord").open("wb") as out:
            for length in random.lognormal(5.2, 0.8, each).astype(int).clip(1, 1024):
                tokens = random.integers(1, 50_000, length).tolist()
                out.write(_native.encode_tfrecord({"tokens": tokens, "label": [int(length)]}))


def one(python: str, program: str, folder: Path, env: dict[str, str]) -> dict[str, float]:
    """Runs one contestant and returns the figures of its second pass."""
    argv = [python, "-c", program, str(folder), json.dumps(BOUNDARIES), json.dumps(SIZES)]
    done = subprocess.run(argv, env={**os.environ, **env}, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Prints samples per second of both, by passes, and the ratio of the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tf", default=str(ROOT / ".tools/peers/tfdata/bin/python"))
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--shards", type=int, default=16)
    parser.add_argument("--each", type=int, default=8192)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write(folder, options.shards, options.each)
        env = {"PENSTOCK_CACHE": str(folder / "cache")}
        rows = []
        for _ in range(options.passes):
            ours = one(sys.executable, OURS, folder, env)
            theirs = one(options.tf, THEIRS, folder, {"TF_CPP_MIN_LOG_LEVEL": "3"})
            if (ours["samples"], ours["tokens"]) != (theirs["samples"], theirs["tokens"]):
                raise SystemExit(f"not the same samples: {ours} and {theirs}")
            rows.append((ours, theirs))
    rates = [[row[at]["samples"] / row[at]["seconds"] for row in rows] for at in (0, 1)]
    ours, theirs = map(statistics.median, rates)
    cells = [rows[0][at]["tokens"] / rows[0][at]["cells"] for at in (0, 1)]
    for name, rate, filled in (("penstock", rates[0], cells[0]), ("tf.data", rates[1], cells[1])):
        shown = ", ".join(f"{value:,.0f}" for value in rate)
        print(f"{name:<9} {statistics.median(rate):>9,.0f} samples/s ({shown}), {filled:.1%} of cells are tokens")
    print(f"ratio     {ours / theirs:>9.2f} at {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    if options.json:
        facts = {"cores": os.cpu_count(), "load": os.getloadavg(), "ratio": ours / theirs, "rows": rows}
        options.json.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()

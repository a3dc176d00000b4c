# SPDX-License-Identifier: Apache-2.0
"""Fit a linear model to arrays in gzip'd files. One background thread reads and decompresses them.

Files that end in `.npy` are not compressed.
"""

import argparse
import gzip
import io
import itertools
import queue
import threading
import time
from pathlib import Path

import numpy as np


def read(path):
    if path.suffix == ".gz":
        with gzip.open(path) as file:
            return np.load(io.BytesIO(file.read()))
    return np.load(path)


def main():
    parse = argparse.ArgumentParser()
    parse.add_argument("folder", type=Path)
    parse.add_argument("--seconds", type=float, default=60)
    parse.add_argument("--ahead", type=int, default=4, help="files read ahead; 0 reads in the main thread")
    args = parse.parse_args()
    paths = itertools.cycle(sorted(args.folder.iterdir()))
    arrays = queue.Queue(max(1, args.ahead))
    is_over = threading.Event()

    def read_ahead():
        while not is_over.is_set():
            arrays.put(read(next(paths)))

    if args.ahead:
        threading.Thread(target=read_ahead, daemon=True).start()
    weights = np.zeros((256, 16), np.float32)
    began = time.monotonic()
    steps = 0
    while time.monotonic() - began < args.seconds:
        array = arrays.get() if args.ahead else read(next(paths))
        rows = array.reshape(-1, 256)[:256].astype(np.float32)
        weights -= 1e-6 * rows.T @ (rows @ weights - rows[:, :16])
        steps += 1
    took_s = time.monotonic() - began
    is_over.set()
    print(f"{steps} steps in {took_s:.1f} s, {steps / took_s:.3f} steps/s")


if __name__ == "__main__":
    main()

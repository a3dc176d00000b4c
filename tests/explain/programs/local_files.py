# SPDX-License-Identifier: Apache-2.0
"""Fit a linear model to files of a folder, each read once per epoch.

`--access files` reads whole files, `random` reads records of 64 KiB at random offsets, `mmap` maps the files.
"""

import argparse
import itertools
import os
import queue
import random
import threading
import time
from pathlib import Path

import numpy as np

RECORD_BYTES = 65_536


def records(paths, access):
    """Yield arrays of one record each, epoch after epoch."""
    draw = random.Random(0)
    for _ in itertools.count():
        if access == "files":
            for path in draw.sample(paths, len(paths)):
                data = path.read_bytes()
                yield np.frombuffer(data, np.uint8)[:RECORD_BYTES]
        else:
            places = [(path, at) for path in paths for at in range(0, path.stat().st_size, RECORD_BYTES)]
            opened = {path: path.open("rb") for path in paths}
            mapped = {path: np.memmap(path, np.uint8, "r") for path in paths} if access == "mmap" else {}
            for path, at in draw.sample(places, len(places)):
                if access == "mmap":
                    yield np.array(mapped[path][at : at + RECORD_BYTES])
                else:
                    yield np.frombuffer(os.pread(opened[path].fileno(), RECORD_BYTES, at), np.uint8)


def main():
    parse = argparse.ArgumentParser()
    parse.add_argument("folder", type=Path)
    parse.add_argument("--seconds", type=float, default=60)
    parse.add_argument("--access", choices=["files", "random", "mmap"], default="files")
    parse.add_argument(
        "--ahead", type=int, default=4, help="records read ahead by a thread; 0 reads in the main thread"
    )
    parse.add_argument("--passes", type=int, default=1, help="gradient steps per record")
    args = parse.parse_args()
    source = records(sorted(p for p in args.folder.iterdir() if p.is_file()), args.access)
    ready = queue.Queue(max(1, args.ahead))
    is_over = threading.Event()

    def read_ahead():
        while not is_over.is_set():
            ready.put(next(source))

    if args.ahead:
        threading.Thread(target=read_ahead, daemon=True).start()
    weights = np.zeros((256, 256), np.float32)
    began = time.monotonic()
    steps = 0
    while time.monotonic() - began < args.seconds:
        record = ready.get() if args.ahead else next(source)
        rows = record.reshape(256, 256).astype(np.float32) / 255
        for _ in range(args.passes):
            weights -= 1e-4 * rows.T @ (rows @ weights - rows)
        steps += 1
    took_s = time.monotonic() - began
    is_over.set()
    print(f"{steps} steps in {took_s:.1f} s, {steps / took_s:.3f} steps/s")


if __name__ == "__main__":
    main()

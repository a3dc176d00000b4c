# SPDX-License-Identifier: Apache-2.0
"""Reads records of TFRecord shards in shuffled order for some seconds, as one client of HDFS. Prints one JSON line: how
late it began, and after each batch, the time and the bytes that were read until then.

Run on a node: hdfs_reader.py URL SEED START SECONDS. It waits for the agreed start, so that all clients read at the same time.
"""

from __future__ import annotations

import json
import sys
import time

import penstock

_READ_AHEAD = 1
_MEMORY_BYTES = 4 << 20  # less than a shard, so that single images are read, as with the published shards


def main() -> None:
    """Arguments: URL, seed, start (Unix seconds), seconds."""
    url, seed, start_s, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])
    # The pictures are not decoded: this measures what the data nodes serve, not what two cores decode.
    dataset = penstock.open(url).fields(image=penstock.raw().of("image/encoded")).cache(False)
    loader = penstock.Loader(
        dataset.shuffle(seed=seed).repeat(1000),
        batch_size=8,
        rank=0,
        world=1,
        max_in_flight=16,
        threads=1,
        memory_bytes=_MEMORY_BYTES,
        read_ahead=_READ_AHEAD,
    )
    batches = iter(loader)
    next(batches)
    late_s = time.time() - start_s
    time.sleep(max(0.0, -late_s))
    # Batches that were read ahead while this client waited would count as bytes of the measured time.
    for _ in range(_READ_AHEAD + 2):
        next(batches)
    marks = [(time.time(), 0)]
    while marks[-1][0] - marks[0][0] < seconds:
        size = sum(len(one) for one in next(batches)["image"])
        marks.append((time.time(), marks[-1][1] + size))
    print(json.dumps({"marks": marks, "late_s": max(0.0, late_s)}), flush=True)


if __name__ == "__main__":
    main()

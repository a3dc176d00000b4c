# SPDX-License-Identifier: Apache-2.0
"""Seconds from `open` to the first batch, over S3 with a latency of 20 ms, on tars that were never read before.

    .venv/bin/python benches/peers/feed/first_batch.py --webdataset PYTHON [--tars 100] [--bytes 100000000] [--repeats 5]

PYTHON is the interpreter of an environment with webdataset and without torch, whose import takes seconds (`uv venv
/tmp/wds && uv pip install webdataset numpy`).
The emulator adds the latency to every request. The tars hold records of 100 KB with a number. Two orders are compared:

* stored: the objects in the order of their names;
* shuffled: Penstock mixes windows of 4 objects; WebDataset shuffles shards, and fills a buffer of as many samples.

Each run is a new process without caches, from `import` to the first batch of 32 samples, and to the tenth, peers
interleaved. Penstock's folder of record indexes is new in each run. WebDataset reads through `pipe:curl`, its way to S3
without other packages; curl signs the requests.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

from data import add_member

from penstock.emulator import Emulator

RECORD_BYTES = 100_000
BATCH = 32
TENTH = 10
WINDOW = 4

_TIERS = """
schema_version = 1
[[tier]]
name = "far"
year = 2026
title = "20 ms to the first byte"
[[tier.latency]]
what = "read"
p50_ms = 20.0
p99_ms = 20.1
source = "this benchmark"
as_of = "2026-11"
confidence = "ours"
"""

PENSTOCK = """
import json, sys, time
began = time.perf_counter()
import penstock
url, shuffled, window = sys.argv[1], sys.argv[2] == "shuffled", int(sys.argv[3])
dataset = penstock.open(url).fields(x=penstock.tensor("uint8", (int(sys.argv[4]),)).of("bin")).cache(False)
dataset = dataset.shuffle(1, window) if shuffled else dataset
batches = iter(penstock.Loader(dataset, batch_size=int(sys.argv[5])))
batch = next(batches)
first = time.perf_counter() - began
for _ in range(int(sys.argv[7]) - 1): next(batches)
print(json.dumps([first, time.perf_counter() - began, len(batch["x"])]), flush=True)
import os; os._exit(0)
"""

WEBDATASET = """
import json, sys, time
began = time.perf_counter()
import numpy as np, webdataset as wds
curl, shuffled, buffer, tars = sys.argv[1], sys.argv[2] == "shuffled", int(sys.argv[3]), int(sys.argv[6])
urls = [f"pipe:{curl}{number:04d}.tar" for number in range(tars)]
pipe = wds.WebDataset(urls, shardshuffle=100 if shuffled else False, seed=1, empty_check=False)
pipe = pipe.shuffle(buffer, initial=buffer) if shuffled else pipe
pipe = pipe.map(lambda sample: np.frombuffer(sample["bin"], np.uint8)).batched(int(sys.argv[5]), collation_fn=np.stack)
batches = iter(pipe)
batch = next(batches)
first = time.perf_counter() - began
for _ in range(int(sys.argv[7]) - 1): next(batches)
print(json.dumps([first, time.perf_counter() - began, len(batch)]), flush=True)
import os; os._exit(0)
"""


def write(folder: Path, tars: int, size: int) -> int:
    """Write the tars, and return the records in each. Only the first ten are files of their own, to save disk space."""
    each = max(size // (RECORD_BYTES + 1024), 1)
    payload = os.urandom(RECORD_BYTES)
    for number in range(min(tars, 10)):
        with tarfile.open(folder / f"{number:04d}.tar", "w", format=tarfile.USTAR_FORMAT) as out:
            for row in range(each + number % 3):
                add_member(out, f"{number:04d}{row:06d}.bin", payload)
    for number in range(10, tars):
        (folder / f"{number:04d}.tar").hardlink_to(folder / f"{number % 10:04d}.tar")
    return each


def timed(argv: list[str], environment: dict[str, str]) -> tuple[float, float]:
    """Run one peer, and return its seconds to the first and to the tenth batch."""
    with tempfile.TemporaryDirectory() as cache:
        environment = {**environment, "PENSTOCK_CACHE": cache, "PENSTOCK_SCRATCH": ""}
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    first, tenth, samples = json.loads(done.stdout.splitlines()[-1])
    if samples != BATCH:
        raise SystemExit(f"{argv[0]}: a batch of {samples}")
    return float(first), float(tenth)


def main() -> int:
    """Print one JSON line per order and peer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--webdataset", required=True, metavar="PYTHON")
    parser.add_argument("--tars", type=int, default=100)
    parser.add_argument("--bytes", type=int, default=100_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where the tars are written")
    parser.add_argument("--json", type=Path, help="file for the results")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as made:
        folder = Path(made)
        each = write(folder, given.tars, given.bytes)
        tiers = folder.parent / f"{folder.name}-tiers.toml"
        tiers.write_text(_TIERS)
        with Emulator(folder, tier="far", tiers=tiers) as server:
            tiers.unlink()
            curl = f"curl -s -f --aws-sigv4 aws:amz:{server.region}:s3 --user {server.access_key}:{server.secret_key}"
            curl += f" -H 'x-amz-content-sha256: UNSIGNED-PAYLOAD' {server.endpoint}/{server.url.removeprefix('s3://')}"
            found: dict[str, list[tuple[float, float]]] = {}
            loads = [os.getloadavg()[0]]
            for _ in range(given.repeats):
                for order in ("stored", "shuffled"):
                    more = [str(RECORD_BYTES), str(BATCH), str(given.tars), str(TENTH)]
                    ours = [sys.executable, "-c", PENSTOCK, server.url, order, str(WINDOW), *more]
                    theirs = [given.webdataset, "-c", WEBDATASET, curl, order, str(WINDOW * each), *more]
                    base = {**os.environ, **server.env}
                    found.setdefault(f"penstock {order}", []).append(timed(ours, base))
                    found.setdefault(f"webdataset {order}", []).append(timed(theirs, base))
                    loads.append(os.getloadavg()[0])
                    time.sleep(0.5)
    rows = []
    for order in ("stored", "shuffled"):
        for at, batch in enumerate(("first", "tenth")):
            ours, theirs = (
                statistics.median(each[at] for each in found[f"{peer} {order}"]) for peer in ("penstock", "webdataset")
            )
            row = {"order": order, "batch": batch, "penstock_s": ours, "webdataset_s": theirs, "ratio": ours / theirs}
            rows.append({**row, "tars": given.tars, "tar_bytes": given.bytes, "load": [min(loads), max(loads)]})
            print(json.dumps(rows[-1]))
    if given.json:
        given.json.write_text(json.dumps({"rows": rows, "runs": found}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

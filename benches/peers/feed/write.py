# SPDX-License-Identifier: Apache-2.0
"""Compares the writers of datasets: equal samples into shards of equal size on one local disk.

    .venv/bin/python benches/peers/feed/write.py [--peers .tools/peers] [--samples 4000] [--repeat 5] [--json FILE]

Two kinds of samples: `images` (100 KB of noise as bytes, and an integer) and `small` (a 16-element float32 array, an
integer and a short text). Each writer runs in a process and an environment of its own (kit.py installs them), in turns.
Printed: median MB/s of the samples' values, samples/s, CPU seconds of the process, and the ratios of these rates to
those of Penstock with the same format. The folder is synced and removed between runs; the write itself is to the page
cache, except that Penstock syncs each shard. With `--folder /dev/shm`, a sync costs nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SHARD = 64_000_000

COMMON = """
import json, os, resource, sys, time
import numpy as np
kind, folder, count, shard = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
noise = np.random.default_rng(0).integers(0, 256, 4_000_000, np.uint8).tobytes()
array = np.arange(16, dtype=np.float32)
if kind == "images":
    def samples():
        for at in range(count):
            start = at * 9973 % 3_900_000
            yield {"jpg": noise[start:start + 100_000], "label": at % 1000}
    size = count * 100_008
else:
    def samples():
        for at in range(count):
            yield {"x": array + at, "label": at % 1000, "text": "a short text %d" % at}
    size = count * 88
def report(began):
    used = resource.getrusage(resource.RUSAGE_SELF)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = used.ru_utime + used.ru_stime + children.ru_utime + children.ru_stime - cpu_before
    print(json.dumps({"wall_s": time.perf_counter() - began, "cpu_s": cpu, "size": size}))
def begin():
    global cpu_before
    used = resource.getrusage(resource.RUSAGE_SELF)
    cpu_before = used.ru_utime + used.ru_stime
    return time.perf_counter()
"""

PENSTOCK = """
import penstock
penstock.write(({"a": b""} for _ in range(1)), folder + "-warm", format=%r)
began = begin()
penstock.write(samples(), folder, format=%r, shard_bytes=shard)
report(began)
"""

CODE = {
    "penstock-tar": PENSTOCK % ("tar", "tar"),
    "penstock-tfrecord": PENSTOCK % ("tfrecord", "tfrecord"),
    "penstock-parquet": PENSTOCK % ("parquet", "parquet"),
    "webdataset": """
import webdataset
os.makedirs(folder)
began = begin()
with webdataset.ShardWriter(folder + "/s-%06d.tar", maxsize=shard, maxcount=10**9, verbose=0) as sink:
    for at, one in enumerate(samples()):
        if kind == "images":
            sink.write({"__key__": "%09d" % at, "jpg": one["jpg"], "cls": one["label"]})
        else:
            sink.write({"__key__": "%09d" % at, "npy": one["x"], "cls": one["label"], "txt": one["text"]})
report(began)
""",
    "pyarrow": """
import pyarrow as pa, pyarrow.parquet as pq
os.makedirs(folder)
if kind == "images":
    schema, each = pa.schema([("jpg", pa.binary()), ("label", pa.int64())]), 100_008
else:
    schema = pa.schema([("x", pa.list_(pa.float32(), 16)), ("label", pa.int64()), ("text", pa.string())])
    each = 88
began = begin()
out, number, filled = None, 0, 0
columns = {name: [] for name in schema.names}
rows = 0
def flush():
    global out, filled, number, rows, columns
    if out is None:
        out, filled = pq.ParquetWriter(folder + "/s-%06d.parquet" % number, schema, compression="none"), 0
        number += 1
    out.write_table(pa.table(columns, schema=schema))
    filled += rows * each
    columns, rows = {name: [] for name in schema.names}, 0
    if filled >= shard:
        out.close()
        out = None
for one in samples():
    for name, column in columns.items():
        column.append(one[name])
    rows += 1
    if rows * each >= 16 << 20:
        flush()
if rows:
    flush()
if out is not None:
    out.close()
report(began)
""",
    "tfdata": """
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow as tf
os.makedirs(folder)
F, B, I, X = tf.train.Feature, tf.train.BytesList, tf.train.Int64List, tf.train.FloatList
began = begin()
out, filled, number = None, 0, 0
for one in samples():
    if out is None:
        out, filled = tf.io.TFRecordWriter(folder + "/s-%06d.tfrecord" % number), 0
        number += 1
    if kind == "images":
        features = {"jpg": F(bytes_list=B(value=[one["jpg"]]))}
    else:
        features = {"x": F(float_list=X(value=one["x"])), "text": F(bytes_list=B(value=[one["text"].encode()]))}
    features["label"] = F(int64_list=I(value=[one["label"]]))
    record = tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()
    out.write(record)
    filled += len(record)
    if filled >= shard:
        out.close()
        out = None
if out is not None:
    out.close()
report(began)
""",
    "mosaicml": """
from streaming import MDSWriter
columns = {"jpg": "bytes", "label": "int"} if kind == "images" else {"x": "ndarray", "label": "int", "text": "str"}
began = begin()
with MDSWriter(out=folder, columns=columns, size_limit=shard) as out:
    for one in samples():
        out.write(one)
report(began)
""",
    "litdata": """
from litdata.streaming.writer import BinaryWriter
os.makedirs(folder)
began = begin()
writer = BinaryWriter(folder, chunk_bytes=shard)
for at, one in enumerate(samples()):
    writer.add_item(at, one)
writer.done()
writer.merge()
report(began)
""",
}


OURS = {"webdataset": "penstock-tar", "tfdata": "penstock-tfrecord", "pyarrow": "penstock-parquet"}
"""Penstock's writer of the same format. MosaicML and LitData have formats of their own, and are compared with TFRecord."""


def python_of(name: str, peers: Path) -> Path | None:
    """Interpreter of a writer; None if its environment is missing."""
    if name.startswith("penstock") or name == "pyarrow":
        return Path(sys.executable)
    python = peers / name / "bin/python"
    return python if python.exists() else None


def once(name: str, python: Path, kind: str, count: int, folder: Path) -> dict[str, float]:
    """Run one writer once."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if name.startswith("penstock"):
        environment["PYTHONPATH"] = str(ROOT / "python")
    done = subprocess.run(
        [str(python), "-c", COMMON + CODE[name], kind, str(folder / "out"), str(count), str(SHARD)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    for left in folder.iterdir():
        shutil.rmtree(left)
    os.sync()
    if done.returncode:
        raise RuntimeError(f"{name}: {done.stderr[-1500:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> int:
    """Run all writers in turns, and print a table for each kind of sample."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", type=Path, default=ROOT / ".tools/peers")
    parser.add_argument("--samples", type=int, default=4000)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="parent of the written folders")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--writers", default=",".join(CODE), help="names, separated by commas")
    options = parser.parse_args()
    pythons = {
        name: python for name in options.writers.split(",") if (python := python_of(name, options.peers)) is not None
    }
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; missing: {sorted(set(CODE) - set(pythons))}")
    rows = []
    loads = [os.getloadavg()[0]]
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for kind, count in (("images", options.samples), ("small", 10 * options.samples)):
            runs: dict[str, list[dict[str, float]]] = {name: [] for name in pythons}
            for _ in range(options.repeat):
                for name, python in pythons.items():
                    runs[name].append(once(name, python, kind, count, Path(folder)))
                    loads.append(os.getloadavg()[0])
            medians = {
                name: {key: statistics.median(run[key] for run in found) for key in ("wall_s", "cpu_s")}
                for name, found in runs.items()
            }
            for name, found in runs.items():
                row = medians[name]
                ours = medians.get(name if name.startswith("penstock") else OURS.get(name, "penstock-tfrecord"), row)
                ratios = {f"{key[:-2]}_ratio": row[key] / ours[key] for key in row}
                rate = found[0]["size"] / row["wall_s"]
                rows.append({"kind": kind, "writer": name, **row, "bytes_per_s": rate, **ratios, "runs": found})
                print(
                    f"{kind:7} {name:18} {rate / 1e6:8.1f} MB/s {count / row['wall_s']:10,.0f} samples/s"
                    f" {row['cpu_s']:6.2f} CPU s; wall {ratios['wall_ratio']:.2f} x, CPU {ratios['cpu_ratio']:.2f} x"
                )
    print(f"load {min(loads):.1f} to {max(loads):.1f}")
    if options.json:
        result = {
            "load": [min(loads), max(loads)],
            "cores": os.cpu_count(),
            "folder": str(options.folder),
            "rows": rows,
        }
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

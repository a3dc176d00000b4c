# SPDX-License-Identifier: Apache-2.0
"""Compares Penstock with other programs on volumes: SEG-Y to Zarr and back, SEG-Y and Zarr writes, and slices.

    .venv/bin/python benches/peers/arrays/speed.py --peer-python PEERS/bin/python [convert] [back] [segy] [zarr] [slices]
        [whole] [writers] [--side 768] [--samples 512] [--repeats 3] [--scratch DIR]

The peers' environment: `uv venv --python 3.12 PEERS; uv pip install multidimio segyio zarr tensorstore h5py s3fs
obstore "dask[array]"`. Each contestant is a separate process. CPU seconds cover the process and its children. Wall time
covers only the work; imports are in `start`. The contestants take turns. Rows go to runs/bench/peers-arrays.jsonl. The
table has medians, and ratios of peer to Penstock; above 1, Penstock is faster. After every run, the SHA-256 of the
samples that a contestant wrote or read is checked. The slices are read from a bucket of `penstock emulate` whose
requests take 20 ms. Each contestant first reads another slice in the same direction, so that connections are open and
shard indexes are cached.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

TIER = """schema_version = 1
[[tier]]
name = "twenty-ms"
year = 2026
title = "requests of 20 ms"
[[tier.latency]]
what = "read"
p50_ms = 20.0
p99_ms = 20.0
source = "benches/peers/arrays"
as_of = "2026-11"
confidence = "ours"
"""

# Each takes its inputs from `a` (a dict), does its work between the two marks, and prints nothing.
OURS = {
    "convert": "from penstock.arrays.convert.run import convert\nmark()\nconvert(a['segy'], a['out'], codec=a['codec'], chunks=a['chunks'], shards='none')\nmark()",
    "convert-sharded": "from penstock.arrays.convert.run import convert\nmark()\nconvert(a['segy'], a['out'], codec=a['codec'])\nmark()",
    "back": "from penstock.arrays.convert.run import convert\nmark()\nconvert(a['ours'], a['out'])\nmark()",
    "segy": "from penstock.arrays.create import create_segy\nfrom penstock.arrays.location import Location\nv = np.load(a['npy'])\nmark()\ncreate_segy(Location(a['out']), v, ('inline', 'crossline', 'time'))\nmark()",
    "slices": (
        "import penstock.arrays as p\nv = p.open(a['url'])\n"
        "for w, k in cuts(v.shape):\n    _ = v[w]\n    b = v.stats(); mark(); x = v[k]; mark(); c = v.stats()\n"
        "    note(x, requests=c['requests'] - b['requests'], bytes=c['bytes_read'] - b['bytes_read'], needed=c['bytes_needed'] - b['bytes_needed'])"
    ),
    "whole": "import penstock.arrays as p\nv = p.open(a['url'])\nmark(); x = v[...]; mark(); note(x)",
}
PEERS = {
    "convert": {
        "mdio": (
            "import os\nos.environ['MDIO__IMPORT__SAVE_SEGY_FILE_HEADER'] = '1'\nos.environ['MDIO__IMPORT__CPU_COUNT'] = a['workers']\n"
            "from mdio import segy_to_mdio\nfrom mdio.builder.template_registry import TemplateRegistry\nfrom segy.standards import get_segy_standard\n"
            "from segy.schema import ScalarType, HeaderField\n"
            "if __name__ == '__main__':\n"
            "    spec = get_segy_standard(1.0)\n    spec.trace.data.format = ScalarType.FLOAT32\n"
            "    t = TemplateRegistry().get('PostStack3DTime')\n    mark()\n    segy_to_mdio(spec, t, a['segy'], a['out'], overwrite=True)\n    mark()"
        ),
        "segyio+zarr": (
            "import segyio, zarr\nfrom zarr.codecs import BloscCodec\nmark()\n"
            "with segyio.open(a['segy']) as f:\n    f.mmap()\n    n = (len(f.ilines), len(f.xlines), len(f.samples))\n"
            "    cname = {'lz4': 'lz4', 'blosc-zstd': 'zstd'}[a['codec']]\n"
            "    z = zarr.create_array(a['out'], shape=n, chunks=(128, 128, 128), dtype='f4', compressors=BloscCodec(cname=cname, clevel=5, shuffle='shuffle', typesize=4))\n"
            "    for s in range(0, n[0], 128):\n        z[s:s + 128] = np.stack([f.iline[i] for i in f.ilines[s:s + 128]])\nmark()"
        ),
    },
    "back": {
        "mdio": (
            "from mdio import mdio_to_segy\nfrom segy.standards import get_segy_standard\nfrom segy.schema import ScalarType\n"
            "if __name__ == '__main__':\n    spec = get_segy_standard(1.0)\n    spec.trace.data.format = ScalarType.FLOAT32\n    mark()\n    mdio_to_segy(spec, a['mdio'], a['out'])\n    mark()"
        )
    },
    "segy": {
        "segyio": "import segyio\nv = np.load(a['npy'])\nmark()\nsegyio.tools.from_array3D(a['out'], v, format=5, dt=4000)\nmark()"
    },
    "zarr": {
        "zarr-python default": "import zarr\nv = np.load(a['npy'])\nmark()\nzarr.create_array(a['out'], data=v)\nmark()",
        "zarr-python lz4 sharded": (
            "import zarr\nfrom zarr.codecs import BloscCodec\nv = np.load(a['npy'])\nmark()\n"
            "zarr.create_array(a['out'], data=v, chunks=(64, 64, 64), shards=(128, 128, v.shape[2]), compressors=BloscCodec(cname='lz4', clevel=5, shuffle='shuffle', typesize=4))\nmark()"
        ),
        "tensorstore": (
            "import tensorstore as ts\nv = np.load(a['npy'])\nmark()\n"
            "t = ts.open({'driver': 'zarr3', 'kvstore': {'driver': 'file', 'path': a['out']}, 'metadata': {'shape': list(v.shape), 'data_type': 'float32',"
            " 'chunk_grid': {'name': 'regular', 'configuration': {'chunk_shape': [128, 128, v.shape[2]]}},"
            " 'codecs': [{'name': 'sharding_indexed', 'configuration': {'chunk_shape': [64, 64, 64], 'codecs': [{'name': 'bytes', 'configuration': {'endian': 'little'}},"
            " {'name': 'blosc', 'configuration': {'cname': 'lz4', 'clevel': 5, 'shuffle': 'shuffle', 'typesize': 4, 'blocksize': 0}}]}}]}}, create=True).result()\n"
            "t.write(v).result()\nmark()"
        ),
    },
    "slices": {
        "zarr-python": (
            "import zarr, s3fs\nz = zarr.open_array(zarr.storage.ObjectStore(store(a)) , path='amplitude', mode='r')\n"
            "for w, k in cuts(z.shape):\n    _ = z[w]\n    mark(); x = z[k]; mark(); note(x)"
        ),
        "tensorstore": (
            "import tensorstore as ts\nt = ts.open(spec(a)).result()\n"
            "for w, k in cuts(t.shape):\n    _ = t[w].read().result()\n    mark(); x = t[k].read().result(); mark(); note(x)"
        ),
        "h5py over ranges": (
            "import h5py, s3fs\nfs = s3fs.S3FileSystem(key=a['key'], secret=a['secret'], endpoint_url=a['endpoint'])\n"
            "f = h5py.File(fs.open(a['bucket'] + '/a.h5', block_size=1 << 20, cache_type='readahead'), 'r')\nd = f['amplitude']\n"
            "for w, k in cuts(d.shape):\n    _ = d[w]\n    mark(); x = d[k]; mark(); note(x)"
        ),
    },
    "whole": {
        "zarr-python": "import zarr\nz = zarr.open_array(zarr.storage.ObjectStore(store(a)), path='amplitude', mode='r')\nmark(); x = z[...]; mark(); note(x)",
        "tensorstore": "import tensorstore as ts\nt = ts.open(spec(a)).result()\nmark(); x = t.read().result(); mark(); note(x)",
    },
}
PRELUDE = """
import hashlib, json, sys, time
import numpy as np
a = json.load(open(sys.argv[1]))
marks, notes = [], []
def mark(): marks.append(time.perf_counter())
def note(x, **more): notes.append({"sha256": hashlib.sha256(np.ascontiguousarray(x).tobytes()).hexdigest(), **more})
def cuts(s):
    # For each dimension: a slice that warms connections and shard indexes, and the measured slice in the next chunk.
    n = [side // 2 + 3 for side in s]
    return [(np.s_[n[0] - 64], np.s_[n[0]]), (np.s_[:, n[1] - 64], np.s_[:, n[1]]), (np.s_[:, :, n[2] - 64], np.s_[:, :, n[2]])]
def store(a):
    from obstore.store import S3Store
    return S3Store(a["bucket"], endpoint=a["endpoint"], access_key_id=a["key"], secret_access_key=a["secret"], region="us-east-1",
                   client_options={"allow_http": True}, prefix="a.zarr")
def spec(a):
    return {"driver": "zarr3", "kvstore": {"driver": "s3", "bucket": a["bucket"], "path": "a.zarr/amplitude/", "endpoint": a["endpoint"], "aws_region": "us-east-1",
            "aws_credentials": {"type": "environment"}}, "context": {"cache_pool": {"total_bytes_limit": 100000000}}}
"""
EPILOGUE = """
if __name__ == "__main__":
    import resource
    own = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
    peak = 1024 * max(own, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
    json.dump({"marks": marks, "notes": notes, "peak_bytes": peak}, open(sys.argv[1] + ".out", "w"))
"""


def run(python: str, code: str, facts: dict[str, Any], scratch: Path) -> dict[str, Any]:
    """One contestant, once: seconds of each marked piece, CPU seconds, peak memory of the process or its largest child."""
    script, given = scratch / "contestant.py", scratch / "given.json"
    script.write_text(PRELUDE + code + EPILOGUE)
    given.write_text(json.dumps(facts))
    environment = {key: value for key, value in os.environ.items() if key not in ("VIRTUAL_ENV", "PYTHONPATH")}
    environment |= facts.get("env", {})
    begin = time.perf_counter()
    child = subprocess.Popen([python, str(script), str(given)], env=environment, cwd=ROOT if python == sys.executable else scratch,
                             stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)  # fmt: skip
    error = child.stderr.read() if child.stderr else b""
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        return {"error": error.decode(errors="replace").strip().splitlines()[-1:]}
    found = json.loads((scratch / "given.json.out").read_text())
    marks = found["marks"]
    return {
        "seconds": [round(end - start, 4) for start, end in zip(marks[::2], marks[1::2], strict=True)],
        "start_seconds": round(time.perf_counter() - begin - (marks[-1] - marks[0]), 2),
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 2),
        # Not wait4's ru_maxrss, which counts the memory of this process before exec.
        "peak_bytes": found["peak_bytes"],
        "notes": found["notes"],
    }


def volume(side: int, samples: int) -> np.ndarray:
    """Recorded-like seismic: layers convolved with a 25 Hz wavelet, a gentle structure, 20 % noise. float32."""
    rng = np.random.default_rng(0)
    at = np.arange(-32, 33) * 0.004
    wavelet = (1 - 2 * (np.pi * 25 * at) ** 2) * np.exp(-((np.pi * 25 * at) ** 2))
    trace = np.convolve(rng.standard_normal(samples) * (rng.random(samples) < 0.1), wavelet, "same").astype(np.float32)
    values = np.empty((side, side, samples), dtype=np.float32)
    for row in range(side):
        shift = (5 * np.sin(np.arange(side) / 60 + row / 80)).astype(int)
        values[row] = trace[(np.arange(samples)[None] - shift[:, None]) % samples]
        values[row] += 0.2 * trace.std() * rng.standard_normal((side, samples)).astype(np.float32)
    return values


def digest(path: Path, python: str, scratch: Path) -> str:
    """SHA-256 of the samples that a contestant wrote."""
    code = "import penstock.arrays as p\nv = p.open(a['path'])\nmark(); mark()\nfor i in range(0, v.shape[0], 64): note(v[i:i + 64])"
    found = run(python, code, {"path": str(path)}, scratch)
    if "error" in found:
        return str(found["error"])
    return hashlib.sha256("".join(each["sha256"] for each in found["notes"]).encode()).hexdigest()[:16]


def writers(scratch: Path, peer: str) -> None:
    """Write boxes smaller than a shard from four processes with dask and zarr-python; print the share of lost samples."""
    code = (
        "import zarr, dask, dask.array as da\nif __name__ == '__main__':\n"
        "    z = zarr.create_array(a['out'], shape=(200, 200, 200), chunks=(50, 50, 50), shards=(100, 100, 100), dtype='f4', overwrite=True)\n"
        "    x = da.ones((200, 200, 200), chunks=(25, 25, 25), dtype='f4')\n    mark()\n"
        "    with dask.config.set(scheduler='processes', num_workers=4):\n        da.store(x, z, lock=False)\n    mark()\n"
        "    lost = float((z[:] != 1).mean()); note(np.zeros(1), lost=lost)"
    )
    found = run(peer, code, {"out": str(scratch / "dask.zarr")}, scratch)
    print(
        f"writers: dask + zarr-python, 4 processes: {found['notes'][0]['lost']:.1%} of the samples lost"
        if "notes" in found
        else found
    )


def main() -> None:
    """Run the chosen figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("topics", nargs="*", default=["convert", "back", "segy", "zarr", "slices", "whole", "writers"])
    parser.add_argument("--peer-python", required=True)
    parser.add_argument("--side", type=int, default=768)
    parser.add_argument("--samples", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--workers", default="1", help="worker processes of MDIO")
    parser.add_argument("--scratch", type=Path)
    options = parser.parse_args()
    scratch = Path(tempfile.mkdtemp(prefix="penstock-arrays-", dir=options.scratch))
    try:
        for row in rows(options, scratch):
            line = json.dumps({"at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **row})
            place = ROOT / "runs/bench/peers-arrays.jsonl"
            place.parent.mkdir(parents=True, exist_ok=True)
            with place.open("a") as out:
                out.write(line + "\n")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def rows(options: argparse.Namespace, scratch: Path) -> Any:
    """Make the inputs that the topics need, then run the contestants in turns."""
    from penstock.arrays.convert.run import convert
    from tests.arrays.segy_files import grid_numbers, write_segy

    side, samples = options.side, options.samples
    values = volume(side, samples)
    np.save(scratch / "v.npy", values)
    inlines, crosslines = grid_numbers(side, side)
    write_segy(scratch / "a.sgy", values.reshape(-1, samples), inlines=inlines, crosslines=crosslines)
    del values
    size = (scratch / "a.sgy").stat().st_size
    print(f"{side} x {side} x {samples} float32, SEG-Y {size / 1e9:.2f} GB, {os.cpu_count()} cores")
    facts = {
        "segy": str(scratch / "a.sgy"),
        "npy": str(scratch / "v.npy"),
        "workers": options.workers,
        "chunks": "128,128,128",
    }
    want = digest(scratch / "a.sgy", sys.executable, scratch)
    for topic in options.topics:
        if topic == "writers":
            writers(scratch, options.peer_python)
        elif topic in ("slices", "whole"):
            yield from stored(topic, options, scratch)
        elif topic == "convert":
            for codec in ("blosc-zstd", "lz4"):
                contestants = {"penstock": OURS["convert"], **PEERS["convert"]}
                yield from duel(f"convert {codec}", contestants, {**facts, "codec": codec}, options, scratch, want)
        elif topic == "zarr":
            code = "from penstock.arrays.writer import create_array\nv = np.load(a['npy'])\nmark()\ncreate_array(a['out'], v.shape, v.dtype, chunks=(64, 64, 64), shards=(128, 128, v.shape[2]))[...] = v\nmark()"
            yield from duel("zarr", {"penstock": code, **PEERS["zarr"]}, facts, options, scratch, want)
        elif topic == "back":
            convert(scratch / "a.sgy", scratch / "kept.zarr", chunks="128,128,128", shards="none", codec="lz4")
            made = run(
                options.peer_python,
                PEERS["convert"]["mdio"],
                {**facts, "codec": "lz4", "out": str(scratch / "kept.mdio")},
                scratch,
            )
            assert "error" not in made, made
            kept = {**facts, "ours": str(scratch / "kept.zarr"), "mdio": str(scratch / "kept.mdio")}
            yield from duel("back", {"penstock": OURS["back"], **PEERS["back"]}, kept, options, scratch, want)
        else:
            yield from duel(topic, {"penstock": OURS[topic], **PEERS[topic]}, facts, options, scratch, want)


def duel(name: str, contestants: dict[str, str], facts: dict[str, Any], options: Any, scratch: Path, want: str) -> Any:
    """Contestants in turns; each writes a new place, which is compared, then removed."""
    found: dict[str, list[dict[str, Any]]] = {each: [] for each in contestants}
    for _ in range(options.repeats):
        for each, code in contestants.items():
            out = scratch / f"out{'.sgy' if name in ('back', 'segy') else '.zarr'}"
            python = sys.executable if each == "penstock" else options.peer_python
            row = run(python, code, {**facts, "out": str(out)}, scratch)
            row["is_same"] = "error" not in row and digest(out, sys.executable, scratch) == want
            found[each].append(row)
            shutil.rmtree(out, ignore_errors=True)
            out.unlink(missing_ok=True)
    yield from table(name, found)


def stored(topic: str, options: Any, scratch: Path) -> Any:
    """Reads of a bucket whose requests take 20 ms."""
    from penstock.arrays.convert.run import convert
    from penstock.emulator import Emulator

    folder = scratch / "store"
    folder.mkdir(exist_ok=True)
    if not (folder / "a.zarr").exists():
        shards = f"128,128,{-(-options.samples // 64) * 64}"
        convert(scratch / "a.sgy", folder / "a.zarr", chunks="64,64,64", shards=shards)
        convert(scratch / "a.sgy", folder / "a.h5", chunks="64,64,64", codec="gzip")
    (scratch / "tiers.toml").write_text(TIER)
    with Emulator(folder, tier="twenty-ms", tiers=scratch / "tiers.toml") as emulator:
        bucket = emulator.url.removeprefix("s3://").strip("/")
        facts = {
            "url": f"s3://{bucket}/a.zarr", "bucket": bucket, "endpoint": emulator.endpoint, "key": emulator.access_key,
            "secret": emulator.secret_key, "env": emulator.env,
        }  # fmt: skip
        contestants = {"penstock": OURS[topic], **PEERS[topic]}
        found: dict[str, list[dict[str, Any]]] = {each: [] for each in contestants}
        for _ in range(options.repeats):
            for each, code in contestants.items():
                python = sys.executable if each == "penstock" else options.peer_python
                found[each].append(run(python, code, facts, scratch))
    good = next((row["notes"] for row in found["penstock"] if "notes" in row), [])
    for each in found.values():
        for row in each:
            row["is_same"] = [note["sha256"] for note in row.get("notes", [])] == [note["sha256"] for note in good]
    yield from table(topic, found)


def table(name: str, found: dict[str, list[dict[str, Any]]]) -> Any:
    """Print the medians, and yield the rows."""

    def median(rows_: list[dict[str, Any]], key: str, at: int | None = None) -> float:
        return statistics.median(row[key] if at is None else row[key][at] for row in rows_)

    ours = [row for row in found["penstock"] if "error" not in row]
    for each, all_rows in found.items():
        good = [row for row in all_rows if "error" not in row]
        if not good or not ours:
            print(f"{name:20} {each:24} failed: {all_rows[0].get('error')}")
            yield {"topic": name, "contestant": each, "rows": all_rows}
            continue
        for at in range(len(good[0]["seconds"])):
            seconds = median(good, "seconds", at)
            ratio = seconds / median(ours, "seconds", at)
            cpu = median(good, "cpu_seconds") / median(ours, "cpu_seconds")
            same = all(row["is_same"] for row in good)
            extra = (
                {key: value for key, value in good[0]["notes"][at].items() if key != "sha256"}
                if len(good[0]["notes"]) > at
                else {}
            )
            print(
                f"{name:20} {each:24} {seconds:8.3f} s  {ratio:6.2f} x  cpu {median(good, 'cpu_seconds'):7.2f} s {cpu:6.2f} x  "
                f"peak {median(good, 'peak_bytes') / 1e6:6.0f} MB  start {median(good, 'start_seconds'):5.1f} s  {'same' if same else 'DIFFERENT'} {extra or ''}"
            )
        yield {"topic": name, "contestant": each, "rows": all_rows}


if __name__ == "__main__":
    main()

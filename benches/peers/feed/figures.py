# SPDX-License-Identifier: Apache-2.0
"""Measures the figures of docs/reference/figures-feed.md: each is one `penstock bench feed` or one separate process.

    .venv/bin/python benches/peers/feed/figures.py prepare DIR     # 3 GB of data, made once
    .venv/bin/python benches/peers/feed/figures.py volumes DIR     # ... and any other name below

`kit.py` installs the peers. All contestants read from the same third-party S3 server, versitygw. Prints the results as
Markdown rows and keeps them in runs/.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parent))

import data

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parents[3]
KEYS = {"AWS_ACCESS_KEY_ID": "bench-key", "AWS_SECRET_ACCESS_KEY": "bench-secret-key", "AWS_REGION": "us-east-1"}
VOLUME = ("--field", "x=int16:128,128,128,4", "--records-per-object", "1", "--batch", "4")
PICTURE = ("--field", "jpg=image:224", "--field", "cls=int64", "--batch", "32")
OBJECT_BYTES = 16 << 20

CONTESTS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "volumes": ("volumes-768", "tfdata,libdeflate,bare,planes", (*VOLUME, "--repeats", "3", "--cache", "warm")),
    "volumes-1": (
        "volumes-768",
        "tfdata,libdeflate,bare",
        (*VOLUME, "--repeats", "3", "--cores", "1", "--cache", "warm"),
    ),
    "jpeg": ("tar", "webdataset,litdata,mosaicml", (*PICTURE, "--repeats", "3", "--cache", "warm")),
    "jpeg-cold": ("tar", "webdataset,litdata", (*PICTURE, "--repeats", "3", "--cache", "cold")),
    "jpeg-more": ("tar", "spdl,dali,ffcv", (*PICTURE, "--repeats", "3", "--cache", "warm")),
    "jpeg-random": (
        "tar",
        "webdataset,litdata,dali,ffcv",
        (*PICTURE, "--repeats", "3", "--cache", "warm", "--random-crops"),
    ),
    "small-1k": (
        "r1k",
        "grain,tfrecord,tfdata",
        ("--field", "x=uint8:1024", "--batch", "256", "--repeats", "3", "--cache", "both"),
    ),
    "small-1k-arrayrecord": (
        "r1k",
        "grain-arrayrecord",
        ("--field", "x=uint8:1024", "--batch", "256", "--repeats", "3", "--cache", "warm"),
    ),
    "small-100k": (
        "r100k",
        "grain,grain-arrayrecord,tfrecord,tfdata",
        ("--field", "x=uint8:102400", "--batch", "32", "--repeats", "3", "--cache", "both"),
    ),
}
"""Name -> folder of the data, peers, flags."""


def prepare(scratch: Path) -> None:
    """Makes all data that is missing."""
    for name, make in {
        "volumes": lambda folder: data.volumes(folder, 16),
        "tar": lambda folder: data.tars(folder, 8, 250),
        "r1k": lambda folder: data.records(folder, 5, 10_000, 1024),
        "r100k": lambda folder: data.records(folder, 8, 1000, 102_400),
        "objects": lambda folder: data.objects(folder, 48, OBJECT_BYTES),
    }.items():
        if not (scratch / name).exists():
            make(scratch / f".{name}")
            (scratch / f".{name}").rename(scratch / name)
            print(name, flush=True)
    linked(scratch, "volumes-768", 768)


def linked(scratch: Path, name: str, count: int) -> Path:
    """Hard-links the volume files under `count` names: a longer epoch hides its start, at no cost in disk space."""
    folder = scratch / name
    if not folder.exists():
        folder.mkdir()
        files = sorted((scratch / "volumes").iterdir())
        for number in range(count):
            os.link(files[number % len(files)], folder / f"{number:05d}.tfrecord.gz")
    return folder


@contextmanager
def versitygw(folder: Path) -> Iterator[dict[str, str]]:
    """Starts a server over a folder of buckets; yields the environment that its clients need."""
    folder.mkdir(parents=True, exist_ok=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen(
        [str(ROOT / ".tools/bin/versitygw"), "--port", f"127.0.0.1:{port}", "--quiet", "posix", str(folder)],
        env={
            **os.environ,
            "ROOT_ACCESS_KEY": KEYS["AWS_ACCESS_KEY_ID"],
            "ROOT_SECRET_KEY": KEYS["AWS_SECRET_ACCESS_KEY"],
        },
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        for _ in range(400):
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                time.sleep(0.05)
        yield KEYS | {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_DEFAULT_REGION": "us-east-1"}
    finally:
        server.terminate()
        server.wait(20)


def contest(url: str, against: str, flags: tuple[str, ...], env: dict[str, str] | None = None) -> None:
    """Runs one contest and prints its rows."""
    argv = [data.PENSTOCK, "bench", "feed", url, "--against", against, "--peers", str(ROOT / ".tools/peers"), *flags]
    done = subprocess.run([*argv, "--json"], env={**os.environ, **(env or {})}, stdout=subprocess.PIPE, check=False)
    if not done.stdout:
        raise SystemExit(done.returncode)
    result = json.loads(done.stdout)
    ratios = {(one["peer"], one["cache"]): one for one in result["ratios"]}
    for row in result["rows"]:
        name, cache, output = row["label"], row["cache"]["state"], row["workload"]
        ratio = ratios.get((name, cache), {"cpu": 1.0, "wall": 1.0})
        versions = ", ".join(f"{one} {version}" for one, version in output["versions"].items())
        made = f"{output['begin_s']:.1f} s" if output["converted_bytes"] else ""
        print(
            f"| {name} | {cache} | {ratio['cpu']:.2f} | {ratio['wall']:.2f} | {row['samples_per_s']:,.1f} |"
            f" {1e3 * row['cpu_s'] / row['samples']:.3f} | {row['bytes_delivered'] / row['wall_s'] / 1e9:.2f} | {made} | {versions} |"
        )
    ours = result["rows"][0]
    report = ours["loader"]
    classes = {name: round(value, 3) for name, value in report.items() if name.endswith("_s") and value}
    load = [one["load"] for row in result["rows"] for one in row["workload"]["passes"]]
    print(
        f"same samples: {result['is_same']}; load {min(load):.1f} to {max(load):.1f}; {result['not_run']} {result['failed']}"
    )
    print(f"ours: {classes}", flush=True)


def s3(scratch: Path) -> None:
    """Reads whole objects of 16 MiB into torch tensors."""
    with versitygw(scratch / "buckets") as env:
        if not (scratch / "buckets/bench").exists():
            (scratch / "buckets/bench").mkdir()
            aws = [sys.executable, "-m", "awscli", "s3", "cp", "--recursive", "--only-show-errors"]
            subprocess.run(
                [*aws, str(scratch / "objects"), "s3://bench/set/"],
                env={**os.environ, **env, "AWS_EC2_METADATA_DISABLED": "true"},
                check=True,
            )
            # Hard-links each object under three more names, with the gateway's attributes: a longer epoch hides its start.
            for file in sorted((scratch / "buckets/bench/set").iterdir()):
                for more in "abc":
                    os.link(file, file.with_name(f"{file.stem}{more}.bin"))
        flags = ("--format", "fixed", "--field", f"x=uint8:{OBJECT_BYTES}", "--batch", "4", "--arrays", "torch")
        contest(
            "s3://bench/set/", "s3torchconnector,s3torchconnector-1,obstore,s3dlio", (*flags, "--cache", "warm"), env
        )


RESUME = """
import json, resource, sys, time
began = time.perf_counter()
import penstock
imported = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
opened_at = time.perf_counter()
dataset = penstock.open(sys.argv[1], format=penstock.formats.fixed(x=penstock.tensor("uint8", (8,)))).shuffle(17)
loader = penstock.Loader(dataset, batch_size=256, rank=3, world=8)
state = {**loader.state_dict(), "cursor": 500_000_000}
made = time.perf_counter()
loader.load_state_dict(state)
batch = next(iter(loader))
first = time.perf_counter()
print(json.dumps({"samples": dataset.samples, "rows": len(batch["x"]), "state_bytes": len(json.dumps(state)),
    "open_s": made - opened_at, "first_batch_s": first - made, "import_s": opened_at - began,
    "rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - imported}))
"""

EPOCH = """
import json, resource, sys, time
import numpy, penstock
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
budget = int(sys.argv[2])
dataset = penstock.open(sys.argv[1], records_per_object=1).fields(x=penstock.tensor("int16", (128, 128, 128, 4)))
loader = penstock.Loader(dataset.shuffle(17), batch_size=4, rank=0, world=1, memory_bytes=budget)
seen = 0
for batch in loader:
    seen += batch["x"].nbytes
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
report = loader.report()
print(json.dumps({"bytes": seen, "wall_s": report["wall_s"], "budget": budget, "grown_bytes": grown,
    "beyond_budget_bytes": grown - budget}))
"""


def own(program: str, *arguments: object) -> None:
    """Runs a program in a new process (RESUME five times) and prints its output."""
    for _ in range(5 if program is RESUME else 1):
        done = subprocess.run([sys.executable, "-c", program, *map(str, arguments)], check=True, stdout=subprocess.PIPE)
        print(done.stdout.decode().strip(), f"load {os.getloadavg()[0]:.1f}", flush=True)


def resume(scratch: Path) -> None:
    """Resumes in 10^9 records of 8 bytes in 1,000 objects; the files are sparse, since their content does not matter."""
    folder = scratch / "billion"
    if not folder.exists():
        folder.mkdir()
        for number in range(1000):
            with (folder / f"{number:05d}.bin").open("wb") as out:
                out.truncate(8_000_000)
    own(RESUME, folder)


def memory(scratch: Path) -> None:
    """Reads an epoch of 50 GB of volumes: 3,000 hard links to the 16 files, to save disk space."""
    folder = linked(scratch, "volumes-3000", 3000)
    for budget in (512 << 20, 1 << 30):
        own(EPOCH, folder, budget)


def main() -> int:
    """Runs the named measurement."""
    others: dict[str, Callable[[Path], Any]] = {"prepare": prepare, "s3": s3, "resume": resume, "memory": memory}
    if len(sys.argv) != 3 or sys.argv[1] not in CONTESTS.keys() | others.keys():
        print(f"{__doc__}\nnames: {', '.join([*others, *CONTESTS])}", file=sys.stderr)
        return 2
    name, scratch = sys.argv[1], Path(sys.argv[2])
    scratch.mkdir(parents=True, exist_ok=True)
    if name in others:
        others[name](scratch)
    else:
        folder, against, flags = CONTESTS[name]
        contest(str(scratch / folder), against, flags)
    return 0


if __name__ == "__main__":
    sys.exit(main())

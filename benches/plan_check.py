# SPDX-License-Identifier: Apache-2.0
"""Predicts the epoch time of seven storage paths, logs the predictions, then measures them and makes the table of errors.

    .venv/bin/python benches/plan_check.py OUT [--samples 240] [--voxels 64]

The stores are emulated tiers at a scale F, the accelerator is an emulated V100, and everything else is real: objects,
requests, decompression, decoding, staging and the node cache. The plan file states the limits of the tiers times F. It
also states the rates at which one core of this machine decompresses and decodes; a probe measures them first. The
emulator gives an idle connection 20 ms of credit, which the plan does not have: a reader that waits 30 ms for each
first byte gets this credit each time. F of that path is small, so that its transfers are long in comparison. OUT gets
the plan file, `predictions.jsonl`, one folder per run, `errors.json` and `errors.md`. Takes about four minutes and 1 GB
of disk for generated data, which is removed at the end.
"""

from __future__ import annotations

import argparse
import datetime as dt
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

import penstock
from penstock import env, stage, tiers
from penstock.datasets.cosmoflow import generate
from penstock.demo.mount_tier import as_toml, mounted
from penstock.emulator import Emulator
from penstock.plan import prediction_log
from penstock.plan.check import check, markdown
from penstock.plan.result import make_plan
from penstock.plan.spec_file import load
from penstock.price import book
from penstock.train import TrainSpec, run

BATCH = 4
ACCELERATOR = "v100"


class Path_(msgspec.Struct, frozen=True):  # noqa: N801 - pathlib has the other one
    """One path: its tier and scale F, the form in the store, and how it is read."""

    name: str
    kind: str
    tier: str
    scale: float
    form: str = "gzip"
    in_flight: int = 16
    epochs: int = 3


PATHS = (
    Path_("stream gzip, fast account", "stream", "azure-hot@2021", 0.01),
    Path_("stream raw, account limit", "stream", "azure-hot@2021", 0.01, form="plain"),
    Path_("stream gzip, request limit", "stream", "s3-standard", 0.01, in_flight=64),
    Path_("stream gzip, 4 connections", "stream", "s3-standard", 0.1, in_flight=4),
    Path_("one reader, no read-ahead", "mount", "azure-hot@2021", 0.5, form="plain", in_flight=1, epochs=1),
    Path_("staged, raw on disk", "stage", "azure-hot@2021", 0.01),
    Path_("node cache, slow account", "node-cache", "azure-hot@2021", 0.003),
)


def make_data(bucket: Path, samples: int, voxels: int) -> None:
    """gzip/ with `samples` volumes, and raw/ with the same volumes decompressed."""
    generate(bucket / "gzip", samples=samples, voxels=voxels, seed=5, compress="gzip")
    stage.run(f"{bucket}/gzip/", str(bucket / "raw"), decompress=True)


def size_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir() if file.is_file() and "tfrecord" in file.name)


def dataset(url: str, voxels: int) -> Any:
    return penstock.open(url, records_per_object=1).fields(
        x=penstock.tensor("int16", (voxels, voxels, voxels, 4)), y=penstock.tensor("float32", (4,))
    )


def probe(folder: Path, voxels: int) -> tuple[float, float]:
    """Raw bytes per second that one core decompresses and decodes."""
    loader = penstock.Loader(dataset(f"{folder}/", voxels), batch_size=BATCH, rank=0, world=1, threads=1, tail="drop")
    for batch in loader:
        del batch
    report = loader.report()
    done = report["samples"] * voxels**3 * 8
    return done / report["busy_inflate_s"], done / report["busy_decode_s"]


def tier_of(path: Path_, voxels: int) -> tiers.Tier:
    found = tiers.find(path.tier)
    return mounted(found, voxels**3 * 8) if path.kind == "mount" else found


def limit_lines(path: Path_, tier: tiers.Tier) -> list[str]:
    """The keys of [[store]] for a tier at scale F: the emulator scales rates, but not the latency."""

    def least(whats: set[str], scopes: set[str]) -> float | None:
        values = [limit.value for limit in tier.limits if limit.what in whats and limit.scope in scopes]
        return min(values) * path.scale if values else None

    account = least({"read-bytes"}, {"account", "bucket"})
    connection = least({"read-bytes"}, {"connection"})
    requests = least({"read-requests", "requests"}, {"account", "bucket", "prefix"})
    lines = [f'account = "{account or 1e12:.0f}B/s"', f'latency = "{tier.first_byte_s() * 1000:g}ms"']
    lines += [f'connection = "{connection:.0f}B/s"'] if connection else []
    return [*lines, *([f"requests = {requests:g}"] if requests else [])]


def plan_file(bucket: Path, samples: int, inflate: float, decode: float, voxels: int) -> str:
    lines = [
        'name = "paths of this machine"', "nodes = 1", "",
        "[dataset]", f"samples = {samples}", f'raw = "{size_of(bucket / "raw")}B"',
        f'stored = "{size_of(bucket / "gzip")}B"', 'codec = "gzip"', "",
        "[workload]", "epochs = 3", f"batch = {BATCH}", f'reference = "cosmoflow/{ACCELERATOR}"',
        f'inflate = "{inflate:.0f}B/s"  # one core of this machine, probed', f'decode = "{decode:.0f}B/s"', "",
        "[[machine]]", 'name = "this machine"', "accelerators = 1", f"cores = {len(os.sched_getaffinity(0))}",
        'nic = "100Gbit/s"  # loopback; not a limit here', 'disk = "20GB"',
        'disk_read = "2GB/s"  # the page cache; not a limit here', 'disk_write = "500MB/s"',
    ]  # fmt: skip
    for number, path in enumerate(PATHS):
        lines += ["", "[[store]]", f'name = "{path.tier} at F = {path.scale:g}, {number}"']
        lines += limit_lines(path, tier_of(path, voxels))
    for number, path in enumerate(PATHS):
        lines += ["", "[[path]]", f'name = "{path.name}"', f'kind = "{path.kind}"']
        lines += [f'store = "{path.tier} at F = {path.scale:g}, {number}"', f'form = "{path.form}"']
        lines += [f"in_flight = {path.in_flight}"]
    return "\n".join(lines) + "\n"


def measure(path: Path_, bucket: Path, work: Path, out: Path, voxels: int) -> None:
    """Run the path's training against its emulated tier, and save the result in OUT."""
    tier = tier_of(path, voxels)
    page = work / "tier.toml"
    page.write_text(as_toml(tier), encoding="utf-8")
    with Emulator(bucket, tier=tier.name, scale=path.scale, tiers=page) as server, env.override(server.env):
        data, staged_s = f"{server.url}{'raw' if path.form == 'plain' else 'gzip'}/", 0.0
        if path.kind == "stage":
            began = time.perf_counter()
            stage.run(data, str(work / "staged"), decompress=True)
            staged_s, data = time.perf_counter() - began, f"{work / 'staged'}/"
        cache = str(work / "cache")

        def source(request: Any) -> Any:
            found = dataset(request.url, voxels).cache(cache if path.kind == "node-cache" else False)
            return penstock.Loader(
                found.shuffle(seed=request.seed), global_batch=request.global_batch, rank=request.rank,
                world=request.world, tail=request.tail, max_in_flight=path.in_flight,
                read_ahead=0 if path.kind == "mount" else None,
            )  # fmt: skip

        run(
            TrainSpec(
                workload="cosmoflow", data=data, settings={"recipe": "demo", "voxels": voxels}, global_batch=BATCH,
                epochs=path.epochs, accelerator=ACCELERATOR, label=path.name, stage_s=staged_s, runs=str(out),
                max_in_flight=path.in_flight, cache_state="warm", cache_how="made by the same process just before",
                notes=(f"tier {path.tier} at scale F = {path.scale:g}",),
            ),
            source=source,
        )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--samples", type=int, default=240)
    parser.add_argument("--voxels", type=int, default=64)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="penstock-plan-check-"))
    try:
        bucket = work / "bucket"
        print(f"making {given.samples} volumes of {given.voxels}³", flush=True)
        make_data(bucket, given.samples, given.voxels)
        inflate, decode = probe(bucket / "gzip", given.voxels)
        (given.out / "spec.toml").write_text(plan_file(bucket, given.samples, inflate, decode, given.voxels))
        result = make_plan(load(given.out / "spec.toml"), book.load(), dt.datetime.now(dt.UTC))
        prediction_log.append(prediction_log.rows_of(result), given.out)
        for path, row in zip(PATHS, result.rows, strict=True):
            print(f"{path.name}: predicted {row.prediction.epoch_s:.2f} s, {row.prediction.limited_by}", flush=True)
            measure(path, bucket, work, given.out, given.voxels)
        found = check([given.out])
        (given.out / "errors.json").write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
        (given.out / "errors.md").write_text(markdown(found))
        print(markdown(found))
    finally:
        shutil.rmtree(work)


if __name__ == "__main__":
    main()

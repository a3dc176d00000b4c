# SPDX-License-Identifier: Apache-2.0
"""Trains from disks with the limits of 2018 at scale F, and compares each rate and each limit with what is expected.

One loop device holds the images, and its limits are changed between cells. The trace of the device shows MB/s, I/Os
per second and the limit that was reached. An epoch without limits calibrates: bytes and I/Os per image, and the decoding
rate of this machine in the same run. The loader's memory is smaller than a window of shards, as with the published
shards of 137 MB, so it reads single images. Cells with `whole` have memory for whole shards.
"""

from __future__ import annotations

import math
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import msgspec

from penstock import env
from penstock.bench.disk_trace import DiskLimits, DiskTrace, trace
from penstock.bench.diskstats import device_of
from penstock.bench.loop_disk import LoopDisk, Rate
from penstock.bench.results import load_all
from penstock.errors import RankFailed
from penstock.study.result import Chart, Claim, Line, PartResult, Table, Value

from .images import evict, make_images
from .limits import DiskRates
from .training import Training, demand_of, train_argv

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.bench.results import RunRecord
    from penstock.study.run import Context

__all__ = ["Cell", "run"]

_BUSY = 0.95  # a training at this share of its accelerators' rate is limited by them
_NEAR = 0.15  # a rate within this share of its expectation has the expected limit, whatever the trace calls it
_EVERY_S = 0.25


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One training from one disk. Rates are those at scale F.

    Attributes:
        expected: Images/s that the slowest limit allows, and `expected_limit` its name.
        limit: Limit that the trace and the waiting time show.
        at_limit: Share of the disk's used time at each of its limits.
    """

    disk: str
    model: str
    label: str
    gpus: int
    whole: bool = False
    expected: float
    expected_limit: str
    images_per_s: float
    limit: str
    wait_share: float
    mb_per_s: float
    ios_per_s: float
    utilisation: float
    at_limit: dict[str, float]

    @property
    def ratio(self) -> float:
        return self.images_per_s / self.expected


def _series(found: DiskTrace) -> tuple[float, float, float]:
    """Median bytes/s, I/Os/s and utilisation of the samples in which the disk was read."""
    used = sorted((s for s in found.samples if s.read_ios_per_s > 0), key=lambda s: s.read_bytes_per_s)
    if not used:
        return 0.0, 0.0, 0.0
    middle = used[len(used) // 2]
    ios = sorted(s.read_ios_per_s for s in used)[len(used) // 2]
    return middle.read_bytes_per_s, ios, sorted(s.utilisation for s in used)[len(used) // 2]


class _Bench:
    """The disk with the images, and the trainings on it."""

    def __init__(self, context: Context, disk: LoopDisk, data: Path, variables: dict[str, str]) -> None:
        self.context, self.disk, self.data, self.variables = context, disk, data, variables
        self.number = 0
        self.stored_bytes_per_image = 0.0
        self.bytes_per_image = self.ios_per_image = 0.0
        self.ceiling = math.inf
        self.real: dict[str, float] = {}

    def measure(self, name: str, task: Training, rates: DiskRates) -> tuple[RunRecord, DiskTrace]:
        """Run one training under the limits; return its result and its trace."""
        scale = self.context.size["scale"]
        self.number += 1
        out, log = (self.context.scratch / f"run-{self.number}{suffix}" for suffix in ("", ".log"))
        evict(self.data)
        limited = math.isfinite(rates.bytes_per_s)
        ios, moved = (rate if limited else None for rate in (rates.ios_per_s, rates.bytes_per_s))
        self.disk.limit(ios=ios and Rate(ios), moved=moved and Rate(moved), io_bytes=rates.io_bytes)
        limits = DiskLimits(ios_per_s=ios, bytes_per_s=moved, source=f"{name}, rates x {scale:g} (F)")
        # The trace starts a program with this process's variables and output, so these two set its own.
        variables = ("env", *(f"{key}={value}" for key, value in self.variables.items()))
        argv = [*variables, "sh", "-c", 'exec "$@" > "$0" 2>&1', str(log), *train_argv(task, out)]
        [found] = trace(argv, [device_of(self.disk.device)], limits=limits, every_s=_EVERY_S)
        self.disk.limit(ios=None, moved=None)
        if found.exit_code != 0:
            raise RankFailed(f"training from {name}: exit code {found.exit_code}: {log.read_text()[-500:]}", rank=0)
        return load_all(out)[-1], found

    def task(
        self, model: str, gpus: int, images_per_s: float = 0.0, *, epochs: int = 0, whole: bool = False
    ) -> Training:
        size = self.context.size
        return Training(
            data=str(self.data), model=self.context.study.tables["model"][model], gpus=gpus, scale=size["scale"],
            batch=size["batch"], images_per_s=images_per_s, seconds=size["seconds"], epochs=epochs,
            memory_bytes=None if whole else size["memory_bytes"],
        )  # fmt: skip

    def calibrate(self) -> None:
        """Read an epoch without a disk limit: bytes and I/Os of an image, and the rate that this machine decodes.

        Real models have a rate of their own: these cores both decode and compute.
        """
        size = self.context.size
        free = DiskRates(math.inf, math.inf)
        self.context.progress("an epoch without limits")
        # Accelerators that do not limit it: their factor is far above all others.
        record, found = self.measure("no limit", self.task(size["models"][0], 1_000_000, epochs=1), free)
        self.bytes_per_image, self.ios_per_image = found.read_bytes / record.samples, found.ios / record.samples
        self.ceiling = record.steady_samples_per_s or record.samples_per_s
        for model in size["real"]:
            record, _ = self.measure("no limit", self.task(model, 0, self.ceiling / 4), free)
            self.real[model] = record.steady_samples_per_s or record.samples_per_s

    def cell(self, disk: str, model: str, gpus: int, *, whole: bool = False) -> Cell:
        size = self.context.size
        table = self.context.study.tables["model"][model]
        rates = DiskRates.of(disk, size["scale"])
        # Whole shards are read once each, in I/Os of the largest size.
        one = self.stored_bytes_per_image
        per_image = (one, one / rates.io_bytes) if whole else (self.bytes_per_image, self.ios_per_image)
        allowed, which = rates.images_per_s(*per_image)
        demand = demand_of(table, gpus) * size["scale"] if gpus else math.inf
        cores = {"decoding": self.ceiling} if gpus else {"this machine's cores": self.real[model]}
        by = {which: allowed, **cores, "accelerators": demand}
        expected_limit = min(by, key=lambda name: by[name])
        expected = by[expected_limit]
        label = table["label"] + (", whole shards" if whole else "")
        self.context.progress(f"{disk}, {label}{f', {gpus} V100' if gpus else ''}: {expected:.0f} images/s expected")
        record, found = self.measure(disk, self.task(model, gpus, expected, epochs=int(whole), whole=whole), rates)
        rate = record.samples_per_s if whole else record.steady_samples_per_s or record.samples_per_s
        moved, ios, busy = _series(found)
        return Cell(
            disk=disk, model=model, label=label, gpus=gpus, whole=whole, expected=expected, expected_limit=expected_limit,
            images_per_s=rate, limit=_limit(found, by, rate), wait_share=record.wait_share, mb_per_s=moved / 1e6,
            ios_per_s=ios, utilisation=busy, at_limit=found.at_limit,
        )  # fmt: skip


def _limit(found: DiskTrace, by: dict[str, float], rate: float) -> str:
    """Name the limit: the accelerators if they are busy, else that of the trace, else the nearest expectation."""
    if rate >= _BUSY * by["accelerators"]:
        return "accelerators"
    if found.binding_limit in ("throughput", "IOPS"):
        return found.binding_limit
    nearest = min(by, key=lambda name: abs(math.log(by[name] / rate)) if math.isfinite(by[name]) else math.inf)
    return nearest if abs(rate / by[nearest] - 1) <= _NEAR else "not found"


def run(context: Context) -> PartResult:
    """Measure all cells of the size."""
    size, scale = context.size, context.size["scale"]
    context.progress("making the images")
    made = make_images(
        context.scratch / "images", images=size["images"], shards=size["shards"], replicate=size["replicate"]
    )
    stored = sum(path.stat().st_size for path in made.iterdir())
    mount = context.scratch / "disk"
    mount.mkdir()
    with LoopDisk(
        mount, size_bytes=int(stored * 1.15) + (128 << 20), ios=None, moved=None, images=context.scratch
    ) as disk:
        data = mount / "train"
        shutil.copytree(made, data)
        shutil.rmtree(made)
        variables = {"PENSTOCK_CACHE": str(context.scratch / "index")}
        subprocess.run(
            [sys.executable, "-m", "penstock", "index", str(data), "--records", "--json"],
            env={**env.read(), **variables}, check=True, capture_output=True,
        )  # fmt: skip
        bench = _Bench(context, disk, data, variables)
        bench.stored_bytes_per_image = stored / (size["images"] * size["replicate"])
        bench.calibrate()
        wanted = [(name, model, gpus) for name in size["disks"] for model in size["models"] for gpus in size["gpus"]]
        wanted += [(name, model, 0) for name in size["disks"] for model in size["real"]]
        cells = [bench.cell(*each) for each in wanted]
        cells += [bench.cell(name, size["models"][-1], max(size["gpus"]), whole=True) for name in size["whole"]]
    return _result(context, cells, bench, scale)


def _of(cells: list[Cell], disk: str, model: str, gpus: int) -> Cell | None:
    return next((c for c in cells if (c.disk, c.model, c.gpus, c.whole) == (disk, model, gpus, False)), None)


def _result(context: Context, cells: list[Cell], bench: _Bench, scale: float) -> PartResult:
    rows = [
        (
            c.disk, c.label, str(c.gpus) if c.gpus else "real", f"{c.expected:,.1f}: {c.expected_limit}",
            f"{c.images_per_s:,.1f}: {c.limit}", f"{c.ratio:.2f}", f"{100 * c.wait_share:.0f} %",
            f"{c.mb_per_s:.2f}", f"{c.ios_per_s:.0f}", f"{100 * c.utilisation:.0f} %", f"{c.images_per_s / scale:,.0f}",
        )
        for c in cells
    ]  # fmt: skip
    measured: dict[str, Value] = {}
    bound = [c for c in cells if c.disk == "aws-gp2@2018" and c.limit == "throughput"]
    if bound:
        measured["gp2-bytes"] = Value(max(c.mb_per_s for c in bound) / scale, "throughput", scale=scale)
    bound = [c for c in cells if c.disk == "aws-st1@2018" and c.limit == "IOPS" and not c.whole]
    if bound:
        rates = sorted(c.images_per_s / scale for c in bound)
        measured["st1-images"] = Value(rates[len(rates) // 2], "IOPS", low=rates[0], high=rates[-1], scale=scale)
    for model in ("resnet50", "resnet152"):
        four, eight = _of(cells, "aws-io1@2018", model, 4), _of(cells, "aws-io1@2018", model, 8)
        if four and eight:
            measured[f"io1-4-to-8-{model}"] = Value(eight.images_per_s / four.images_per_s, eight.limit, scale=scale)
    claims = []
    for disk, word in (("aws-st1@2018", "IOPS"), ("aws-gp2@2018", "throughput")):
        mine = [c for c in cells if c.disk == disk and c.expected_limit == word and not c.whole]
        if mine:
            met = sum(c.limit == word for c in mine)
            claims.append(
                Claim(
                    f"{disk} is limited by {word} where it is slower than the accelerators, measured",
                    f"{met} of {len(mine)} trainings",
                    met == len(mine),
                )
            )
    for disk in ("aws-io1@2018", "azure-premium-ssd@2018"):
        mine = [c for c in cells if c.disk == disk and c.gpus == 4 and c.model in ("resnet50", "resnet152")]
        if mine:
            met = sum(c.limit == "accelerators" for c in mine)
            claims.append(
                Claim(
                    f"{disk} keeps up with 4 V100 (fp32), measured",
                    "; ".join(f"{c.label}: {c.limit}" for c in mine),
                    met == len(mine),
                )
            )
    right = sum(c.limit == c.expected_limit for c in cells)
    errors = sorted(abs(c.ratio - 1) for c in cells)
    claims.append(
        Claim("the limit of every training is the expected one", f"{right} of {len(cells)}", right == len(cells))
    )
    claims.append(
        Claim(
            "rates are within 10 % of their expectation (median)",
            f"median {errors[len(errors) // 2]:.1%}, worst {errors[-1]:.1%}",
            errors[len(errors) // 2] <= 0.10,
        )
    )
    for c in (c for c in cells if c.whole):
        alone = _of(cells, c.disk, c.model, c.gpus)
        if alone:
            times = c.images_per_s / alone.images_per_s
            claims.append(
                Claim(
                    f"{c.disk} gives more images/s if shards are read whole",
                    f"{times:.1f} times, limited by {c.limit}",
                    times > 1.2,
                )
            )
    decoding = [c for c in cells if c.limit in ("decoding", "this machine's cores")]
    missing = (f"{len(decoding)} cells are limited by this machine's cores, not by their disk",) if decoding else ()
    table = Table(
        f"Measured at F = {scale:g}",
        ("disk", "model", "V100", "expected images/s", "measured", "ratio", "waiting", "MB/s", "IOPS", "disk busy", "/ F, images/s"),
        tuple(rows), left=2,
        note=f"Without limits, this machine delivers {bench.ceiling:,.0f} images/s, and an image of a disk takes {bench.ios_per_image:.2f} I/Os and {bench.bytes_per_image / 1e3:.0f} kB of the disk (in the same run).",
    )  # fmt: skip
    lines = [
        Line(name, tuple((float(c.gpus), c.images_per_s / scale) for c in cells if c.disk == name and c.model == model and c.gpus and not c.whole))
        for model in context.size["models"][-1:]
        for name in context.size["disks"]
    ]  # fmt: skip
    blocks: list[Any] = [table]
    if len(context.size["gpus"]) > 1:
        label = context.study.tables["model"][context.size["models"][-1]]["label"]
        blocks.append(
            Chart(
                "disks",
                f"{label}: images/s by disk, divided by F",
                "V100",
                "images/s",
                tuple(lines),
                caption=f"Images/s of {label} over the number of GPUs, one line per disk, measured at F = {scale:g} and divided by F.",
            )
        )
    return PartResult(
        measured=measured,
        claims=tuple(claims),
        blocks=tuple(blocks),
        not_measured=missing,
        data=msgspec.to_builtins(cells),
    )

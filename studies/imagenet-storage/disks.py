# SPDX-License-Identifier: Apache-2.0
"""Trains from disks with the limits of 2018 at scale F, and compares each rate and each limit with what is expected.

One loop device holds the images, and its limits are changed between cells. The trace of the device shows MB/s, I/Os
per second and the limit that was reached. An epoch without limits calibrates: bytes and I/Os per image, and the decoding
rate of this machine in the same run. The loader's memory is smaller than a window of shards, as with the published
shards of 137 MB, so it reads single images. A training that fails is reported as not measured, and the others go on.
"""

from __future__ import annotations

import math
import shutil
import statistics
from typing import TYPE_CHECKING

import msgspec

from penstock.bench.disk_trace import DiskLimits, DiskTrace, trace
from penstock.bench.diskstats import device_of
from penstock.bench.loop_disk import LoopDisk, Rate
from penstock.bench.results import load_all
from penstock.errors import PenstockError, RankFailed
from penstock.study.command import penstock_json
from penstock.study.result import Chart, Claim, Line, PartResult, Table, Value

from .images import evict, make_images
from .limits import DiskRates
from .training import Training, demand_of, train_argv

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from penstock.bench.results import RunRecord
    from penstock.study.result import Block
    from penstock.study.run import Context

__all__ = ["Cell", "Failed", "measure_cells", "run"]

_BUSY = 0.95  # a training at this share of its accelerators' rate is limited by them
_NEAR = 0.15  # a rate within this share of its expectation has the expected limit, whatever the trace calls it
_EVERY_S = 0.25
_NO_LIMIT = DiskRates(math.inf, math.inf)
_FP32 = ("resnet50", "resnet152")


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


class Failed(msgspec.Struct, frozen=True, kw_only=True):
    """A training that ended with an error; `reason` is its message in one line."""

    disk: str
    model: str
    gpus: int
    reason: str


def _series(found: DiskTrace) -> tuple[float, float, float]:
    """Mean bytes/s, I/Os/s and utilisation of the samples in which the disk was read.

    Not medians: a sample contains 2 or 3 of 10 I/Os per second, so its rate is 8 or 12.
    """
    used = [sample for sample in found.samples if sample.read_ios_per_s > 0]
    if not used:
        return 0.0, 0.0, 0.0
    columns = ("read_bytes_per_s", "read_ios_per_s", "utilisation")
    moved, ios, busy = (statistics.fmean(getattr(sample, name) for sample in used) for name in columns)
    return moved, ios, busy


class _Bench:
    """The disk with the images, and the trainings on it."""

    def __init__(self, context: Context, disk: LoopDisk, data: Path, variables: dict[str, str]) -> None:
        self.context, self.disk, self.data, self.variables = context, disk, data, variables
        self.number = 0
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

    def task(self, model: str, gpus: int, images_per_s: float = 0.0, *, epochs: int = 0) -> Training:
        size = self.context.size
        return Training(
            data=str(self.data), model=self.context.study.tables["model"][model], gpus=gpus, scale=size["scale"],
            batch=size["batch"], images_per_s=images_per_s, seconds=size["seconds"], epochs=epochs,
            memory_bytes=size["memory_bytes"],
        )  # fmt: skip

    def calibrate(self) -> None:
        """Read an epoch without a disk limit: bytes and I/Os of an image, and the rate that this machine decodes."""
        self.context.progress("an epoch without limits")
        # Accelerators that do not limit it: their factor is far above all others.
        task = self.task(self.context.size["models"][0], 1_000_000, epochs=1)
        record, found = self.measure("no limit", task, _NO_LIMIT)
        self.bytes_per_image, self.ios_per_image = found.read_bytes / record.samples, found.ios / record.samples
        self.ceiling = record.steady_samples_per_s or record.samples_per_s

    def rate_of_cores(self, model: str) -> float:
        """Images/s of a model that is really trained, without a disk limit: these cores both decode and compute."""
        if model not in self.real:
            record, _ = self.measure("no limit", self.task(model, 0, self.ceiling / 4), _NO_LIMIT)
            self.real[model] = record.steady_samples_per_s or record.samples_per_s
        return self.real[model]

    def cell(self, disk: str, model: str, gpus: int) -> Cell:
        size = self.context.size
        table = self.context.study.tables["model"][model]
        rates = DiskRates.of(disk, size["scale"])
        allowed, which = rates.images_per_s(self.bytes_per_image, self.ios_per_image)
        demand = demand_of(table, gpus) * size["scale"] if gpus else math.inf
        cores = {"decoding": self.ceiling} if gpus else {"this machine's cores": self.rate_of_cores(model)}
        by = {which: allowed, **cores, "accelerators": demand}
        expected_limit = min(by, key=lambda name: by[name])
        expected = by[expected_limit]
        label = table["label"]
        self.context.progress(f"{disk}, {label}{f', {gpus} V100' if gpus else ''}: {expected:.0f} images/s expected")
        record, found = self.measure(disk, self.task(model, gpus, expected), rates)
        rate = record.steady_samples_per_s or record.samples_per_s
        moved, ios, busy = _series(found)
        return Cell(
            disk=disk, model=model, label=label, gpus=gpus, expected=expected, expected_limit=expected_limit,
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


def measure_cells(
    wanted: Iterable[tuple[str, str, int]], measure: Callable[[str, str, int], Cell]
) -> tuple[list[Cell], list[Failed]]:
    """Measure all cells (disk, model, number of GPUs); those that fail are returned apart.

    Raises:
        RankFailed: None of them ended.
    """
    cells: list[Cell] = []
    failed: list[Failed] = []
    for disk, model, gpus in wanted:
        try:
            cells.append(measure(disk, model, gpus))
        except PenstockError as error:
            failed.append(Failed(disk=disk, model=model, gpus=gpus, reason=" ".join(str(error).split())))
    if failed and not cells:
        raise RankFailed(f"all {len(failed)} trainings failed; the first: {failed[0].reason}", rank=0)
    return cells, failed


def run(context: Context) -> PartResult:
    """Measure all cells of the size."""
    size = context.size
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
        penstock_json("index", data, "--records", variables=variables, timeout_s=context.timeout_s)
        bench = _Bench(context, disk, data, variables)
        bench.calibrate()
        wanted = [(name, model, gpus) for name in size["disks"] for model in size["models"] for gpus in size["gpus"]]
        wanted += [(name, model, 0) for name in size["disks"] for model in size["real"]]
        cells, failed = measure_cells(wanted, bench.cell)
    scale = size["scale"]
    blocks: list[Block] = [_table(cells, bench, scale)]
    if len(size["gpus"]) > 1:
        blocks.append(_chart(context, cells, scale))
    return PartResult(
        measured=_figures(cells, scale),
        claims=tuple(_claims(cells, failed)),
        blocks=tuple(blocks),
        not_measured=_not_measured(context, cells, failed),
        data=msgspec.to_builtins(cells),
    )


def _not_measured(context: Context, cells: Sequence[Cell], failed: Sequence[Failed]) -> tuple[str, ...]:
    models = context.study.tables["model"]
    missing = []
    for each in failed:
        gpus = f"{each.gpus} V100" if each.gpus else "this machine's cores"
        missing.append(f"{each.disk}, {models[each.model]['label']}, {gpus}: {each.reason}")
    if decoding := sum(c.limit in ("decoding", "this machine's cores") for c in cells):
        missing.append(f"the disk in {decoding} cells: this machine's cores limit them")
    return tuple(missing)


def _figures(cells: Sequence[Cell], scale: float) -> dict[str, Value]:
    measured: dict[str, Value] = {}
    bound = [c for c in cells if c.disk == "aws-gp2@2018" and c.limit == "throughput"]
    if bound:
        rates = sorted(c.mb_per_s / scale for c in bound)
        measured["gp2-bytes"] = Value(rates[len(rates) // 2], "throughput", low=rates[0], high=rates[-1], scale=scale)
    bound = [c for c in cells if c.disk == "aws-st1@2018" and c.limit == "IOPS"]
    if bound:
        rates = sorted(c.images_per_s / scale for c in bound)
        measured["st1-images"] = Value(rates[len(rates) // 2], "IOPS", low=rates[0], high=rates[-1], scale=scale)
    io1 = {(c.model, c.gpus): c for c in cells if c.disk == "aws-io1@2018"}
    for model in ("resnet50", "resnet152"):
        four, eight = io1.get((model, 4)), io1.get((model, 8))
        if four and eight:
            measured[f"io1-4-to-8-{model}"] = Value(eight.images_per_s / four.images_per_s, eight.limit, scale=scale)
    return measured


def _claims(cells: Sequence[Cell], failed: Sequence[Failed]) -> list[Claim]:
    claims = []
    for disk, word in (("aws-st1@2018", "IOPS"), ("aws-gp2@2018", "throughput")):
        mine = [c for c in cells if c.disk == disk and c.expected_limit == word]
        missing = sum(each.disk == disk for each in failed)
        if mine:
            met = sum(c.limit == word for c in mine)
            text = f"{disk} is limited by {word} where it is slower than the accelerators, measured"
            claims.append(_count(text, met, len(mine), missing, "trainings"))
    for disk in ("aws-io1@2018", "azure-premium-ssd@2018"):
        mine = [c for c in cells if c.disk == disk and c.gpus == 4 and c.model in _FP32]
        missing = sum(each.disk == disk and each.gpus == 4 and each.model in _FP32 for each in failed)
        if mine:
            met = all(c.limit == "accelerators" for c in mine)
            here = "; ".join(f"{c.label}: {c.limit}" for c in mine) + f"; {missing} not measured" * bool(missing)
            claims.append(
                Claim(f"{disk} keeps up with 4 V100 (fp32), measured", here, None if met and missing else met)
            )
    right = sum(c.limit == c.expected_limit for c in cells)
    claims.append(_count("the limit of every training is the expected one", right, len(cells), len(failed)))
    errors = sorted(abs(c.ratio - 1) for c in cells)
    claims.append(
        Claim(
            "rates are within 10 % of their expectation (median)",
            f"median {errors[len(errors) // 2]:.1%}, worst {errors[-1]:.1%}",
            errors[len(errors) // 2] <= 0.10,
        )
    )
    return claims


def _count(text: str, met: int, measured: int, missing: int, unit: str = "") -> Claim:
    """A claim about all cells. Those that failed leave it open, unless a measured cell already contradicts it."""
    here = f"{met} of {measured} {unit}".strip() + f", {missing} not measured" * bool(missing)
    return Claim(text, here, False if met < measured else None if missing else True)


def _table(cells: Sequence[Cell], bench: _Bench, scale: float) -> Table:
    rows = tuple(
        (
            c.disk, c.label, str(c.gpus) if c.gpus else "real", f"{c.expected:,.1f}: {c.expected_limit}",
            f"{c.images_per_s:,.1f}: {c.limit}", f"{c.ratio:.2f}", f"{100 * c.wait_share:.0f} %",
            f"{c.mb_per_s:.2f}", f"{c.ios_per_s:.0f}", f"{100 * c.utilisation:.0f} %", f"{c.images_per_s / scale:,.0f}",
        )
        for c in cells
    )  # fmt: skip
    return Table(
        f"Measured at F = {scale:g}",
        ("disk", "model", "V100", "expected images/s", "measured", "ratio", "waiting", "MB/s", "IOPS", "disk busy", "/ F, images/s"),
        rows, left=2,
        note=f"Without limits, this machine delivers {bench.ceiling:,.0f} images/s, and an image of a disk takes {bench.ios_per_image:.2f} I/Os and {bench.bytes_per_image / 1e3:.0f} kB of the disk (in the same run).",
    )  # fmt: skip


def _chart(context: Context, cells: Sequence[Cell], scale: float) -> Chart:
    model = context.size["models"][-1]
    label = context.study.tables["model"][model]["label"]
    points = {
        name: tuple((float(c.gpus), c.images_per_s / scale) for c in cells if (c.disk, c.model) == (name, model))
        for name in context.size["disks"]
    }
    return Chart(
        "disks", f"{label}: images/s by disk, divided by F", "V100", "images/s",
        tuple(Line(name, found) for name, found in points.items() if found),
        caption=f"Images/s of {label} over the number of GPUs, one line per disk, measured at F = {scale:g} and divided by F.",
    )  # fmt: skip

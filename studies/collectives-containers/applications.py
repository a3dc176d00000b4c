# SPDX-License-Identifier: Apache-2.0
"""Applications over ranks: LAMMPS (strong scaling), and ResNet-50 on synthetic data (weak scaling), as published."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

from penstock import env
from penstock.bench.app.presets import PRESETS, prepare
from penstock.bench.app.spec import Spec
from penstock.study.result import Chart, Claim, Line, PartResult, Value
from penstock.train import TrainSpec
from penstock.train.scaling import measure_scaling

from .sweeps import OPEN_MPI, plain, run_sweep, scaling_table

if TYPE_CHECKING:
    from penstock.bench.app.summary import Summary
    from penstock.study.run import Context

__all__ = ["run"]

PUBLISHED_IMAGES_PER_S, GPUS = 145.0, 16


def _lammps(context: Context) -> Summary:
    preset = PRESETS["lammps-lj"]
    made = prepare("lammps-lj", (), context.scratch / "lammps", env.read())
    return run_sweep(
        Spec(
            command=made.command, launcher="mpi", set=dict(OPEN_MPI), ranks=tuple(context.size["ranks"]),
            size=context.size["lammps_size"], repeats=max(2, context.size["repeats"] // 2), warm_up=0, timeout_s=300.0,
            figure=preset.figure, world=preset.world,
        ),
        lambda text: context.progress(f"LAMMPS: {text}"),
    )  # fmt: skip


def _resnet(context: Context) -> Summary:
    size = context.size
    fewest = min(size["ranks"])
    spec = TrainSpec(
        workload="resnet50", data=f"dummy://{size['steps'] * size['batch'] * fewest}", global_batch=size["batch"] * fewest,
        settings={"image_size": size["image_size"]}, device="cpu", warm_up_steps=3,
    )  # fmt: skip

    def ran(number: int, ranks: int, rate: float | None, error: str | None) -> None:
        context.progress(f"ResNet-50: run {number}: {ranks} ranks: {error or f'{rate:,.2f} images/s'}")

    return measure_scaling(
        spec, size["ranks"], scaling="weak", repeats=max(2, size["repeats"] // 4), on_run=ran
    ).summary


def run(context: Context) -> PartResult:
    """Run both sweeps."""
    lammps, resnet = _lammps(context), _resnet(context)
    measured, claims = dict[str, Value](), []
    [md], [train] = lammps.variants, resnet.variants
    for name, variant in (("lammps-efficiency", md), ("resnet50-cpu-efficiency", train)):
        last = variant.cells[-1]
        if last.efficiency is not None:
            measured[name] = Value(
                last.efficiency.value, f"{last.ranks} ranks", low=last.efficiency.low, high=last.efficiency.high
            )
        claims += [
            Claim(f"{name.partition('-')[0]} runs on {cell.ranks} ranks", str(cell.error), holds=False, must=True)
            for cell in variant.cells
            if cell.error
        ]
    if train.cells[0].value is not None:
        measured["resnet50-cpu"] = Value(train.cells[0].value, f"{context.size['image_size']} pixels a side")
    inverted = {"resnet50-16": Value(GPUS * PUBLISHED_IMAGES_PER_S, "if 145.0 is the rate of one GPU")}
    missing = (
        ["HOOMD-blue's hexagon benchmark: the Python module hoomd is not installed"]
        if importlib.util.find_spec("hoomd") is None
        else []
    )
    missing.append("ResNet-50 on 1 to 16 GPUs: needs GPUs")
    lines: list[Line] = []
    for label, variant in (("LAMMPS", md), ("ResNet-50", train)):
        points = tuple((float(c.ranks), c.speed_up) for c in variant.cells if c.speed_up is not None)
        lines.append(Line(label, points))
    lines.append(Line("linear", tuple((float(n), n / min(context.size["ranks"])) for n in context.size["ranks"])))
    blocks: tuple[Any, ...] = (
        scaling_table(lammps, "LAMMPS, Lennard-Jones melt, strong scaling"),
        scaling_table(resnet, f"ResNet-50, synthetic data, {context.size['batch']} images a rank, CPU, weak scaling"),
        Chart("applications", "Speed-up over ranks", "ranks", "speed-up", tuple(lines), caption="Speed-up of LAMMPS and of ResNet-50's training over the number of ranks, beside a straight line."),
    )  # fmt: skip
    return PartResult(
        inverted=inverted,
        measured=measured,
        claims=tuple(claims),
        blocks=blocks,
        not_measured=tuple(missing),
        data={"lammps": plain(lammps), "resnet50": plain(resnet)},
    )

# SPDX-License-Identifier: Apache-2.0
"""Measures the cost of a container: messages, LAMMPS and ResNet-50, natively and in it, launched both ways, interleaved.

Ways: the host's mpirun starts each rank in a container of its own; or mpirun runs in the container, too.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock import env
from penstock.bench.app.figure import Figure
from penstock.bench.app.presets import PRESETS, input_folder, prepare
from penstock.bench.app.spec import Spec, variants_of
from penstock.study.result import Claim, PartResult, Table, Value
from penstock.units import format_bytes

from .answer import CLEAR
from .sweeps import OPEN_MPI, cost_value, make_image, overhead_rows, plain, run_sweep

if TYPE_CHECKING:
    from penstock.bench.app.summary import Summary
    from penstock.study.run import Context

__all__ = ["run"]

_WAYS = ("host-mpirun", "inside")
# A rank that waits gives its core away. Other programs run on these cores, too, and a rank that waits busily for one
# that has no core makes a message take milliseconds. `measure` turns direct copies between ranks off for all variants.
_SETTINGS = {"OMPI_MCA_mpi_yield_when_idle": "1"}


def _messages(context: Context, test: str, size_bytes: int, image: str, binds: tuple[str, ...]) -> Summary:
    """`penstock bench net` with OSU's semantics, as the ranks of mpirun: one size, time in us or MB/s."""
    size, is_rate = context.size, test == "bw"
    count = max(5, size["latency_iterations"] // 100) if is_rate else size["latency_iterations"]
    command = (
        sys.executable, "-m", "penstock", "bench", "net", test, "--backend", "mpi", "--min-size", str(size_bytes),
        "--max-size", str(size_bytes), "--iterations", str(count), "--warm-up", str(max(1, count // 10)),
    )  # fmt: skip
    pattern = rf"^{size_bytes}\s+([0-9.]+)"
    figure = Figure("MB/s", pattern, kind="total-rate") if is_rate else Figure("us", pattern, kind="seconds")
    return run_sweep(
        Spec(
            command=command, launcher="mpi", set=dict(OPEN_MPI), ranks=(2,), repeats=size["repeats"], warm_up=0,
            timeout_s=120.0, figure=figure, variant=variants_of(image, _WAYS, ("core",), container_bind=binds, env=_SETTINGS),
        ),
        lambda text: context.progress(f"{test}: {text}"),
    )  # fmt: skip


def _lammps(context: Context, image: str, binds: tuple[str, ...]) -> Summary:
    preset = PRESETS["lammps-lj"]
    with input_folder() as folder:
        made = prepare("lammps-lj", (), Path(folder), env.read())
        return run_sweep(
            Spec(
                command=made.command, launcher="mpi", set=dict(OPEN_MPI), ranks=(2,), size=context.size["lammps_size"],
                repeats=context.size["repeats"], warm_up=0, timeout_s=120.0, figure=preset.figure, world=preset.world,
                variant=variants_of(image, _WAYS, ("core",), container_bind=binds, env=_SETTINGS),
            ),
            lambda text: context.progress(f"LAMMPS: {text}"),
        )  # fmt: skip


def _resnet(context: Context, image: str, binds: tuple[str, ...]) -> Summary:
    """`penstock train` on synthetic data, as the ranks of mpirun; a third of the rounds, because torch starts slowly."""
    size, preset = context.size, PRESETS["tf-cnn"]
    command = (
        sys.executable, "-m", "penstock", "train", "resnet50", "--synthetic", "--steps", str(size["steps"]), "--warm-up", "3",
        "--batch-size", str(size["batch"]), "--set", f"image_size={size['image_size']}", "--device", "cpu", "--threads", "1",
        "--no-save", "--format", "tf_cnn",
    )  # fmt: skip
    return run_sweep(
        Spec(
            command=command, launcher="mpi", set=dict(OPEN_MPI), ranks=(2,), repeats=max(3, size["repeats"] // 3), warm_up=0,
            timeout_s=600.0, figure=preset.figure, variant=variants_of(image, _WAYS, ("core",), container_bind=binds, env=_SETTINGS),
        ),
        lambda text: context.progress(f"ResNet-50: {text}"),
    )  # fmt: skip


def run(context: Context) -> PartResult:
    """Run the comparisons."""
    folder, binds = make_image(context.scratch / "image")
    image = f"charliecloud:{folder}"
    small, large = context.size["message_bytes"]
    sweeps: dict[str, tuple[str, Summary]] = {
        "latency": (f"latency, {format_bytes(small)}", _messages(context, "latency", small, image, binds)),
        "allreduce": (f"allreduce, {format_bytes(small)}", _messages(context, "allreduce", small, image, binds)),
        "bandwidth": (f"bandwidth, {format_bytes(large)}", _messages(context, "bw", large, image, binds)),
        "lammps": ("LAMMPS, melt", _lammps(context, image, binds)),
        "resnet50": ("ResNet-50, synthetic data", _resnet(context, image, binds)),
    }
    rows, measured, claims = [], dict[str, Value](), []
    data: dict[str, Any] = {}
    for name, (what, summary) in sweeps.items():
        rows += overhead_rows(summary, what)
        data[name] = plain(summary)
        for each in summary.overheads:
            inside = "inside" in each.variant
            cost = measured[f"container-{name}{'-inside' if inside else ''}"] = cost_value(each)
            # Significant: the interval excludes 0 and the cost is above it.
            is_significant = each.is_shown and each.cost.value > 0
            is_clear = is_significant or (cost.high is not None and cost.high <= CLEAR)
            claims.append(Claim(
                f"{what}, {each.variant}: no significant cost", each.sentence, not is_significant if is_clear else None,
            ))  # fmt: skip
        claims += [
            Claim(f"{what}, {cell.variant} runs", str(cell.error), holds=False, must=True)
            for variant in summary.variants for cell in variant.cells if cell.error
        ]  # fmt: skip
    natives = [
        (what, f"{cell.value:,.2f} {summary.quantity}", f"{cell.wall_s:.2f}")
        for what, summary in sweeps.values()
        for cell in summary.variants[0].cells
        if cell.value is not None and cell.wall_s is not None
    ]
    blocks = (
        Table("Native against container, 2 ranks", ("what", "variant", "ranks", "cost", "95 % interval", "in words"), tuple(rows), left=2,
              note=f"Cost: extra time against native; ratios are taken within a round, of {context.size['repeats']} interleaved rounds (ResNet-50: a third of them, at least 3). Direct copies between processes (CMA) are off in all variants: between containers of their own, Open MPI's large messages hang with them."),
        Table("Native figures (means)", ("what", "figure", "whole run, s"), tuple(natives), left=1),
    )  # fmt: skip
    return PartResult(measured=measured, claims=tuple(claims), blocks=blocks, data=data)

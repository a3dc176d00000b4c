# SPDX-License-Identifier: Apache-2.0
"""Measures weak and strong scaling of training over ranks and nodes, with interleaved repeats.

Each run is a separate training, even with one rank. On this node, a run uses torchrun; on several nodes, it is a
command of `penstock bench app` with any launcher. The statistics, the fits and the document are the same as for
`penstock bench app`.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec

from penstock.bench import machine_card
from penstock.bench.app.cells import Cell, Run
from penstock.bench.app.document import Document, document
from penstock.bench.app.figure import Figure
from penstock.bench.app.run import measure
from penstock.bench.app.spec import Spec
from penstock.bench.app.summary import summarise
from penstock.bench.interleaved import abba_order
from penstock.errors import ConfigError, PenstockError
from penstock.protocols import WorkloadSpec
from penstock.train.data_path_cost import unit_of
from penstock.train.launch import run_under_torchrun
from penstock.train.source import DUMMY
from penstock.train.workloads import load_workload
from penstock.units import plural

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.bench.app.spec import Scaling
    from penstock.train.progress import Report
    from penstock.train.spec import TrainSpec

__all__ = ["measure_scaling", "measure_scaling_on_nodes", "rate_figure", "sized_spec"]


def rate_figure(spec: TrainSpec) -> Figure:
    """Return the figure of merit of a training: its rate in `images/s` or `samples/s`, as read from its JSON.

    Raises:
        ConfigError: The workload is unknown, or a setting is not valid.
    """
    demand = load_workload(spec.workload).demand(
        WorkloadSpec(
            seed=spec.seed,
            global_batch=spec.global_batch,
            accelerator=spec.accelerator,
            settings=spec.settings,
        )
    )
    return Figure(pattern=r'"steady_samples_per_s": ([\d.]+)', name=unit_of(demand))


def sized_spec(spec: TrainSpec, ranks: int, *, fewest: int, scaling: Scaling) -> TrainSpec:
    """Return the training of one size: with weak scaling, the global batch grows with the ranks.

    Args:
        spec: The training on `fewest` ranks.

    Raises:
        ConfigError: The global batch does not divide into equal parts.
    """
    batch = spec.global_batch * ranks // fewest if scaling == "weak" else spec.global_batch
    if (spec.global_batch * ranks) % fewest or batch % ranks:
        raise ConfigError(
            f"a global batch of {batch} cannot be divided equally among {ranks} ranks",
            hint=f"use a --global-batch that is a multiple of {ranks}",
        )
    data = spec.data
    if data.startswith(f"{DUMMY}://"):  # the same number of steps at every size
        data = f"{DUMMY}://{int(data.partition('://')[2]) * batch // spec.global_batch}"
    return msgspec.structs.replace(spec, ranks=ranks, global_batch=batch, data=data, runs=None).check()


def _data_of(spec: TrainSpec) -> str:
    return "synthetic data" if spec.data.startswith(f"{DUMMY}://") else spec.data


def _check_measurable(spec: TrainSpec) -> None:
    given = {name: getattr(spec, name) for name in ("checkpoint", "validation", "trace", "mllog", "archive")}
    given["compare_synthetic"] = spec.compare_synthetic or None
    if refused := [name for name, value in given.items() if value is not None]:
        raise ConfigError(f"{' and '.join(refused)}: not supported with a scaling measurement")


def measure_scaling_on_nodes(
    spec: TrainSpec, sweep: Spec, *, on_run: Callable[[Cell, Run | None, int, int], None] | None = None
) -> Document:
    """Train under a launcher at each size of a sweep; return the document with efficiencies and verdict.

    Args:
        spec: The training on the fewest ranks, which identifies the measurement.
        sweep: Sizes, launcher and nodes. The sweep's figure is `rate_figure(spec)`. Its command is `penstock train` with
            `--json`, in which `{size}` is the global batch.
        on_run: See `bench.app.run.measure`.

    Raises:
        ConfigError: The sweep, its launcher or its nodes are not valid, or the training cannot be measured.
    """
    _check_measurable(spec)
    # Every rank is a torch process that joins the other ranks at MASTER_ADDR. The field `world` of the result shows
    # whether all ranks joined, so MPI is not checked.
    sweep = msgspec.structs.replace(sweep, world=r'"world": (\d+)', checks_mpi=False)
    cells = measure(sweep) if on_run is None else measure(sweep, on_run=on_run)
    notes = [f"{spec.workload} on {_data_of(spec)}, launcher {sweep.launcher}"]
    return document(sweep, cells, summarise(sweep, cells), label=spec.label, notes=notes)


def measure_scaling(
    spec: TrainSpec,
    ranks: Sequence[int],
    *,
    scaling: Scaling,
    repeats: int,
    report: Report | None = None,
    on_run: Callable[[int, int, float | None, str | None], None] | None = None,
) -> Document:
    """Train at each number of ranks on this node, `repeats` times; return the document with efficiencies and verdict.

    The rate is `steady_samples_per_s`. A failed run is counted in the row of its size, with its error, and the sweep
    continues. If `spec.threads` is not set, all sizes use the number of threads per rank that the largest size allows.

    Args:
        spec: The training on the fewest ranks.
        on_run: Called after each run with the number of the run, its ranks, its rate, or its error.

    Raises:
        ConfigError: The numbers of ranks are not valid, or the training cannot be measured.
    """
    _check_measurable(spec)
    cores = machine_card.read().cores
    if spec.threads is None and spec.accelerator is None:
        spec = msgspec.structs.replace(spec, threads=max(1, cores // max(ranks)))
    sweep = Spec(
        command=("penstock", "train", spec.workload, "--ranks", "{ranks}", "--global-batch", "{size}"),
        ranks=tuple(ranks),
        scaling=scaling,
        size=spec.global_batch,
        repeats=repeats,
        warm_up=0,
        figure=rate_figure(spec),
    )
    variant = sweep.variant[0]
    sizes = {str(size.ranks): size for size in sweep.sizes(variant)}
    cells = {
        name: Cell(variant=variant.name, ranks=size.ranks, nodes=1, problem_size=sweep.problem_size(size))
        for name, size in sizes.items()
    }
    for number, name in enumerate(abba_order(list(sizes), repeats)):
        cell = cells[name]
        if cell.is_abandoned:
            continue
        rate: float | None = None
        began_s = time.perf_counter()
        try:
            one = sized_spec(spec, cell.ranks, fewest=min(ranks), scaling=scaling)
            record = run_under_torchrun(one, report)
        except PenstockError as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            cell.record_failure(error)
        else:
            rate = record["steady_samples_per_s"] or record["samples_per_s"]
            wall_s = time.perf_counter() - began_s
            cell.runs.append(Run(round=number // len(sizes), wall_s=wall_s, value=rate))
        if on_run is not None:
            on_run(number + 1, cell.ranks, rate, cell.error if rate is None else None)
    threads = spec.threads or 1
    if not spec.device.startswith("cuda"):
        for cell in cells.values():
            if cell.ranks * threads > cores and spec.accelerator is None:
                cell.notes.append(f"{cell.ranks} ranks of {plural(threads, 'thread')} share {plural(cores, 'core')}")
    notes = [f"{spec.workload} on {_data_of(spec)}, {plural(threads, 'thread')} per rank"]
    found = list(cells.values())
    return document(sweep, found, summarise(sweep, found), label=spec.label, notes=notes)

# SPDX-License-Identifier: Apache-2.0
"""Summary of a scaling sweep: efficiency of each size, fits, comparison of variants, and a verdict in words."""

from __future__ import annotations

import math
from statistics import geometric_mean
from typing import TYPE_CHECKING

import msgspec

from penstock.bench.app.statistics import Estimate, amdahl, gustafson, paired_ratio, share_of_rounds
from penstock.units import plural

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.bench.app.cells import Cell, Run
    from penstock.bench.app.spec import Spec

__all__ = ["MAX_COST", "CellSummary", "Fit", "Overhead", "Summary", "VariantSummary", "summarise"]

# Efficiency below which the verdict advises against more ranks; a usual threshold for strong scaling.
_GOOD = 0.8
# If a measured time deviates from the fitted law by more than this share, the law does not explain it.
_FITS = 0.1
_ALL_SERIAL = 0.995
# Equal rates at all sizes give an efficiency of 1 only up to rounding.
_LINEAR = 1.001
# Upper limit of a cost above which an interval that includes 0 supports no statement.
MAX_COST = 1.0
_DIRECT_COPIES = (
    "all variants ran with {settings}: between ranks in containers of their own, Linux refuses Open MPI's direct copies of"
    " large messages (CMA), and they hang; set one of these variables with --env to decide yourself"
)
_INSIDE = (
    "whole runs with mpirun inside start the image's python3, the others this one, so a figure of merit compares them"
    " better than wall seconds"
)


class CellSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Means and efficiency of one size of one variant.

    Attributes:
        wall_s, value: Geometric means over the runs, so that their ratios are the speed-ups.
        spread: Largest minus smallest value, relative to the mean.
        speed_up: Speed relative to the smallest size. With weak scaling, the speed accounts for the larger problem.
        efficiency: Speed-up divided by the growth in ranks, with its interval.
        failed_runs, error, hint, is_abandoned: As in `Cell`.
    """

    variant: str
    ranks: int
    nodes: int
    problem_size: float
    runs: int
    failed_runs: int = 0
    wall_s: float | None = None
    value: float | None = None
    spread: float | None = None
    speed_up: float | None = None
    efficiency: Estimate | None = None
    cpus: tuple[str, ...] = ()
    error: str | None = None
    hint: str | None = None
    is_abandoned: bool = False
    notes: tuple[str, ...] = ()


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """Fit of a scaling law.

    Attributes:
        law: `Amdahl` (strong scaling) or `Gustafson` (weak scaling).
        serial_share: Share of the time at the smallest size that more ranks do not shorten, with its interval.
        deviation: Largest relative difference between a measured time and the law.
        deviating_ranks: Number of ranks at which the largest difference occurs.
        max_speed_up: Limit of the speed-up by Amdahl's law, relative to `base_ranks`; None without a limit.
        base_ranks: Number of ranks of the smallest size.
    """

    law: str
    base_ranks: int = 1
    serial_share: Estimate
    deviation: float
    deviating_ranks: int
    max_speed_up: float | None = None


class VariantSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Scaling of one variant."""

    variant: str
    cells: tuple[CellSummary, ...]
    fit: Fit | None = None
    verdict: tuple[str, ...] = ()


class Overhead(msgspec.Struct, frozen=True, kw_only=True):
    """Comparison of a variant with the first variant, at one size.

    Attributes:
        cost: Extra time of the variant relative to the first variant, with its interval. For example, 0.05 is 5 %
            slower; a negative value is faster.
        wall_cost: Extra wall time of the whole run, including the start of the ranks, relative to the first variant.
        is_shown: Whether the interval excludes 0.
        sentence: The result in words.
    """

    variant: str
    base: str
    ranks: int
    nodes: int
    quantity: str
    cost: Estimate
    wall_cost: Estimate
    is_shown: bool
    sentence: str


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the table, the page and the JSON document show."""

    scaling: str
    quantity: str
    variants: tuple[VariantSummary, ...]
    overheads: tuple[Overhead, ...]
    failed: int
    notes: tuple[str, ...] = ()


def summarise(spec: Spec, cells: Sequence[Cell]) -> Summary:
    """Summarise the cells of a sweep."""
    quantity = spec.figure.name if spec.figure is not None else "wall seconds"
    variants = tuple(_variant(spec, v.name, [c for c in cells if c.variant == v.name]) for v in spec.variant)
    notes = []
    if any(each.container is not None and each.way == "inside" for each in spec.variant):
        notes.append(_INSIDE)
    copies = spec.without_direct_copies()
    if copies and any(cell.ranks > cell.nodes and "Open MPI" in (cell.mpi or "Open MPI") for cell in cells):
        notes.append(_DIRECT_COPIES.format(settings=" and ".join(f"{name}={value}" for name, value in copies.items())))
    if spec.repeats == 1:
        notes.append("one round has no interval; pass --repeats 3 or more")
    return Summary(
        scaling=spec.scaling,
        quantity=quantity,
        variants=variants,
        overheads=tuple(_overheads(spec, cells)),
        failed=sum(cell.error is not None for cell in cells),
        notes=tuple(notes),
    )


def _step_s(spec: Spec, cell: Cell, run: Run) -> float:
    """Value proportional to the time of one step of the whole problem at this size, from the figure or the duration."""
    if spec.figure is None or run.value is None:
        return run.wall_s
    if spec.figure.kind == "seconds":
        return run.value
    # A total rate counts the work of all ranks. With weak scaling, the work of a step grows with the number of ranks.
    work = cell.ranks if spec.scaling == "weak" and spec.figure.kind == "total-rate" else 1
    return work / run.value


def _by_round(spec: Spec, cell: Cell) -> dict[int, float]:
    return {run.round: _step_s(spec, cell, run) for run in cell.runs}


def _common(*cells: dict[int, float]) -> list[int]:
    """Rounds in which all cells ran."""
    return sorted(set(cells[0]).intersection(*cells[1:]))


def _variant(spec: Spec, name: str, cells: list[Cell]) -> VariantSummary:
    measured = [cell for cell in cells if cell.runs]
    base = min(measured, key=lambda c: (c.ranks, c.nodes)) if measured else None
    rows = tuple(_cell(spec, cell, base) for cell in cells)
    fit = _fit(spec, measured, base) if base is not None else None
    return VariantSummary(variant=name, cells=rows, fit=fit, verdict=_verdict(spec, rows, fit))


def _cell(spec: Spec, cell: Cell, base: Cell | None) -> CellSummary:
    values = [run.value for run in cell.runs if run.value is not None]
    walls = [run.wall_s for run in cell.runs]
    known = values or walls
    speed_up, efficiency = None, None
    if base is not None and cell.runs:
        mine, first = _by_round(spec, cell), _by_round(spec, base)
        rounds = _common(mine, first)
        if rounds:
            growth = cell.ranks / base.ranks
            faster = paired_ratio([first[r] for r in rounds], [mine[r] for r in rounds])
            # Weak scaling: the problem grows with the ranks, so equal times are a speed-up of `growth`.
            factor = growth if spec.scaling == "weak" else 1.0
            speed_up = faster.value * factor
            efficiency = faster.mapped(lambda ratio: ratio * factor / growth)
    return CellSummary(
        variant=cell.variant,
        ranks=cell.ranks,
        nodes=cell.nodes,
        problem_size=cell.problem_size,
        runs=len(cell.runs),
        wall_s=geometric_mean(walls) if walls else None,
        value=geometric_mean(values) if values else None,
        spread=(max(known) - min(known)) / geometric_mean(known) if len(known) > 1 else None,
        speed_up=speed_up,
        efficiency=efficiency,
        cpus=cell.runs[-1].cpus if cell.runs else (),
        failed_runs=cell.failed_runs,
        error=cell.error,
        hint=cell.hint,
        is_abandoned=cell.is_abandoned,
        notes=tuple(cell.notes),
    )


def _fit(spec: Spec, cells: list[Cell], base: Cell) -> Fit | None:
    """Fit over the numbers of ranks. Of several cells with equal numbers of ranks, the cell with the fewest nodes is
    used.
    """
    chosen: dict[int, Cell] = {}
    for cell in sorted(cells, key=lambda c: c.nodes):
        if not cell.is_abandoned:
            chosen.setdefault(cell.ranks, cell)
    if len(chosen) < 2 or base.ranks not in chosen:
        return None
    times = {ranks / base.ranks: _by_round(spec, cell) for ranks, cell in chosen.items()}
    rounds = _common(*times.values())
    if not rounds:
        return None
    by_round = [{q: times[q][r] for q in times} for r in rounds]
    if spec.scaling == "strong":
        share = share_of_rounds(by_round, amdahl)
        law = {q: share.value + (1 - share.value) / q for q in times}
        limit = 1 / share.value if share.value > 0 else None
    else:
        scaled = [{q: q * each[1.0] / t for q, t in each.items()} for each in by_round]
        share = share_of_rounds(scaled, gustafson)
        law = {q: q / (q - share.value * (q - 1)) for q in times}
        limit = None
    found = {q: math.exp(math.fsum(math.log(each[q] / each[1.0]) for each in by_round) / len(by_round)) for q in times}
    worst = max(times, key=lambda q: abs(found[q] / law[q] - 1))
    return Fit(
        law="Amdahl" if spec.scaling == "strong" else "Gustafson",
        serial_share=share,
        deviation=abs(found[worst] / law[worst] - 1),
        deviating_ranks=round(worst * base.ranks),
        max_speed_up=limit,
        base_ranks=base.ranks,
    )


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _between(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return "one round, no interval"
    return f"{_percent(estimate.low)} to {_percent(estimate.high)}"


def _sizes(rows: Sequence[CellSummary]) -> str:
    """`2 ranks`, `2, 4 ranks`."""
    ranks = sorted({row.ranks for row in rows})
    return plural(ranks[0], "rank") if len(ranks) == 1 else f"{', '.join(map(str, ranks))} ranks"


def _verdict(spec: Spec, rows: Sequence[CellSummary], fit: Fit | None) -> tuple[str, ...]:
    good = [row for row in rows if row.efficiency is not None and not row.is_abandoned]
    if not good:
        return ("no size ran, so there is no scaling to judge",)
    if len(spec.ranks) == 1:
        return ()  # a comparison of variants, not of sizes
    if len({row.ranks for row in good}) < 2:
        return ("only one number of ranks ran, so there is no scaling to judge",)
    good.sort(key=lambda row: (row.ranks, row.nodes))
    first, last = good[0], max(good, key=lambda row: (row.ranks, -row.nodes))
    assert last.efficiency is not None
    reached = f"efficiency {_percent(last.efficiency.value)} ({_between(last.efficiency)})"
    parts = [f"{reached} at {plural(last.ranks, 'rank')}, relative to {first.ranks}"]
    if spec.scaling == "strong":
        parts += _speed(good, last)
    parts += _efficiency(good[1:])
    if last.efficiency.low is not None and last.efficiency.low > _LINEAR:
        parts.append("faster than linear: more cache per rank, or a smallest size that was disturbed")
    if fit is not None:
        parts.append(_law(fit))
    if failed := [row for row in rows if row.is_abandoned]:
        parts.append(f"{_sizes(failed)} failed, so the verdict does not include them")
    if shared := [row for row in good if any("share" in note for note in row.notes)]:
        parts.append(f"{_sizes(shared)} shared CPUs, so they do not show the program's scaling")
    return tuple(parts)


def _interval(estimate: Estimate) -> tuple[float, float]:
    """The interval; after one round, the value alone."""
    low, high = estimate.low, estimate.high
    return (estimate.value, estimate.value) if low is None or high is None else (low, high)


def _speed(rows: Sequence[CellSummary], last: CellSummary) -> list[str]:
    """Whether the runs show that a smaller size is faster than the last one, or that more ranks are faster at all."""
    speeds = {}
    for at, row in enumerate(rows):
        assert row.efficiency is not None
        speeds[at] = tuple(edge * row.ranks / rows[0].ranks for edge in _interval(row.efficiency))
    best = max(speeds, key=lambda at: speeds[at][0])
    if rows[best].ranks < last.ranks and speeds[best][0] > speeds[rows.index(last)][1]:
        return [f"the fastest size is {plural(rows[best].ranks, 'rank')}; {last.ranks} are slower"]
    return [] if speeds[best][0] > 1 else ["the runs do not show that more ranks are faster"]


def _efficiency(rows: Sequence[CellSummary]) -> list[str]:
    """At which sizes the efficiency is shown to be below or above the threshold."""
    below, above = [], []
    for row in rows:
        assert row.efficiency is not None
        low, high = _interval(row.efficiency)
        if high < _GOOD:
            below.append(row)
        elif low >= _GOOD:
            above.append(row)
    limit, parts = _percent(_GOOD), []
    if len(above) == len(rows):
        return [f"above {limit} at every size"]
    if below and below == list(rows[-len(below) :]):
        parts.append(f"below {limit} from {plural(below[0].ranks, 'rank')} on")
    elif below:
        parts.append(f"below {limit} at {_sizes(below)}")
    if unknown := [row for row in rows if row not in below and row not in above]:
        parts.append(f"the runs do not show whether {_sizes(unknown)} are above {limit}; more --repeats would")
    return parts


def _law(fit: Fit) -> str:
    if fit.deviation > _FITS:
        missed = f"{plural(fit.deviating_ranks, 'rank')} by {_percent(fit.deviation)}"
        return f"{fit.law}'s law does not describe these times: it misses {missed}, so another limit matters"
    base = plural(fit.base_ranks, "rank")
    text = f"{fit.law}: serial share {_percent(fit.serial_share.value)} of the time at {base} ({_between(fit.serial_share)})"
    if fit.max_speed_up is not None and fit.serial_share.value > _ALL_SERIAL:
        text += ", so more ranks do not shorten the run"
    elif fit.max_speed_up is not None and fit.serial_share.low != 0:
        text += f", so at most {fit.max_speed_up:.3g} times faster than {base} with any number of ranks"
    elif fit.max_speed_up is not None:
        text += ", so the runs do not show a limit of the speed-up"
    return text


def _overheads(spec: Spec, cells: Sequence[Cell]) -> list[Overhead]:
    """Compare every variant with the first one, at each number of ranks that both ran."""
    base_name = spec.variant[0].name
    found = []
    for cell in cells:
        bases = [c for c in cells if c.variant == base_name and c.ranks == cell.ranks]
        base = next((c for c in bases if c.nodes == cell.nodes), bases[0] if len(bases) == 1 else None)
        if cell.variant == base_name or base is None:
            continue
        mine, first = _by_round(spec, cell), _by_round(spec, base)
        rounds = _common(mine, first)
        if not rounds:
            continue
        cost = paired_ratio([mine[r] for r in rounds], [first[r] for r in rounds]).mapped(_less_one)
        walls = [{run.round: run.wall_s for run in each.runs} for each in (cell, base)]
        wall_cost = paired_ratio([walls[0][r] for r in rounds], [walls[1][r] for r in rounds]).mapped(_less_one)
        shown = cost.low is not None and cost.high is not None and not cost.low <= 0 <= cost.high
        found.append(
            Overhead(
                variant=cell.variant,
                base=base_name,
                ranks=cell.ranks,
                nodes=cell.nodes,
                quantity=spec.figure.name if spec.figure is not None else "wall seconds",
                cost=cost,
                wall_cost=wall_cost,
                is_shown=shown,
                sentence=_cost_sentence(cost),
            )
        )
    return found


def _less_one(ratio: float) -> float:
    return ratio - 1


def _cost_sentence(cost: Estimate) -> str:
    if cost.low is None or cost.high is None:
        return f"{100 * cost.value:+.1f} % time in one round; no interval, so no conclusion"
    if cost.low > 0:
        return f"costs {_percent(cost.value)} ({_between(cost)})"
    if cost.high < 0:
        return f"saves {_percent(-cost.value)} ({_percent(-cost.high)} to {_percent(-cost.low)})"
    if cost.high > MAX_COST:
        most = _percent(cost.high) if cost.high < 10 * MAX_COST else "more than 1000 %"
        return f"no conclusion: the runs differ too much ({_percent(cost.low)} to {most}); more --repeats would help"
    return f"no difference shown, ≤ {_percent(cost.high)} ({_percent(cost.value)}, {_between(cost)})"

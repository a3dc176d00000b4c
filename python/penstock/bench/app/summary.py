# SPDX-License-Identifier: Apache-2.0
"""Summary of a scaling sweep: efficiency of each size, fits, comparison of variants, and a verdict in words."""

from __future__ import annotations

import math
from statistics import median
from typing import TYPE_CHECKING

import msgspec

from penstock.bench.app.statistics import Estimate, amdahl, bootstrap_rounds, gustafson, paired_ratio

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.bench.app.cells import Cell, Run
    from penstock.bench.app.spec import Spec

__all__ = ["CellSummary", "Fit", "Overhead", "Summary", "VariantSummary", "plural", "summarise"]

# Efficiency below which the verdict advises against more ranks; a usual threshold for strong scaling.
_GOOD = 0.8
# If a measured time deviates from the fitted law by more than this share, the law does not explain it.
_FITS = 0.1
_MIN_ROUNDS = 5
_ALL_SERIAL = 0.995
_INSIDE = (
    "whole runs with mpirun inside start the image's python3, the others this one, so a figure of merit compares them"
    " better than wall seconds"
)


class CellSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Medians and efficiency of one size of one variant.

    Attributes:
        speed_up: Speed relative to the smallest size. With weak scaling, the speed accounts for the larger problem.
        efficiency: Speed-up divided by the growth in ranks, with its interval.
    """

    variant: str
    ranks: int
    nodes: int
    problem_size: float
    runs: int
    wall_s: float | None = None
    value: float | None = None
    spread: float | None = None
    speed_up: float | None = None
    efficiency: Estimate | None = None
    cpus: tuple[str, ...] = ()
    error: str | None = None
    hint: str | None = None
    notes: tuple[str, ...] = ()


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """Fit of a scaling law.

    Attributes:
        law: `Amdahl` (strong scaling) or `Gustafson` (weak scaling).
        serial_share: Share of the time at the smallest size that more ranks do not shorten, with a bootstrap interval.
        deviation: Largest relative difference between a measured time and the law.
        deviating_ranks: Number of ranks at which the largest difference occurs.
        max_speed_up: Limit of the speed-up by Amdahl's law; None without a limit.
    """

    law: str
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
    if 1 < spec.repeats < _MIN_ROUNDS:
        notes.append(f"bootstrap intervals of {spec.repeats} rounds are too narrow; --repeats 5 or more is better")
    if any(each.container is not None and each.way == "inside" for each in spec.variant):
        notes.append(_INSIDE)
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
        wall_s=median(walls) if walls else None,
        value=median(values) if values else None,
        spread=(max(known) - min(known)) / median(known) if len(known) > 1 else None,
        speed_up=speed_up,
        efficiency=efficiency,
        cpus=cell.runs[-1].cpus if cell.runs else (),
        error=cell.error,
        hint=cell.hint,
        notes=tuple(cell.notes),
    )


def _fit(spec: Spec, cells: list[Cell], base: Cell) -> Fit | None:
    """Fit over the numbers of ranks. Of several cells with equal numbers of ranks, the cell with the fewest nodes is
    used.
    """
    chosen: dict[int, Cell] = {}
    for cell in sorted(cells, key=lambda c: c.nodes):
        if cell.error is None:
            chosen.setdefault(cell.ranks, cell)
    if len(chosen) < 2 or base.ranks not in chosen:
        return None
    times = {ranks / base.ranks: _by_round(spec, cell) for ranks, cell in chosen.items()}
    rounds = _common(*times.values())
    if not rounds:
        return None
    by_round = [{q: times[q][r] for q in times} for r in rounds]
    if spec.scaling == "strong":
        share = bootstrap_rounds(by_round, amdahl, seed=spec.seed)
        law = {q: share.value + (1 - share.value) / q for q in times}
        limit = 1 / share.value if share.value > 0 else None
    else:
        scaled = [{q: q * each[1.0] / t for q, t in each.items()} for each in by_round]
        share = bootstrap_rounds(scaled, gustafson, seed=spec.seed)
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
    )


def plural(count: int, noun: str) -> str:
    """`1 rank`, `2 ranks`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _between(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return "one round, no interval"
    return f"{_percent(estimate.low)} to {_percent(estimate.high)}"


def _verdict(spec: Spec, rows: Sequence[CellSummary], fit: Fit | None) -> tuple[str, ...]:
    good = [row for row in rows if row.efficiency is not None and row.error is None]
    if not good:
        return ("no size ran, so there is no scaling to judge",)
    if len(spec.ranks) == 1:
        return ()  # a comparison of variants, not of sizes
    if len({row.ranks for row in good}) < 2:
        return ("only one number of ranks ran, so there is no scaling to judge",)
    last = max(good, key=lambda row: (row.ranks, -row.nodes))
    assert last.efficiency is not None
    first = min(good, key=lambda row: (row.ranks, row.nodes))
    reached = f"efficiency {_percent(last.efficiency.value)} ({_between(last.efficiency)})"
    parts = [f"{reached} at {plural(last.ranks, 'rank')}, relative to {first.ranks}"]
    best = max(good, key=lambda row: row.speed_up or 0.0)
    if spec.scaling == "strong" and best.ranks < last.ranks:
        parts.append(f"the fastest size is {plural(best.ranks, 'rank')}; more are slower")
    low = next((row for row in good if row.efficiency is not None and row.efficiency.value < _GOOD), None)
    if low is not None:
        parts.append(f"below {_percent(_GOOD)} from {plural(low.ranks, 'rank')} on")
    elif last.efficiency.low is not None and last.efficiency.low >= _GOOD:
        parts.append(f"above {_percent(_GOOD)} at every size")
    else:
        parts.append(f"the runs do not show whether it is above {_percent(_GOOD)}; more --repeats would")
    if last.efficiency.low is not None and last.efficiency.low > 1.0:
        parts.append("faster than linear: more cache per rank, or a smallest size that was disturbed")
    if fit is not None:
        parts.append(_law(fit))
    shared = [row.ranks for row in good if any("share" in note for note in row.notes)]
    if shared:
        parts.append(f"{', '.join(map(str, shared))} ranks shared CPUs, so they do not show the program's scaling")
    return tuple(parts)


def _law(fit: Fit) -> str:
    text = f"{fit.law}: serial share {_percent(fit.serial_share.value)} ({_between(fit.serial_share)})"
    if fit.max_speed_up is not None and fit.serial_share.value > _ALL_SERIAL:
        text += ", so more ranks do not shorten the run"
    elif fit.max_speed_up is not None:
        text += f", so at most {fit.max_speed_up:.3g} times faster with any number of ranks"
    if fit.deviation > _FITS:
        text += f"; the law misses {fit.deviating_ranks} ranks by {_percent(fit.deviation)}, so another limit matters"
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
    return f"no difference shown, ≤ {_percent(cost.high)} ({_percent(cost.value)}, {_between(cost)})"

# SPDX-License-Identifier: Apache-2.0
"""Result of `penstock plan`: every prediction with its id, the frontier and the analyses, as one JSON document.

Fields are only ever added. `plan.prediction_log` stores the predictions for a later comparison with measurements.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.bench.results import new_id, spec_hash
from penstock.errors import ConfigError
from penstock.plan.analysis import (
    BreakEvenPoint,
    Demand,
    Sensitivity,
    best,
    break_evens,
    demand,
    epoch_range,
    frontier,
    limit_words,
    sensitivity,
)
from penstock.plan.predict import ScenarioPrediction, predict
from penstock.plan.provenance import doubts, limit_sources
from penstock.plan.scenario import Scenario, scenarios
from penstock.price import book as books
from penstock.units import format_seconds

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Sequence

    from penstock.plan.spec import PlanSpec
    from penstock.price.book import PriceBook

__all__ = ["PlanResult", "Row", "as_json", "make_plan"]

SCHEMA_VERSION = 1


class Row(msgspec.Struct, frozen=True):
    """One prediction with its id, and whether no other prediction beats it in both time and money.

    Attributes:
        epoch_range_s: Shortest and longest epoch within the uncertainty of the measured limits; None if no uncertainty
            is stated.
    """

    id: str
    prediction: ScenarioPrediction
    on_frontier: bool
    epoch_range_s: tuple[float, float] | None = None


class PlanResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a plan.

    Attributes:
        spec: The plan file, units removed.
        answer: The answer in a sentence or two.
        sensitivity_of: Id of the prediction that `sensitivity` varies: the cheapest one, or the fastest if no cost is
            known.
        unknown: Missing prices, each with the key that sets it. A missing price never counts as 0.
        prices: Rows of the price book that were used, as text; `dates` states their age.
        limits: Limits of the stores' tiers with their sources, as text.
        doubts: Limits that are not verified or only roughly known, and prices of another region.
    """

    id: str
    created: str
    name: str
    spec: dict[str, Any]
    spec_hash: str
    unit: str
    currency: str
    answer: str
    rows: tuple[Row, ...]
    break_even: tuple[BreakEvenPoint, ...]
    demand: tuple[Demand, ...]
    sensitivity: tuple[Sensitivity, ...]
    sensitivity_of: str
    unknown: tuple[str, ...]
    prices: tuple[str, ...]
    dates: str
    notes: tuple[str, ...]
    limits: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    schema_version: int = SCHEMA_VERSION

    def row(self, prediction: ScenarioPrediction) -> Row:
        """Return the row that contains a prediction."""
        return next(row for row in self.rows if row.prediction is prediction)


def make_plan(spec: PlanSpec, book: PriceBook, today: dt.datetime) -> PlanResult:
    """Predict all scenarios of a plan, and analyse them.

    Raises:
        ConfigError: The plan is invalid, or none of its scenarios is possible; the error names the limits that make
            them impossible.
    """
    found = scenarios(spec, book)
    predictions = [predict(scenario) for scenario in found]
    _refuse_impossible(predictions)
    plan_id = new_id("plan", time.time())
    front = frontier(predictions)
    rows = tuple(
        Row(f"{plan_id}.{index}", prediction, index in front, epoch_range(found[index]))
        for index, prediction in enumerate(predictions)
    )
    chosen = best(predictions, "cost") or best(predictions, "time")
    assert chosen is not None
    at = next(index for index, prediction in enumerate(predictions) if prediction is chosen)
    plain = msgspec.to_builtins(spec)
    used = list({price.item + price.region: price for scenario in found for price in scenario.prices.used}.values())
    return PlanResult(
        id=plan_id,
        created=today.strftime("%Y-%m-%dT%H:%M:%SZ"),
        name=spec.name,
        spec=plain,
        spec_hash=spec_hash(plain),
        unit=spec.workload.unit,
        currency=spec.currency,
        answer=_answer(predictions, spec.currency),
        rows=rows,
        break_even=tuple(break_evens(predictions)),
        demand=tuple(_demands(found)),
        sensitivity=tuple(sensitivity(found[at])),
        sensitivity_of=rows[at].id,
        unknown=tuple(dict.fromkeys(text for scenario in found for text in scenario.prices.unknown)),
        prices=tuple(_price_line(price) for price in used),
        dates=books.dates_line(used, today.date()),
        notes=tuple(_notes(spec)),
        limits=tuple(limit_sources(spec)),
        doubts=tuple(dict.fromkeys((*(each for one in found for each in one.prices.substituted), *doubts(spec)))),
    )


def _refuse_impossible(rows: Sequence[ScenarioPrediction]) -> None:
    if any(not row.impossible for row in rows):
        return
    reasons = list(dict.fromkeys(f"{row.path} on {row.nodes} x {row.machine}: {row.impossible}" for row in rows))
    more = f"; and {len(reasons) - 4} more" if len(reasons) > 4 else ""
    raise ConfigError(
        f"no path of this plan is possible: {'; '.join(reasons[:4])}{more}",
        hint="raise the limit, change the number of nodes, or add a path without this limit",
    )


def _demands(found: Sequence[Scenario]) -> list[Demand]:
    """Return one demand for each machine, form and number of nodes. A demand is the same for all paths with this form,
    and for spot machines.
    """
    unique: dict[tuple[str, str, int], Demand] = {}
    for scenario in (each for each in found if each.spot is None):
        unique.setdefault((scenario.machine, scenario.form, scenario.nodes), demand(scenario))
    return list(unique.values())


def money_words(amount: float | None, currency: str) -> str:
    """Money as text: `$1,255`, `1,255 EUR`, or `unknown`."""
    if amount is None:
        return "unknown"
    if not math.isfinite(amount):
        return "endless"
    figure = f"{amount:,.2f}" if amount < 9.995 else f"{amount:,.0f}"
    return f"${figure}" if currency == "USD" else f"{figure} {currency}"


def _named(row: ScenarioPrediction) -> str:
    return f"{row.path} on {row.nodes} x {row.machine}"


def _answer(rows: Sequence[ScenarioPrediction], currency: str) -> str:
    fastest = best(rows, "time")
    cheapest = best(rows, "cost")
    assert fastest is not None
    if cheapest is None:
        priced = " The cost is unknown, because prices are missing."
        return f"Fastest: {_named(fastest)}, {format_seconds(fastest.finish_s)}, limited by {limit_words(fastest.limited_by)}.{priced}"
    text = (
        f"Cheapest: {_named(cheapest)}, {money_words(cheapest.money.total, currency)} in "
        f"{format_seconds(cheapest.finish_s)}, limited by {limit_words(cheapest.limited_by)}."
    )
    if fastest is cheapest:
        return f"Cheapest and fastest{text.removeprefix('Cheapest')}"
    return (
        f"{text} Fastest: {_named(fastest)}, {format_seconds(fastest.finish_s)} for "
        f"{money_words(fastest.money.total, currency)}."
    )


def _price_line(price: books.Price) -> str:
    per = f" for {price.per:,} {price.unit}s" if price.per > 1 else f" per {price.unit}"
    return f"{price.item}: {price.value:g} {price.currency}{per}, {price.region}, as of {price.as_of} ({price.source})"


def _notes(spec: PlanSpec) -> list[str]:
    """Statements about what the predictions leave out."""
    notes = ["Predicted from stated limits, not measured: the spread of the ranks' speeds and validation are left out."]
    if any(path.steps_per_s is not None or path.staged_in_s is not None for path in spec.paths):
        notes.append("Paths with steps_per_s or staged_in repeat a rate that was measured or published elsewhere.")
    if spec.workload.decode_bytes_per_s is None:
        notes.append("Decoding is left out, because workload.decode is not given.")
    if spec.dataset.held_out:
        notes.append(
            f"The {spec.dataset.held_out:,} held-out samples are stored and staged, but epochs do not read them."
        )
    if spec.place.crosses != "none" and not spec.place.replicates:
        notes.append(f"Reads cross a {spec.place.crosses} border, and each of them pays egress.")
    return notes


def as_json(result: PlanResult) -> bytes:
    """One JSON document; `money.total` is added to each prediction. Infinite figures are null."""
    plain = msgspec.to_builtins(result)
    for row, given in zip(plain["rows"], result.rows, strict=True):
        prediction = given.prediction
        row["prediction"]["finish_s"] = prediction.finish_s
        row["prediction"]["money"]["total"] = prediction.money.total
    return msgspec.json.encode(plain)

# SPDX-License-Identifier: Apache-2.0
"""Analyses the predictions of a plan: Pareto frontier, break-even, sensitivity, demand on the store, and a target."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Literal

import msgspec

from penstock.errors import ConfigError
from penstock.plan.model import TERM_LABELS
from penstock.plan.predict import ScenarioPrediction, predict

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.plan.scenario import Scenario

__all__ = [
    "LIMITS",
    "BreakEvenPoint",
    "Demand",
    "Sensitivity",
    "Target",
    "best",
    "break_evens",
    "choose",
    "demand",
    "epoch_range",
    "frontier",
    "limit_words",
    "parse_target",
    "sensitivity",
]

_STEP = 0.2  # the limits are varied by +-20 %
Goal = Literal["cost", "time"]


class Sensitivity(msgspec.Struct, frozen=True):
    """Effect of one limit on the job.

    Attributes:
        limit: Name of the limit, and its value in words.
        time_less_s, time_more_s: Duration of the job with 20 % less and 20 % more of the limit.
        money_less, money_more: Cost with 20 % less and 20 % more; None if a price is unknown.
        time_elasticity, money_elasticity: Percent of change per percent of the limit, over this range. -1 means that 10
            % more of the limit saves 10 %.
    """

    limit: str
    time_less_s: float
    time_more_s: float
    money_less: float | None
    money_more: float | None
    time_elasticity: float
    money_elasticity: float | None


class Demand(msgspec.Struct, frozen=True):
    """Demand of accelerators that never wait: the rates of the store and of the network, and the CPU cores.

    Attributes:
        bytes_per_s, opens_per_s: Stored bytes and objects (or parts) of all nodes, for a path that streams `form`.
        node_bytes_per_s: Stored bytes per second of one node.
        in_flight: Requests in flight over all nodes, by Little's law: opens/s x the duration of one request.
        cores_per_node: Cores of a node that decompression and decoding keep busy.
    """

    machine: str
    form: str
    nodes: int
    accelerators: int
    samples_per_s: float
    bytes_per_s: float
    node_bytes_per_s: float
    opens_per_s: float
    in_flight: float
    cores_per_node: float


class BreakEvenPoint(msgspec.Struct, frozen=True):
    """Comparison of a path that needs time before the first epoch with a path that needs none, for one node count.

    Attributes:
        from_epochs: Smallest number of epochs with which `path` ends first; None if it never does.
        from_epochs_money: Smallest number of epochs with which `path` is cheaper, computed from the cost of this job;
            None if it never is, or if a price is unknown.
    """

    path: str
    against: str
    machine: str
    nodes: int
    from_epochs: int | None
    from_epochs_money: int | None


class Target(msgspec.Struct, frozen=True):
    """A minimum rate in samples/s, or a maximum duration of the job in seconds. Exactly one is set."""

    samples_per_s: float | None = None
    job_s: float | None = None

    def holds(self, row: ScenarioPrediction) -> bool:
        """Whether a prediction reaches the target."""
        if self.samples_per_s is not None:
            return row.samples_per_s >= self.samples_per_s
        return row.finish_s <= (self.job_s or 0.0)


def limit_words(term: str) -> str:
    """Name of a limiting term, as text."""
    return TERM_LABELS.get(term, term)


def frontier(rows: Sequence[ScenarioPrediction]) -> set[int]:
    """Indexes of the rows that no other row beats in both time and money (Pareto).

    Rows that are impossible, or whose cost is unknown, are never on the frontier. Of equal rows, either all or none are
    on the frontier.
    """
    points = sorted(
        (row.finish_s, row.money.total, index)
        for index, row in enumerate(rows)
        if not row.impossible and row.money.total is not None
    )
    best, found = math.inf, set()
    last: tuple[float, float] | None = None
    for time_s, money, index in points:
        assert money is not None
        if money < best or (time_s, money) == last:
            found.add(index)
            best, last = money, (time_s, money)
    return found


def best(rows: Sequence[ScenarioPrediction], goal: Goal) -> ScenarioPrediction | None:
    """The cheapest or the fastest possible row. Of equally cheap rows, the fastest is chosen; of equally fast rows, the
    cheapest.
    """
    possible = [row for row in rows if not row.impossible]
    if goal == "time":
        return min(possible, key=lambda row: (row.finish_s, row.money.known), default=None)
    priced = [row for row in possible if row.money.total is not None]
    return min(priced, key=lambda row: (row.money.total or 0.0, row.finish_s), default=None)


def _in_job(field: str) -> Callable[[Scenario, float], Scenario]:
    def change(scenario: Scenario, factor: float) -> Scenario:
        job = msgspec.structs.replace(scenario.job, **{field: getattr(scenario.job, field) * factor})
        return msgspec.structs.replace(scenario, job=job)

    return change


def _in_route(field: str) -> Callable[[Scenario, float], Scenario]:
    def change(scenario: Scenario, factor: float) -> Scenario:
        route = msgspec.structs.replace(scenario.route, **{field: getattr(scenario.route, field) * factor})
        return msgspec.structs.replace(scenario, route=route)

    return change


def _cores(scenario: Scenario, factor: float) -> Scenario:
    """The scenario with `factor` times the cores. The rates per core are scaled, because the number of cores must be
    whole.
    """
    route, rate = scenario.route, 1 / factor
    return msgspec.structs.replace(
        scenario,
        route=msgspec.structs.replace(
            route, inflate_core_s=route.inflate_core_s * rate, decode_core_s=route.decode_core_s * rate
        ),
        inflate_bytes_per_s=scenario.inflate_bytes_per_s * factor,
        kept_inflate_bytes_per_s=scenario.kept_inflate_bytes_per_s * factor,
    )


def _disk(field: str) -> Callable[[Scenario, float], Scenario]:
    def change(scenario: Scenario, factor: float) -> Scenario:
        if scenario.disks is None:
            return scenario
        disks = msgspec.structs.replace(scenario.disks, **{field: getattr(scenario.disks, field) * factor})
        route = scenario.route
        if field == "read_bytes_per_s":
            route = msgspec.structs.replace(route, disk_bytes_per_s=route.disk_bytes_per_s * factor)
        return msgspec.structs.replace(scenario, disks=disks, route=route)

    return change


def _link(scenario: Scenario, factor: float) -> Scenario:
    found = _in_route("link_bytes_per_s")(scenario, factor)
    return msgspec.structs.replace(found, replicate_s=scenario.replicate_s / factor)


def _node_price(scenario: Scenario, factor: float) -> Scenario:
    price = scenario.prices.node_hour
    prices = msgspec.structs.replace(scenario.prices, node_hour=None if price is None else price * factor)
    return msgspec.structs.replace(scenario, prices=prices)


LIMITS: dict[str, Callable[[Scenario, float], Scenario]] = {
    "step time of the accelerators": _in_job("compute_step_s"),
    "account bandwidth": _in_job("account_bytes_per_s"),
    "network card": _in_job("nic_bytes_per_s"),
    "request rate": _in_route("requests_per_s"),
    "latency": _in_route("latency_s"),
    "rate of one connection": _in_route("connection_bytes_per_s"),
    "network between nodes": _in_route("fabric_bytes_per_s"),
    "link between regions": _link,
    "cores (decompression and decoding)": _cores,
    "disk reads": _disk("read_bytes_per_s"),
    "disk writes": _disk("write_bytes_per_s"),
    "price of a node": _node_price,
}


def sensitivity(scenario: Scenario) -> list[Sensitivity]:
    """Vary each limit by -20 % and +20 %, and predict again. The limit with the largest effect on the time comes
    first.
    """
    rows = []
    for name, change in LIMITS.items():
        less, more = (predict(change(scenario, 1 + sign * _STEP)) for sign in (-1, 1))
        rows.append(
            Sensitivity(
                limit=name,
                time_less_s=less.finish_s,
                time_more_s=more.finish_s,
                money_less=less.money.total,
                money_more=more.money.total,
                time_elasticity=_elasticity(less.finish_s, more.finish_s),
                money_elasticity=None
                if less.money.total is None or more.money.total is None
                else _elasticity(less.money.total, more.money.total),
            )
        )
    return sorted(rows, key=lambda row: (-abs(row.time_elasticity), -abs(row.money_elasticity or 0.0)))


_LIMIT_OF = {
    "account_bytes_per_s": "account bandwidth",
    "connection_bytes_per_s": "rate of one connection",
    "requests_per_s": "request rate",
    "latency_s": "latency",
}


def epoch_range(scenario: Scenario) -> tuple[float, float] | None:
    """Shortest and longest epoch if every limit that a probe measured is at the upper or lower end of its 95 %
    interval.

    Returns:
        Seconds, or None if no limit has a stated uncertainty. The errors of the model itself are not included.
    """
    if not scenario.limit_errors:
        return None
    slow = fast = scenario
    for name, share in scenario.limit_errors.items():
        error = min(share, 0.99)  # an interval that contains 0 has no slowest rate
        less, more = (1 - error, 1 + error) if name != "latency_s" else (1 + error, 1 - error)
        slow, fast = LIMITS[_LIMIT_OF[name]](slow, less), LIMITS[_LIMIT_OF[name]](fast, more)
    return predict(fast).epoch_s, predict(slow).epoch_s


def _elasticity(less: float, more: float) -> float:
    if not (0 < less < math.inf and 0 < more < math.inf):
        return 0.0
    value = math.log(more / less) / math.log((1 + _STEP) / (1 - _STEP))
    return 0.0 if abs(value) < 1e-9 else value


def demand(scenario: Scenario) -> Demand:
    """Demand of a scenario's accelerators on a store that never makes them wait."""
    job, route = scenario.job, scenario.route
    rate = job.global_batch / (job.compute_step_s + job.exposed_allreduce_s)
    stored = scenario.stored_bytes / (job.samples + job.held_out)
    raw = scenario.raw_bytes / (job.samples + job.held_out)
    opens = rate * route.requests_per_sample
    one_s = route.latency_s + stored / route.requests_per_sample / route.connection_bytes_per_s
    return Demand(
        machine=scenario.machine,
        form=scenario.form,
        nodes=scenario.nodes,
        accelerators=job.ranks,
        samples_per_s=rate,
        bytes_per_s=rate * stored,
        node_bytes_per_s=rate * stored / job.nodes,
        opens_per_s=opens,
        in_flight=opens * one_s,
        cores_per_node=rate / job.nodes * (raw / scenario.inflate_bytes_per_s + route.decode_core_s),
    )


def break_evens(rows: Sequence[ScenarioPrediction]) -> list[BreakEvenPoint]:
    """For each machine and number of nodes, compare each path that stages with the fastest path that does not stage."""
    groups: dict[tuple[str, int], list[ScenarioPrediction]] = {}
    for row in rows:
        if not row.impossible:
            groups.setdefault((row.machine, row.nodes), []).append(row)
    found = []
    for (machine, nodes), group in groups.items():
        direct = min((row for row in group if not row.before_s), key=lambda row: row.epoch_s, default=None)
        if direct is None:
            continue
        for row in group:
            if row.before_s:
                epochs = _after(row.before_s, direct.epoch_s - row.epoch_s, direct.epoch_s)
                point = BreakEvenPoint(row.path, direct.path, machine, nodes, epochs, _after_money(row, direct))
                found.append(point)
    return found


def _after(before: float, gain: float, scale: float) -> int | None:
    return math.floor(before / gain) + 1 if gain > 1e-9 * scale else None


def _after_money(row: ScenarioPrediction, direct: ScenarioPrediction) -> int | None:
    mine, theirs = row.money.total, direct.money.total
    if mine is None or theirs is None or not row.job_s:
        return None
    epochs = max(1, round(row.run_s / row.epoch_s))
    before = mine * (row.job_s - row.run_s) / row.job_s  # money is nearly proportional to billed time
    return _after(before, (theirs - (mine - before)) / epochs, theirs / epochs)


def parse_target(text: str, unit: str) -> Target:
    """Parse `20000 images/s`, `20000/s` or a duration such as `6h`.

    Raises:
        ConfigError: The text is neither a rate nor a duration, or its unit differs from the workload's unit.
    """
    from penstock.units import parse_seconds

    found = re.fullmatch(r"\s*([0-9][0-9_,]*(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*/\s*s\s*", text)
    if found is not None:
        if found[2] and found[2] not in (unit, "samples"):
            raise ConfigError(
                f"target: `{text}` is in {found[2]}/s, but this plan is in {unit}/s", hint=f"write {found[1]} {unit}/s"
            )
        rate = float(found[1].replace(",", "").replace("_", ""))
        if not rate > 0:
            raise ConfigError(f"target: `{text}` must be above 0")
        return Target(samples_per_s=rate)
    try:
        seconds = parse_seconds(text)
    except ConfigError:
        seconds = 0.0
    if not seconds > 0:
        raise ConfigError(f"target: `{text}` is not a rate or a duration", hint=f"write `20000 {unit}/s` or `6h`")
    return Target(job_s=seconds)


def choose(
    rows: Sequence[ScenarioPrediction], target: Target, goal: Goal
) -> tuple[ScenarioPrediction | None, ScenarioPrediction | None]:
    """Return the best row that reaches a target, and None. If no row reaches it, return None and the nearest row.

    With the goal `cost`, rows of unknown cost are left out.
    """
    reaches = [row for row in rows if not row.impossible and target.holds(row)]
    found = best(reaches, goal)
    if found is not None:
        return found, None
    possible = [row for row in rows if not row.impossible]
    if target.samples_per_s is not None:
        return None, max(possible, key=lambda row: row.samples_per_s, default=None)
    return None, min(possible, key=lambda row: row.finish_s, default=None)

# SPDX-License-Identifier: Apache-2.0
"""Simulates the scenarios of a plan: takes the conditions from its `[simulation]`, its tiers and its `[spot]`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from penstock import tiers
from penstock.errors import ConfigError
from penstock.plan.card_limits import limits_of_card, read_card
from penstock.plan.predict import predict
from penstock.plan.simulation import simulate
from penstock.plan.simulation_input import Conditions, SharedLimit, SimulationSpec
from penstock.plan.spec import nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.plan.card_limits import ProbeCard
    from penstock.plan.scenario import Scenario
    from penstock.plan.simulation import Simulation
    from penstock.plan.spec import PlanSpec

__all__ = ["SimulatedScenario", "chosen", "conditions_of", "simulate_plan"]


class SimulatedScenario(msgspec.Struct, frozen=True):
    """One simulated scenario of a plan.

    Attributes:
        seen: Limits that change with time or load, found in the card of the store's probe.
        unseen: Properties of the store that its probe cannot see, from the same card.
    """

    path: str
    machine: str
    nodes: int
    simulation: Simulation
    seen: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()


def chosen(scenarios: Sequence[Scenario]) -> list[Scenario]:
    """The possible scenario with the most nodes of each path and machine, where shared limits have the most effect."""
    largest: dict[tuple[str, str], Scenario] = {}
    for scenario in scenarios:
        if predict(scenario).impossible:
            continue
        key = (scenario.path, scenario.machine)
        if key not in largest or scenario.nodes > largest[key].nodes:
            largest[key] = scenario
    return list(largest.values())


def conditions_of(spec: PlanSpec, scenario: Scenario) -> Conditions:
    """Conditions of a scenario, from `[simulation]`. Values that `[simulation]` lacks come from `[spot]` and the
    store's tier.
    """
    given = spec.simulation or SimulationSpec()
    names = Conditions.__struct_fields__
    found = Conditions(**{name: getattr(given, name) for name in names})
    replace = msgspec.structs.replace
    spot = scenario.spot
    if found.node_mtbf_s is None and spot is not None:
        prediction = predict(scenario)
        # A new node has an empty disk, so its data must be staged again, as in the prediction.
        restart_s = spot.restart_s + prediction.before_s - scenario.replicate_s
        found = replace(
            found,
            node_mtbf_s=3600 / spot.interruptions_per_hour,
            restart_s=restart_s,
            checkpoint_steps=max(1, round(spot.checkpoint_every_s / prediction.step_s)),
        )
    store = next(spec.store(path.store) for path in spec.paths if path.title == scenario.path)
    if found.latency_p99_ratio == 1 and store.tier is not None and scenario.route.from_store:
        reads = [row for row in tiers.find(store.tier).latency if row.what == "read"]
        if reads:
            found = replace(found, latency_p99_ratio=reads[0].p99_ms / reads[0].p50_ms)
    return found


def _limits(spec: PlanSpec, path: str) -> list[SharedLimit]:
    given = spec.simulation.limits if spec.simulation is not None else ()
    titles = [one.title for one in spec.paths]
    for limit in given:
        for name in limit.paths:
            if name not in titles:
                raise ConfigError(
                    f"simulation.limit `{limit.name}`: path `{name}` is not defined", hint=nearest(name, titles)
                )
    names = SharedLimit.__struct_fields__
    return [
        SharedLimit(**{name: getattr(limit, name) for name in names})
        for limit in given
        if not limit.paths or path in limit.paths
    ]


def _card(spec: PlanSpec, scenario: Scenario) -> ProbeCard | None:
    """Card of the probe that wrote the store's tier, if the plan names it as FILE#NAME."""
    store = next(spec.store(path.store) for path in spec.paths if path.title == scenario.path)
    file, mark, name = (store.tier or "").rpartition("#")
    return read_card(Path(file), name) if mark and scenario.route.from_store else None


def simulate_plan(
    spec: PlanSpec,
    scenarios: Sequence[Scenario],
    *,
    replicas: int = 5,
    seed: int = 0,
    progress: Callable[[str, int, int], None] | None = None,
) -> list[SimulatedScenario]:
    """Simulate one epoch of the possible scenario with the most nodes of each path and machine.

    Args:
        progress: Called with the scenario's title, and the numbers of its finished simulations and of all its
            simulations.
    Raises:
        ConfigError: A limit of `[simulation]` names an unknown path, or failures are so frequent that a job practically
            never ends.
    """
    found = []
    for scenario in chosen(scenarios):
        title = scenario.title

        def report(done: int, total: int, title: str = title) -> None:
            if progress is not None:
                progress(title, done, total)

        card = _card(spec, scenario)
        of_card, seen = limits_of_card(card, scenario.route.wire_bytes) if card is not None else ([], [])
        limits = _limits(spec, scenario.path)
        named = {limit.name for limit in limits}
        back_off = spec.simulation.back_off if spec.simulation is not None else None
        simulation = simulate(
            scenario.job,
            scenario.route,
            conditions=conditions_of(spec, scenario),
            limits=(*limits, *(limit for limit in of_card if limit.name not in named)),
            back_off=back_off,
            replicas=replicas,
            seed=seed,
            progress=report,
        )
        if not math.isfinite(simulation.p50_s):
            raise ConfigError(f"{title}: the simulation does not end, because a limit is 0")
        unseen = card.unseen if card is not None else ()
        found.append(
            SimulatedScenario(scenario.path, scenario.machine, scenario.nodes, simulation, tuple(seen), unseen)
        )
    return found

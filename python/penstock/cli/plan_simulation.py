# SPDX-License-Identifier: Apache-2.0
"""Prints the simulation of `penstock plan --simulate`, and its progress."""

from __future__ import annotations

import sys
import textwrap
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from penstock.plan.scenario import Scenario
    from penstock.plan.simulated_plan import SimulatedScenario
    from penstock.plan.spec import PlanSpec

__all__ = ["as_rows", "run", "simulation_lines"]

_WIDTH = 100


def run(spec: PlanSpec, scenarios: list[Scenario], replicas: int, seed: int) -> list[SimulatedScenario]:
    """Simulate a plan, with progress on stderr if it is a terminal."""
    from penstock.plan.simulated_plan import simulate_plan

    is_terminal = sys.stderr.isatty()

    def report(title: str, done: int, total: int) -> None:
        if is_terminal:
            click.echo(f"\r\033[Ksimulating {title}: {done} of {total}", err=True, nl=False)

    try:
        return simulate_plan(spec, scenarios, replicas=replicas, seed=seed, progress=report)
    finally:
        if is_terminal:
            click.echo("\r\033[K", err=True, nl=False)


def as_rows(found: list[SimulatedScenario]) -> list[dict[str, Any]]:
    """Plain rows for `--json`, with the derived figures."""
    import msgspec

    return [
        {
            **msgspec.to_builtins(one),
            "differs": one.simulation.differs,
            "verdict": one.simulation.verdict,
        }
        for one in found
    ]


def simulation_lines(found: list[SimulatedScenario]) -> list[str]:
    """Format each scenario as text: the epoch, the comparison, the waiting times, and the use of the limits."""
    from penstock.units import format_seconds

    lines = []
    for one in found:
        result = one.simulation
        lines += ["", f"Simulated: {one.path}, {one.nodes} x {one.machine} ({result.ranks:,} accelerators)"]
        part = "" if result.simulated_steps == result.steps else f" (the first {result.simulated_steps:,} simulated)"
        lines.append(
            f"  epoch {format_seconds(result.p50_s)} (p5 {format_seconds(result.p5_s)}, p95 {format_seconds(result.p95_s)}; "
            f"{result.replicas} replicas, seed {result.seed}), {result.steps:,} steps{part}"
        )
        lines += textwrap.wrap(result.verdict, _WIDTH, initial_indent="  ", subsequent_indent="    ")
        total = sum(result.waits_s.values()) or 1.0
        shares = [
            f"{100 * seconds / total:.1f} % {name.replace('_', ' ')}"
            for name, seconds in result.waits_s.items()
            if seconds > 0.0005 * total
        ]
        lines.append(f"  a node's time: {', '.join(shares)}")
        if result.waited_for:
            nodes = ", ".join(f"node {node} ({format_seconds(seconds)})" for node, seconds in result.waited_for)
            lines.append(f"  the others wait for: {nodes}")
        if result.utilisation:
            lines.append(f"  use of shared limits: {result.uses_of_limits}")
        events = [
            text
            for text in (
                f"{result.refused:,.0f} refused requests" if result.refused else "",
                f"{result.failures:.1f} failures" if result.failures else "",
            )
            if text
        ]
        if events:
            lines.append(f"  per epoch: {', '.join(events)}")
        for label, texts in (("the probe saw", one.seen), ("the probe cannot see", one.unseen)):
            for text in texts:
                lines += textwrap.wrap(f"{label}: {text}", _WIDTH, initial_indent="  ", subsequent_indent="    ")
    return lines

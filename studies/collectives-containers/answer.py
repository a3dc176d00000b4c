# SPDX-License-Identifier: Apache-2.0
"""The answer to the study's question, from the results of its parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.study.result import StudyResult

__all__ = ["CLEAR", "answer"]


CLEAR = 10.0
"""Per cent. An interval that ends above it does not exclude a cost that matters."""


def _listed(whats: list[str]) -> str:
    """Programs, each once: `latency, 8 B` and the way to launch it become one."""
    programs = list(dict.fromkeys(what.partition(", charliecloud")[0] for what in whats))
    return " and ".join(f'"{program}"' for program in programs)


def answer(result: StudyResult) -> str:
    """State the container's cost as an upper bound, the slow pair, and the scaling."""
    found: list[str] = []
    containers = result.part("containers")
    if containers is not None:
        costs: dict[bool | None, list[str]] = {True: [], False: [], None: []}
        for claim in containers.claims:
            what, mark, _ = claim.claim.partition(": no significant")
            if mark:
                costs[claim.holds].append(what)
        highs = [value.high for value in containers.measured.values() if value.high is not None and value.high <= CLEAR]
        if costs[False]:
            found.append(f"The container costs something in {_listed(costs[False])}.")
        if costs[True] and highs:
            found.append(
                f"No cost of the container is shown in {_listed(costs[True])}: at most {max(highs):.1f} % (upper ends of "
                "the 95 % intervals)."
            )
        if costs[None]:
            found.append(f"The runs differ too much to exclude a cost in {_listed(costs[None])}.")
    pairs = result.part("pairs")
    if pairs is not None:
        findings: list[dict[str, Any]] = pairs.data["pairs"]["findings"]
        slow = [each["text"] for each in findings if each["kind"] in ("slow-node", "slow-pair")]
        found.append(f"Slow: {slow[0]}." if slow else "No pair of ranks is slow.")
    measured = result.column("measured")
    if "lammps-efficiency" in measured:
        found.append(
            f"LAMMPS scales to {measured['lammps-efficiency'].note} with an efficiency of {measured['lammps-efficiency'].value:.0%}."
        )
    return " ".join(found) or "No part has run."

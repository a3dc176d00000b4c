# SPDX-License-Identifier: Apache-2.0
"""The answer to the study's question, from the results of its parts."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.study.result import PartResult, StudyResult

__all__ = ["CLEAR", "answer"]

CLEAR = 10.0
"""Per cent. An interval that ends above it does not exclude a cost that matters."""


def _listed(programs: list[str]) -> str:
    *others, last = [f'"{program}"' for program in programs]
    return f"{', '.join(others)} and {last}" if others else last


def _costs(containers: PartResult) -> list[str]:
    """One sentence for each outcome, over all ways to launch a program: a cost, none shown, or undecided."""
    claims = [claim for claim in containers.claims if ": no significant" in claim.claim]
    found: dict[str, list[tuple[bool | None, float]]] = {}
    for claim, value in zip(claims, containers.measured.values(), strict=True):
        program = claim.claim.partition(", charliecloud")[0]
        found.setdefault(program, []).append((claim.holds, inf if value.high is None else value.high))
    costly = [program for program, ways in found.items() if any(holds is False for holds, _ in ways)]
    free = [program for program, ways in found.items() if all(holds for holds, _ in ways)]
    undecided = [program for program in found if program not in costly and program not in free]
    sentences = []
    if costly:
        sentences.append(f"The container costs something in {_listed(costly)}.")
    if free:
        high = max(high for program in free for _, high in found[program])
        sentences.append(
            f"No cost of the container is shown in {_listed(free)}: at most {high:.1f} % (upper ends of the 95 % intervals)."
        )
    if undecided:
        sentences.append(f"The runs differ too much to exclude a cost in {_listed(undecided)}.")
    return sentences


def answer(result: StudyResult) -> str:
    """State the container's cost as an upper bound, the slow pair, and the scaling."""
    found: list[str] = []
    containers = result.part("containers")
    if containers is not None:
        found += _costs(containers)
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

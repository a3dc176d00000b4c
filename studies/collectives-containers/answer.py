# SPDX-License-Identifier: Apache-2.0
"""The answer to the study's question, from the results of its parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.study.result import StudyResult

__all__ = ["answer"]


def answer(result: StudyResult) -> str:
    """State the container's cost as an upper bound, the slow pair, and the scaling."""
    found: list[str] = []
    containers = result.part("containers")
    if containers is not None:
        costs: dict[bool | None, list[str]] = {True: [], False: [], None: []}
        for claim in containers.claims:
            what, mark, _ = claim.claim.partition(": no significant")
            if mark:
                costs[claim.holds].append(f"{what} ({claim.here})")
        for holds, text in (
            (False, "The container costs something in"),
            (True, "No cost of the container is shown in"),
            (None, "These runs differ too much to exclude a cost in"),
        ):
            if costs[holds]:
                found.append(f"{text}: {'; '.join(costs[holds])}.")
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

# SPDX-License-Identifier: Apache-2.0
"""The answer to the study's question, from the results of its parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.study.result import StudyResult

__all__ = ["answer"]

_NOISY = 50.0  # per cent; a bound above it excludes nothing that matters


def answer(result: StudyResult) -> str:
    """State the container's cost as an upper bound, the slow pair, and the scaling."""
    found: list[str] = []
    containers = result.part("containers")
    if containers is not None:
        shown = [
            claim.claim.partition(": no significant")[0]
            for claim in containers.claims
            if claim.holds is False and "significant" in claim.claim
        ]
        highs = [value.high for value in containers.measured.values() if value.high is not None]
        if shown:
            found.append(f"The container costs something in: {', '.join(shown)}.")
        elif highs and max(highs) <= _NOISY:
            found.append(
                f"No cost of the container is shown, by either way of launching it: at most {max(highs):.1f} % (upper"
                " ends of the 95 % intervals)."
            )
        else:
            found.append("No cost of the container is shown, but these runs differ too much to exclude one.")
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

# SPDX-License-Identifier: Apache-2.0
"""Answer to the study's question, from its results."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.study.result import StudyResult

__all__ = ["answer"]


def answer(result: StudyResult) -> str:
    """One or two sentences."""
    predicted, measured = result.column("predicted"), result.column("measured")
    text = ""
    if "read-large" in predicted:
        text = (
            f"4 nodes deliver {predicted['read-large'].value:.0f} GB/s of large files from limits alone (published: more"
            " than 10), bound by their disks."
        )
    sweep = result.part("sweep")
    if sweep is not None and sweep.data:
        lengths = sorted({cell["file_size_bytes"] for cell in sweep.data})
        regimes = []
        for length in (lengths[0], lengths[-1]):
            found = [
                cell["regime"]
                for cell in sweep.data
                if (cell["file_size_bytes"], cell["operation"]) == (length, "READ") and cell["threads"] > 1
            ]
            regimes.append(statistics.mode(found))
        text += (
            f" In the rehearsed pool, reads of the smallest files are limited by {regimes[0]} and those of the largest by"
            f" {regimes[1]}; small files peak at {measured['small-peak'].value:.0f} threads a host"
            f" ({measured['small-files'].value:,.0f} files/s)."
        )
    return text.strip() or "no part has run."

# SPDX-License-Identifier: Apache-2.0
"""Answer to the study's question, from its results."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.study.result import StudyResult

__all__ = ["answer"]


def answer(result: StudyResult) -> str:
    """One or two sentences."""
    predicted, measured = result.column("predicted"), result.column("measured")
    if "epoch-stream" not in predicted:
        return "The part `prediction` has not run, so the paths cannot be compared."
    text = (
        f"On 4 nodes, read the gzip'd objects as they are: modelled {predicted['hours-stream'].value:.1f} h and"
        f" ${predicted['usd-stream'].value:,.0f} for 48 epochs, with no pool and no staging; the published pool took just"
        f" over 11.5 h (~$1,200). A pool pays off at {predicted['pool-pays-measured'].value:.0f} or more nodes, because one"
        " account then limits the streams."
    )
    if "epoch-stream" in measured and "epoch-hot" in measured:
        times = measured["epoch-hot"].value / measured["epoch-stream"].value
        text += f" Rehearsed here, the stream is {times:.1f} times as fast as the Hot mount."
    return text

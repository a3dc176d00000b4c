# SPDX-License-Identifier: Apache-2.0
"""Writes the sentences of the demo report from the numbers of this run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.plan.reference_job import CONTRADICTION, PUBLISHED
from penstock.report import number_format

if TYPE_CHECKING:
    from penstock.report.comparison import PathFacts

__all__ = ["headline", "lead", "notes"]

NEAR = 0.05  # paths within this relative difference count as equal
_SUBJECT = {
    "as-published": "Reading raw files one at a time from the Hot account",
    "streamed-hot": "Streaming gzip straight from the Hot account",
    "streamed-premium": "Streaming gzip from the Premium account",
    "staged": "Staging to the nodes’ disks first",
}


def _by_name(paths: list[PathFacts]) -> dict[str, PathFacts]:
    return {p.name: p for p in paths}


def headline(paths: list[PathFacts]) -> list[str]:
    """Headline in two sentences: time and cost of the cheapest path (of equally cheap paths, Hot), and of the mount."""
    known = _by_name(paths)
    cheapest = min(paths, key=lambda p: p.predicted.usd)
    hot = known["streamed-hot"]
    best = hot if hot.predicted.usd <= cheapest.predicted.usd * (1 + NEAR) else cheapest
    plain = known["as-published"]
    theirs = PUBLISHED["hot-mount"]
    return [
        f"{_SUBJECT[best.name]} does the published job in {number_format.hours(best.predicted.total_h)} for {number_format.usd(best.predicted.usd)}.",
        (
            f"Raw files through the article’s mount take {number_format.hours(plain.predicted.total_h)} and {number_format.usd(plain.predicted.usd)} by the same model; "
            f"the article reports {theirs.run_h} h and {theirs.usd}."
        ),
    ]


def lead(paths: list[PathFacts], *, identical: bool, scale: float) -> str:
    """Lead paragraph: the procedure and the result in a few sentences."""
    known = _by_name(paths)
    slow, fast = min(paths, key=lambda p: p.samples_per_s), max(paths, key=lambda p: p.samples_per_s)
    hot, premium, staged = known["streamed-hot"], known["streamed-premium"], known["staged"]
    others = [p for p in (premium, staged) if abs(p.samples_per_s - hot.samples_per_s) <= NEAR * p.samples_per_s]
    same = (
        "The losses agree to the last bit, so the paths differ in time and money only"
        if identical
        else "The losses do not agree, but they must"
    )
    if len(others) == 2:
        point = "Hot, Premium and a local copy feed the accelerators equally well: what matters is how the objects are read, not what is paid for them."
    else:
        each = ", ".join(f"{p.label} {number_format.rate(p.samples_per_s)}" for p in (hot, premium, staged))
        point = f"In samples/s: {each}; each card names its limit here."
    return (
        f"Four ways from object storage to one model, rehearsed on this machine at F = {scale:g} of the tiers’ stated rates. {same}. "
        f"{fast.label[:1].upper()}{fast.label[1:]} delivers {fast.samples_per_s / slow.samples_per_s:.1f} times the samples of {slow.label}. {point}"
    )


def notes(
    *,
    scale: float,
    step_s: float,
    batch: int,
    distinct: int,
    volumes: int,
    voxels: int,
    spent_at: int | None,
    hungry: tuple[float, str],
    mount_bytes_per_s: float,
    direct: tuple[float, float, str],
    stage_min: float,
    stage_limit: str,
    doubts: list[str],
) -> list[str]:
    """Caveats that a reader must know before quoting a number."""
    hungry_rate, hungry_limit = hungry
    beyond = (
        f"Streaming scales up to {spent_at - 1} such nodes; from {spent_at} on, one account is not enough, and a "
        "pool or more accounts pay off."
        if spent_at
        else "Streaming from one account is enough at every number of nodes that was modelled."
    )
    return [
        *doubts,
        "Measured here: samples/s, data wait, first batch, bytes, throttles, staging, losses, MAE. Modelled: every hour and dollar of the published job, and what happens on more nodes.",
        (
            f"The accelerators of the storage comparison are emulated: {batch} samples per step of "
            f"{step_s * 1000:.0f} ms, the rate of 32 V100 that the article "
            "measured on local NVMe. It is the highest published rate for that code on those GPUs, not a proven "
            "maximum. The gradient steps of the loss curve are real, on this machine’s CPU."
        ),
        (
            f"F = {scale:g}: volumes have {voxels}³ voxels where the published ones have 128³, so {scale:g} of the bytes, and every rate of the tier is cut by the same factor. "
            "Latencies are not scaled. Network cards are not emulated; the predictions include them (5 Gb/s per "
            "node, the lower of the stated 5–6)."
        ),
        f"{distinct} distinct volumes are served under {volumes} names. The endpoint, the loader and the inflating share this machine’s cores, and its page cache is warm.",
        (
            f"The mount is replayed, not modelled: each of 32 readers gets the {mount_bytes_per_s / 1e6:.0f} MB/s "
            "that follow from the article’s 0.24 steps/s, "
            "so that its predicted hours agree with the published ones by construction. No limit of the tier "
            "explains that rate: the same raw files read whole and "
            f"without a mount would take {direct[0]:.0f} h and ${direct[1]:,.0f}, limited by {direct[2]}. Most of "
            "the factor of ten is the mount; the rest comes from not sending raw bytes."
        ),
        f"Staging of the published set is modelled at {stage_min:.0f} min, limited by {stage_limit}. The article took 13 min, which its network cards do not explain (7 min): decompression or the write.",
        beyond,
        (
            "With MLPerf Storage’s emulated V100 (107 samples/s per GPU, 11 times the measured one) the streamed Hot "
            f"path would deliver {hungry_rate:,.0f} samples/s, limited by {hungry_limit}."
        ),
        CONTRADICTION,
        "Not modelled: a straggling rank, the exposed part of an allreduce, validation, the time to build the pool, and upload of the data.",
    ]

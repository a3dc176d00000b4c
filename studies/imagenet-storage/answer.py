# SPDX-License-Identifier: Apache-2.0
"""The answer to the study's question, from the results of its parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.study.result import StudyResult

__all__ = ["answer"]


def answer(result: StudyResult) -> str:
    """Name the disks that keep up, the limits of the others, and what S3, HDFS and the cache give."""
    found: list[str] = []
    limits = result.part("limits")
    if limits is not None:
        cells: list[dict[str, Any]] = limits.data
        keep = [
            c["disk"].partition("@")[0]
            for c in cells
            if (c["model"], c["gpus"]) == ("resnet50", 4) and c["limit"] == "the accelerators"
        ]
        slow = [
            f"{c['disk'].partition('@')[0]} ({c['limit']})"
            for c in cells
            if (c["model"], c["gpus"]) == ("resnet50", 4) and c["limit"] != "the accelerators"
        ]
        found.append(f"4 V100 on ResNet-50 (fp32) are fed by {', '.join(keep)}, and slowed down by {', '.join(slow)}.")
    disks = result.part("disks")
    if disks is not None:
        rows: list[dict[str, Any]] = disks.data
        right = sum(row["limit"] == row["expected_limit"] for row in rows)
        found.append(f"Here, at scale F, {right} of {len(rows)} trainings had the limit that was expected.")
    measured = result.column("measured")
    if "s3-limit" in measured and "s3-cached" in measured:
        found.append(
            f"S3 gives {measured['s3-limit'].value:,.0f} images/s ({measured['s3-limit'].note}); the node cache gives"
            f" {measured['s3-cached'].value:,.0f} in the second epoch ({measured['s3-cached'].note})."
        )
    if "hdfs-2-to-4" in measured:
        found.append(f"Four replicated HDFS data nodes serve {measured['hdfs-2-to-4'].value:.1f} times what two serve.")
    io1 = result.column("predicted").get("io1-usd-per-hour")
    if io1 is not None:
        found.append(f"An io1 disk with the most IOPS costs {io1.value:.2f} USD an hour at list prices, not 15.")
    return " ".join(found) or "No part has run."

# SPDX-License-Identifier: Apache-2.0
"""Answer to the study's question, from its results."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.study.result import StudyResult

__all__ = ["answer"]


def answer(result: StudyResult) -> str:
    """One or two sentences."""
    inverted, predicted = result.column("inverted"), result.column("predicted")
    texts = []
    if "cost-hot-blob-1" in predicted:
        share = predicted["cost-hot-blob-1"].value / inverted["cost-netapp-standard-1"].value
        many = predicted["cost-hot-blob-40"].value / inverted["cost-netapp-ultra-40"].value
        compute = predicted["cost-hot-blob-1"].value / inverted["cost-compute-1"].value
        texts.append(
            f"Yes: blob storage costs {share:.1%} of NetApp Files for one run and {many:.0%} for 40 runs, and"
            f" {compute:.2%} of the compute"
        )
    shots = result.part("shots")
    if shots is not None and shots.data:
        digests = {row["sha256"] for row in shots.data}
        same = "the same image" if len(digests) == 1 else f"{len(digests)} different images"
        local, remote = (
            next((row for row in shots.data if (row["backend"], row["workers"]) == (name, 1)), None)
            for name in ("zarr-blosc", "zarr-blosc-s3")
        )
        more = f", and S3 adds {remote['io_s'] - local['io_s']:.2f} s of I/O to a shot" if local and remote else ""
        texts.append(f"all backends produce {same}{more}")
    return ("; ".join(texts) or "no part that answers the question has run") + "."

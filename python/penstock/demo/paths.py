# SPDX-License-Identifier: Apache-2.0
"""The four storage paths of the demo: where the data is stored, how it is read, and the published result per path."""

from __future__ import annotations

from typing import Literal

import msgspec

from penstock.plan.reference_job import JOB

__all__ = ["PATHS", "DemoPath"]

GIB = 2**30


class DemoPath(msgspec.Struct, frozen=True):
    """One storage path.

    Attributes:
        tier: Tier of the emulated store.
        mount: Whether each reader is limited to the rate of the published study's FUSE mount.
        stored: Copy of the data that is read: gzip'd as published, or raw.
        staged: Whether the data is first copied to the local disk and decompressed.
        max_in_flight, read_ahead: Limits of the loader, which represents the readers of all 32 GPUs.
        published: Key of the published result to compare with; None if nothing was published.
    """

    name: str
    label: str
    how: str
    tier: str
    stored: Literal["gzip", "raw"]
    staged: bool
    max_in_flight: int
    read_ahead: int | None
    memory_bytes: int
    published: str | None
    mount: bool = False


PATHS = (
    DemoPath(
        name="as-published",
        label="raw files, Hot mount",
        how="Whole raw files from the Hot tier, one at a time for each of 32 GPUs, at the rate that the article’s FUSE mount gave a reader.",
        tier="azure-hot@2021",
        mount=True,
        stored="raw",
        staged=False,
        max_in_flight=JOB.ranks,
        read_ahead=0,
        memory_bytes=2 * GIB,
        published="hot-mount",
    ),
    DemoPath(
        name="streamed-hot",
        label="gzip stream, Hot",
        how="The gzip’d objects as stored in the Hot tier, read ahead and inflated into the batch.",
        tier="azure-hot",
        stored="gzip",
        staged=False,
        max_in_flight=4 * JOB.ranks,
        read_ahead=None,
        memory_bytes=2 * GIB,
        published=None,
    ),
    DemoPath(
        name="streamed-premium",
        label="gzip stream, Premium",
        how="The same objects and the same loader, from the Premium tier.",
        tier="azure-premium",
        stored="gzip",
        staged=False,
        max_in_flight=4 * JOB.ranks,
        read_ahead=None,
        memory_bytes=2 * GIB,
        published=None,
    ),
    DemoPath(
        name="staged",
        label="staged to disk",
        how="Copied from the Hot tier and inflated to the local disk first, every byte verified; epochs read the disk.",
        tier="azure-hot",
        stored="gzip",
        staged=True,
        max_in_flight=JOB.ranks,
        read_ahead=None,
        memory_bytes=2 * GIB,
        published="pool",
    ),
)

# SPDX-License-Identifier: Apache-2.0
"""Progress of a run, as facts. The CLI prints them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

__all__ = ["Progress", "Report"]


class Progress(msgspec.Struct, frozen=True):
    """One moment of a run. Rates are of the world, over the time since the epoch began.

    Attributes:
        phase: `open` once before the first epoch, `train`, `validate`, `done`.
        data: What is read, from the moment it is listed: `url`, `objects`, `size_bytes`, `requests` of one epoch over all
            ranks, `nodes`. Empty for data that come from nowhere.
        wait_share: Share of the training time so far that the first rank waited for data.
        metrics: Of the last validation.
    """

    phase: str
    epoch: int
    epochs: int
    step: int
    steps: int
    samples_per_s: float
    wait_share: float
    loss: float | None = None
    metrics: dict[str, float] = {}
    data: dict[str, Any] = {}


Report = Callable[[Progress], None]

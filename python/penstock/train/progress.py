# SPDX-License-Identifier: Apache-2.0
"""Progress of a run, as facts for the CLI to print."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

__all__ = ["Progress", "Report"]


class Progress(msgspec.Struct, frozen=True):
    """Progress of a run at one moment. Rates are over all ranks, since the epoch began.

    Attributes:
        phase: `open` once before the first epoch, `train`, `validate`, `done`.
        data: The dataset, once it is listed: `url`, `objects`, `size_bytes`, `requests` of one epoch over all ranks,
            `nodes`. Empty for dummy data.
        wait_share: Share of the training time so far that the first rank waited for data.
        metrics: Metrics of the last validation.
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

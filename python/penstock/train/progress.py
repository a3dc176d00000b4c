# SPDX-License-Identifier: Apache-2.0
"""Progress of a training run, as plain data for the CLI to print."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

__all__ = ["Progress", "Report"]


class Progress(msgspec.Struct, frozen=True):
    """Progress of a run at one moment. Rates are sums over all ranks, since the start of the epoch.

    Attributes:
        phase: `stage` (if the run stages its data), `open` (once, before the first epoch), `train`, `validate` or `done`.
        data: Facts about the dataset: `url`, `objects`, `size_bytes`, `requests` (of one epoch over all ranks) and
            `nodes`. Empty before the dataset is listed, and for dummy data.
        wait_share: Share of the training time so far in which rank 0 waited for data.
        metrics: Metrics of the last validation.
        unit: Unit of `samples_per_s`: `images/s` or `samples/s`.
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
    unit: str = "samples/s"


Report = Callable[[Progress], None]

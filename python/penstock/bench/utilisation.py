# SPDX-License-Identifier: Apache-2.0
"""Accelerator utilisation (AU), by the formula of published storage benchmarks and with DLIO's names.

Pure arithmetic over a run's `epoch_times`. The first step of an epoch is left out: it waits for the loader to start.

Source:
    dlio_benchmark 2.0, utils/statscounter.py: compute_metrics_train, end_train and end_run.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.bench.results import RunRecord

__all__ = ["MOST_OVERHEAD", "epoch_utilisation", "summary", "utilisation"]

MOST_OVERHEAD = 0.01
"""Maximum share of a step: above it, the harness itself distorts the measurement, and its verdict is refused."""

_MIB = 1 << 20  # DLIO's "MB"


def epoch_utilisation(time: Mapping[str, Any]) -> float:
    """Utilisation of one epoch on one rank, 0 to 1: compute time over wall time, both without the first step."""
    span = time["wall_s"] - time["first_s"]
    return (time["compute_s"] - time["first_compute_s"]) / span if span > 0 else 0.0


def _by_epoch(times: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    epochs: dict[int, list[Mapping[str, Any]]] = {}
    for time in times:
        epochs.setdefault(time["epoch"], []).append(time)
    return [epochs[number] for number in sorted(epochs)]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _deviation(values: Sequence[float]) -> float:
    middle = _mean(values)
    return math.sqrt(_mean([(value - middle) ** 2 for value in values]))


def utilisation(times: Sequence[Mapping[str, Any]]) -> list[float]:
    """Utilisation of each epoch, 0 to 1: the mean over ranks."""
    return [_mean([epoch_utilisation(time) for time in ranks]) for ranks in _by_epoch(times)]


def summary(record: RunRecord, *, au_required: float, record_bytes: float) -> dict[str, Any]:
    """Content of DLIO's `summary.json` for a run, under DLIO's keys.

    Args:
        au_required: Utilisation that passes, 0 to 1.
        record_bytes: Nominal bytes of a sample: DLIO computes throughput from it and does not count bytes. Its "MB" is
            2^20.
    """
    busy = [100 * value for value in utilisation(record.epoch_times)]
    rates = [
        sum(time["samples"] / time["wall_s"] for time in ranks if time["wall_s"])
        for ranks in _by_epoch(record.epoch_times)
    ]
    metric = {
        "train_au_percentage": busy,
        "train_au_mean_percentage": _mean(busy),
        "train_au_meet_expectation": "success" if _mean(busy) >= 100 * au_required else "fail",
        "train_au_stdev_percentage": _deviation(busy),
        "train_throughput_samples_per_second": rates,
        "train_throughput_mean_samples_per_second": _mean(rates),
        "train_throughput_stdev_samples_per_second": _deviation(rates),
        "train_io_mean_MB_per_second": _mean(rates) * record_bytes / _MIB,
        "train_io_stdev_MB_per_second": _deviation(rates) * record_bytes / _MIB,
    }
    return {
        "num_accelerators": record.world,
        "start": record.created,
        "epochs": len(busy),
        "host_cpu_count": [record.provenance.machine.cores],
        "host_memory_GB": [record.provenance.machine.memory_bytes / (1 << 30)],
        "metric": metric,
    }

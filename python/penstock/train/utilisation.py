# SPDX-License-Identifier: Apache-2.0
"""Utilisation test: measures whether storage keeps emulated accelerators busy.

Each measurement is a `train` run with an emulated accelerator. This module also measures the overhead of the training
loop itself, with batches in memory. If that overhead is too high, the test returns `refused` instead of a verdict.
Accelerator utilisation (AU) is computed from a run's `epoch_times`, with the formula of published storage benchmarks
and with DLIO's names. The first step of an epoch is left out, because this step waits for the loader to start.

Source:
    dlio_benchmark 2.0, utils/statscounter.py: compute_metrics_train, end_train and end_run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from penstock.bench.results import RunRecord
from penstock.errors import ConfigError
from penstock.train.launch import run

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any, Literal

    from penstock.train.progress import Report
    from penstock.train.spec import TrainSpec

__all__ = [
    "Harness",
    "UtilisationVerdict",
    "calibrate",
    "epoch_utilisation",
    "run_reader",
    "summary",
    "utilisation",
    "verdict",
]

MAX_OVERHEAD = 0.01
"""Maximum overhead as a share of the step time. Above this share, the harness distorts the measurement, and the result
is `refused`.
"""

_MIB = 1 << 20  # DLIO's "MB"
_CALIBRATION_S = 2.0
_STEPS = (16, 4096)


@dataclass(frozen=True)
class Harness:
    """Overhead of the training loop, measured with data in memory.

    Attributes:
        steps: Number of measured steps.
        step_s: Duration of one emulated step.
        overhead_s: Wall time of a step minus the emulated computation, mean over ranks.
        utilisation: Utilisation with data in memory, 0 to 1. This value is an upper bound for any storage.
        barrier_s: Part of `overhead_s` that is the barrier after a step, including the wait for other ranks.
    """

    steps: int
    step_s: float
    overhead_s: float
    utilisation: float
    barrier_s: float = 0.0

    @property
    def share(self) -> float:
        """Overhead divided by the step time."""
        return self.overhead_s / self.step_s if self.step_s else math.inf


@dataclass(frozen=True)
class UtilisationVerdict:
    """Verdict with its reason: `pass` or `fail` against the required utilisation, or `refused` if no verdict is
    possible.
    """

    result: Literal["pass", "fail", "refused"]
    reason: str


def run_reader(spec: TrainSpec, reader: str, *, report: Report | None = None) -> RunRecord:
    """Run the spec once with the reader `penstock` or `torch`."""
    return msgspec.convert(run(msgspec.structs.replace(spec, reader=reader), report=report), RunRecord)


def calibrate(spec: TrainSpec, step_s: float) -> Harness:
    """Measure the loop's overhead: run the spec with samples in memory for about two seconds. Saves no result.

    Raises:
        ConfigError: The step time is 0, so the overhead cannot be stated as a share of the step time.
    """
    if step_s <= 0:
        raise ConfigError("the computation time of a step must be above 0 s")
    steps = min(max(math.ceil(_CALIBRATION_S / step_s), _STEPS[0]), _STEPS[1])
    null = msgspec.structs.replace(
        spec, data=f"dummy://{steps * spec.global_batch}", manifest=None, epochs=1, steps=None, runs=None, archive=None
    )
    record = run_reader(null, "penstock")
    lost = [
        (one["wall_s"] - one["first_s"]) - (one["compute_s"] - one["first_compute_s"]) for one in record.epoch_times
    ]
    return Harness(
        steps=steps,
        step_s=step_s,
        overhead_s=max(0.0, sum(lost) / len(lost) / (steps - 1)),
        utilisation=min(1.0, utilisation(record.epoch_times)[0]),
        barrier_s=record.sync_s / steps,
    )


def verdict(harness: Harness, reached: Sequence[float], wanted: float) -> UtilisationVerdict:
    """Compare the mean utilisation of the epochs with the required utilisation (0 to 1); return the verdict."""
    if harness.share > MAX_OVERHEAD:
        meeting = f", {1e6 * harness.barrier_s:.1f} us of it in barriers," if harness.barrier_s else ""
        return UtilisationVerdict(
            "refused",
            f"the loop itself costs {1e6 * harness.overhead_s:.1f} us{meeting} of a {1e3 * harness.step_s:.3f} ms step "
            f"({100 * harness.share:.1f} %, at most {100 * MAX_OVERHEAD:g} %): this host is too slow to judge storage with it",
        )
    mean = sum(reached) / len(reached)
    result: Literal["pass", "fail"] = "pass" if mean >= wanted else "fail"
    return UtilisationVerdict(result, f"{100 * mean:.2f} % busy, {100 * wanted:g} % is required")


def epoch_utilisation(time: Mapping[str, Any]) -> float:
    """Utilisation of one epoch on one rank, 0 to 1: compute time divided by wall time, both without the first step."""
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
    """Utilisation of each epoch, 0 to 1, as the mean over ranks."""
    return [_mean([epoch_utilisation(time) for time in ranks]) for ranks in _by_epoch(times)]


def summary(record: RunRecord, *, au_required: float, record_bytes: float) -> dict[str, Any]:
    """Return the content of DLIO's `summary.json` for a run, with DLIO's keys.

    Args:
        au_required: Minimum utilisation to pass, 0 to 1.
        record_bytes: Nominal size of a sample. DLIO computes the throughput from this size instead of counting bytes.
            DLIO's "MB" is 2^20 bytes.
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

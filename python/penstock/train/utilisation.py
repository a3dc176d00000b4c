# SPDX-License-Identifier: Apache-2.0
"""Utilisation test: whether storage keeps emulated accelerators busy.

Calibrates the harness, runs the feeds in turn, and judges. Each run is a `train` run with an emulated accelerator. This
module adds the cost of the loop itself, measured on batches in memory, and refuses a verdict if that cost is too high.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from penstock.bench.results import RunRecord
from penstock.bench.utilisation import MOST_OVERHEAD, utilisation
from penstock.errors import ConfigError
from penstock.train.launch import run

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Literal

    from penstock.train.progress import Report
    from penstock.train.spec import TrainSpec

__all__ = ["Harness", "UtilisationVerdict", "calibrate", "run_reader", "verdict"]

_CALIBRATION_S = 2.0
_STEPS = (16, 4096)


@dataclass(frozen=True)
class Harness:
    """Cost of the loop around a step when data cost nothing.

    Attributes:
        steps: Number of steps taken.
        step_s: Seconds of one emulated step.
        overhead_s: Seconds of a step's wall time that are not emulated computing, mean over ranks.
        utilisation: Utilisation reached this way, 0 to 1: an upper bound for any storage.
        barrier_s: Part of `overhead_s` for the barrier after a step, including the wait for other ranks.
    """

    steps: int
    step_s: float
    overhead_s: float
    utilisation: float
    barrier_s: float = 0.0

    @property
    def share(self) -> float:
        """Overhead over step time."""
        return self.overhead_s / self.step_s if self.step_s else math.inf


@dataclass(frozen=True)
class UtilisationVerdict:
    """`pass` or `fail` by the required utilisation, or `refused`, each with its reason."""

    result: Literal["pass", "fail", "refused"]
    reason: str


def run_reader(spec: TrainSpec, reader: str, *, report: Report | None = None) -> RunRecord:
    """Run the spec once with the reader `penstock` or `torch`."""
    return msgspec.convert(run(msgspec.structs.replace(spec, reader=reader), report=report), RunRecord)


def calibrate(spec: TrainSpec, step_s: float) -> Harness:
    """Run the spec's loop, ranks and batches over samples in memory, for about two seconds; saves no result.

    Raises:
        ConfigError: The step has length 0, so no share of it can be computed.
    """
    if step_s <= 0:
        raise ConfigError("a step of 0 s keeps no accelerator busy: give a computation time")
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
    """Judge the utilisation of each epoch, 0 to 1, by the required one."""
    if harness.share > MOST_OVERHEAD:
        meeting = f", {1e6 * harness.barrier_s:.1f} of them for ranks to meet," if harness.barrier_s else ""
        return UtilisationVerdict(
            "refused",
            f"the loop itself costs {1e6 * harness.overhead_s:.1f} us{meeting} of a {1e3 * harness.step_s:.3f} ms step "
            f"({100 * harness.share:.1f} %, at most {100 * MOST_OVERHEAD:g} %): this host cannot judge a storage for it",
        )
    mean = sum(reached) / len(reached)
    result: Literal["pass", "fail"] = "pass" if mean >= wanted else "fail"
    return UtilisationVerdict(result, f"{100 * mean:.2f} % busy, {100 * wanted:g} % is asked for")

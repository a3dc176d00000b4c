# SPDX-License-Identifier: Apache-2.0
"""Builds the result of a training run: aggregates the measurements of all ranks."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.bench import results
from penstock.train.checkpoint_saver import save_summary
from penstock.train.data_path_cost import doubt, limit_of, unit_of
from penstock.train.step_breakdown import breakdown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.train.driver import Driver, Share
    from penstock.train.spec import TrainSpec

__all__ = ["summarize"]


def _sum_counts(shares: Sequence[Share], *names: str) -> int:
    """Sum a count over ranks and epochs. Feeds use different names: the first of `names` in a report is used."""
    total = 0
    for share in shares:
        for one in share.passes:
            total += int(next((one[name] for name in names if isinstance(one.get(name), int | float)), 0))
    return total


def _loader_summary(share: Share) -> dict[str, Any]:
    """Summarize one rank's feed: seconds by class over all epochs, the longest epoch's bottleneck, and all reports."""
    if not share.passes:
        return {}
    longest = max(share.passes, key=lambda one: one.get("wall_s", 0.0))
    seconds = {
        name: sum(float(one[name]) for one in share.passes if name in one)
        for name, value in longest.items()
        if name.endswith("_s") and name not in {"samples_per_s", "first_batch_s"} and isinstance(value, int | float)
    }
    summary = {"seconds": seconds, "passes": share.passes, "validation": share.validation_passes}
    return {
        **summary,
        **{name: longest[name] for name in ("limiting", "reason", "counts", "source") if name in longest},
    }


def _step_times(share: Share) -> tuple[tuple[int, float], ...]:
    return () if share.rows is None else tuple((row.step, row.length_s) for row in share.rows.rows())


def summarize(
    spec: TrainSpec, driver: Driver, shares: Sequence[Share], *, created_s: float, wall_s: float
) -> results.RunRecord:
    """Build the result of a run.

    A step ends when the slowest rank has finished, so rates are computed with the longest training time. The share of
    waiting is stated as the mean over ranks, and for the worst rank.
    """
    demand = driver.demand
    assert demand is not None
    train_s = max(share.train_s for share in shares)
    samples = sum(share.samples for share in shares)
    steady = sum(share.steady.samples for share in shares)
    steady_s = max(share.steady.train_s for share in shares)
    waits = [share.wait_s / share.train_s if share.train_s else 0.0 for share in shares]
    busy = [share.compute_s / share.train_s if share.train_s else 0.0 for share in shares]
    last = driver.metrics[-1] if driver.metrics else {}
    invalid = []
    if any(share.samples == 0 for share in shares):
        invalid.append("no step was taken")
    measured = spec.what_is_measured()
    # Use the loader summary of the rank that waited longest, because this rank limited the run.
    loader = _loader_summary(max(shares, key=lambda share: share.wait_s))
    record = results.RunRecord(
        id=results.new_id("train", created_s),
        kind="train",
        label=spec.label,
        created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(created_s)),
        spec=measured,
        spec_hash=results.spec_hash(measured),
        provenance=results.provenance(),
        seed=spec.seed,
        world=len(shares),
        warm_up_steps=spec.warm_up_steps,
        cache=results.CacheState(spec.cache_state, spec.cache_how),
        invalid=tuple(invalid),
        notes=spec.notes,
        losses=tuple(driver.losses),
        mae=last.get("mae"),
        mae_constant=last.get("mae_constant"),
        metrics=tuple(driver.metrics),
        epochs=driver.epoch,
        steps=driver.steps,
        samples=samples,
        samples_per_s=samples / train_s if train_s else 0.0,
        steady_samples_per_s=steady / steady_s if steady and steady_s else None,
        wait_s=sum(share.wait_s for share in shares) / len(shares),
        wait_share=sum(waits) / len(waits),
        wait_share_worst=max(waits),
        compute_s=sum(share.compute_s for share in shares) / len(shares),
        sync_s=sum(share.sync_s for share in shares) / len(shares),
        utilisation=sum(busy) / len(busy),
        first_batch_s=max(share.first_batch_s for share in shares),
        train_s=train_s,
        validation_s=max(share.validation_s for share in shares),
        stage_s=driver.stage_s,
        time_to_train_s=driver.time_to_train_s,
        wall_s=wall_s,
        cpu_s=sum(share.cpu_s for share in shares),
        bytes=_sum_counts(shares, "bytes_in", "bytes"),
        bytes_delivered=samples * demand.sample_bytes,
        requests=_sum_counts(shares, "requests"),
        retries=_sum_counts(shares, "retries"),
        throttles=_sum_counts(shares, "throttles"),
        workload={
            "name": spec.workload,
            "device": driver.device,
            "resumed_at_step": driver.steps_before,
            "unit": unit_of(demand),
            "substituted": _sum_counts(shares, "substituted"),
            **demand.facts,
        },
        loader=msgspec.to_builtins(loader),
        step_breakdown=breakdown(shares),
        step_times=_step_times(shares[0]) if spec.keep_step_times else (),
        checkpoints=save_summary(shares[0].checkpoints, [share.checkpoints for share in shares]),
        epoch_times=tuple(
            {"rank": rank, **msgspec.to_builtins(one)} for rank, share in enumerate(shares) for one in share.epochs
        ),
    )
    return record if driver.data_path is None else _compared(record, driver.data_path, shares)


def _compared(record: results.RunRecord, data_path: dict[str, Any], shares: Sequence[Share]) -> results.RunRecord:
    """Result of a comparison with synthetic data. Times and counts are of the real turns only."""
    worst = max(shares, key=lambda share: share.wait_s)
    median = data_path["real"]["median"]
    return msgspec.structs.replace(
        record,
        kind="train-compare",
        losses=(),
        samples_per_s=median,
        steady_samples_per_s=median,
        data_path={**data_path, **limit_of(data_path, worst.passes)},
        invalid=record.invalid if (reason := doubt(data_path)) is None else (*record.invalid, reason),
    )

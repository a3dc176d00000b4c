# SPDX-License-Identifier: Apache-2.0
"""Compares the demo's runs for its report. Pure functions of run records, predictions and price books."""

from __future__ import annotations

import hashlib
import math
import struct
from typing import TYPE_CHECKING

import msgspec

from penstock.demo import narrative, predict
from penstock.demo.mount_tier import OBSERVED
from penstock.plan.model import TERM_LABELS, Prediction
from penstock.plan.reference_job import JOB, PUBLISHED
from penstock.price import book
from penstock.report.comparison import (
    Comparison,
    Learning,
    PathFacts,
    Predicted,
    PriceRow,
    PublishedFacts,
    Rehearsal,
    ScalePoint,
    TierRow,
)
from penstock.units import format_bytes, format_rate, format_seconds

if TYPE_CHECKING:
    import datetime as dt

    from penstock.bench.results import RunRecord
    from penstock.demo.paths import DemoPath
    from penstock.demo.sizes import Size
    from penstock.tiers import Tier

__all__ = ["MeasuredPath", "compare"]

# Loader waits by cause: the name of the wait, and the bottleneck to report if this wait is the longest wait of a path.
_WAITS = {
    "first_byte_s": ("first bytes", "latency: requests without a response yet"),
    "transfer_s": ("bytes in transit", "bytes in transit"),
    "throttle_s": ("throttled", "throttling by the store"),
    "inflate_s": ("inflating", "inflating on this machine’s cores"),
    "decode_s": ("checking and copying", "checking and copying on this machine’s cores"),
    "overhead_s": ("not yet requested", "requests not yet sent: too few in flight"),
}
_OF_THE_STORE = {"first_byte_s", "transfer_s", "overhead_s"}
_LIMITED = 0.05  # if the share of time spent waiting for data is lower, the accelerators are the bottleneck
_MISSED = 0.20  # if the relative difference from the model's rate is larger, the report states the reason
SCALING_NODES = [1, 2, 3, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 25, 26, 28, 30, 32, 36, 40, 44, 48, 52, 56, 60, 64]


class MeasuredPath(msgspec.Struct, frozen=True):
    """Measurements of one path: `learnt` is the run with real training steps, `timed` the run with emulated steps.
    `prediction` was computed before both runs.
    """

    path: DemoPath
    tier: Tier
    learnt: RunRecord
    timed: RunRecord
    prediction: Prediction
    stage_s: float
    stage_bytes: int


def _seconds(record: RunRecord) -> dict[str, float]:
    seconds_by_class = record.loader.get("seconds", {})
    return {name: float(seconds_by_class.get(name, 0.0)) for name in _WAITS}


def _steady(record: RunRecord) -> tuple[float, float, dict[str, float]]:
    """Return samples/s, the share of time spent waiting, and seconds per step by part, without the first batch.

    The first batch is reported separately. A published epoch has 2,048 steps and a rehearsal has five, so the first
    batch would have four hundred times the weight in a rehearsal.
    """
    passes = record.loader.get("passes") or [{}]
    first_s = float(passes[0].get("first_batch_s") or 0.0)
    wait_s, wall_s = max(0.0, record.wait_s - first_s), max(1e-9, record.train_s - first_s)
    # The time after the first batch contains the computation of every step, and the wait of every step but the first.
    parts = {"accelerators": (wall_s - wait_s) / max(1, record.steps)}
    classes = _seconds(record)
    total = sum(classes.values())
    for name, value in classes.items():
        if total > 0 and value > 0:
            parts[_WAITS[name][0]] = wait_s / max(1, record.steps - 1) * value / total
    # The steady rate is measured between batches of the loop, from the end of the first step.
    rate = record.steady_samples_per_s or record.samples_per_s
    return rate, wait_s / wall_s, parts


def _slow_steps(parts: dict[str, float]) -> str:
    """Message that emulated steps took longer than specified; empty if they did not."""
    step_s = parts["accelerators"]
    if step_s <= (1 + _MISSED) * JOB.compute_step_s:
        return ""
    return (
        f"emulated steps of {format_seconds(JOB.compute_step_s)} took {format_seconds(step_s)}, so its cores were busy"
    )


def missed(rate: float, prediction: float, parts: dict[str, float]) -> str:
    """Reason why a rehearsal's rate differs from the model's by more than 20 %; empty if it does not."""
    if abs(rate / prediction - 1) <= _MISSED:
        return ""
    waits = {what: seconds for what, seconds in parts.items() if what != "accelerators"}
    longest = max(waits, key=waits.__getitem__, default="")
    reasons = [_slow_steps(parts)]
    if waits and waits[longest] > _LIMITED * sum(parts.values()):
        reasons.append(f"a step waited {format_seconds(sum(waits.values()))}, mostly for “{longest}”")
    return "; ".join(filter(None, reasons)) or "the time was spent outside of steps and waits"


def _limit(record: RunRecord, share: float, parts: dict[str, float], *, mount: bool) -> str:
    if share < _LIMITED:
        slow = _slow_steps(parts)
        return f"this machine: {slow}" if slow else "the (emulated) accelerators"
    classes = _seconds(record)
    worst = max(_WAITS, key=lambda name: classes[name])
    if mount and worst in _OF_THE_STORE:
        # The mount causes all these waits: each reader reads one file at a time, without other requests in flight.
        return "the mount: one file at a time at the rate of one reader"
    return _WAITS[worst][1]


def _predicted(prediction: Prediction, *, mount: bool) -> Predicted:
    limit = (
        "the mount: one file at a time at the rate of one reader"
        if mount and prediction.limited_by == "reader"
        else TERM_LABELS[prediction.limited_by]
    )
    return Predicted(
        prediction.epoch_s / 60,
        prediction.run_h,
        prediction.stage_h,
        prediction.cost.total_usd,
        prediction.samples_per_s,
        limit,
        prediction.terms_s,
    )


def _published(key: str | None) -> PublishedFacts | None:
    if key is None:
        return None
    row = PUBLISHED[key]
    return PublishedFacts(row.path, row.epoch_min, row.run_h, row.usd, row.run_h_value, row.usd_value)


def digest(losses: tuple[float, ...]) -> str:
    """SHA-256 of the losses as doubles. A difference of one bit changes the digest."""
    return hashlib.sha256(struct.pack(f"<{len(losses)}d", *losses)).hexdigest()


def _tier_rows(measured: list[MeasuredPath], scale: float) -> list[TierRow]:
    rows: dict[tuple[str, ...], TierRow] = {}
    for one in measured:
        for limit in one.tier.limits:
            if limit.what.startswith("write"):
                continue
            stated, rehearsed = (
                (format_rate(v) if limit.unit == "bytes/s" else f"{v:,.0f}/s")
                for v in (limit.value, limit.value * scale)
            )
            row = TierRow(
                one.tier.label,
                limit.what.replace("-", " "),
                limit.scope,
                stated,
                rehearsed,
                f"{limit.source} ({limit.confidence})",
                limit.as_of,
            )
            rows.setdefault((row.tier, row.limit, row.scope), row)
        for late in one.tier.latency:
            if late.what != "read":
                continue
            latency = f"{late.p50_ms:g} ms, p99 {late.p99_ms:g}"
            row = TierRow(
                one.tier.label,
                "first byte, median",
                "request",
                latency,
                latency,
                f"{late.source} ({late.confidence})",
                late.as_of,
            )
            rows.setdefault((row.tier, row.limit, row.scope), row)
    return list(rows.values())


def _machine(record: RunRecord) -> dict[str, str]:
    made = record.provenance
    card = made.machine
    rows = {
        "CPU": card.cpu,
        "cores": str(card.cores),
        "memory": format_bytes(card.memory_bytes, binary=True),
        "GPUs": ", ".join(card.gpus) or "none",
        "kernel": card.kernel,
        "Python": card.python,
        "Penstock": f"{made.version}, {made.build_profile} build",
        "seed": str(record.seed),
    }
    if made.commit:
        rows["commit"] = f"{made.commit[:12]}{' with changes' if made.dirty else ''}"
    return rows


def compare(
    measured: list[MeasuredPath],
    size: Size,
    *,
    stored_bytes: float,
    probe: predict.Probe,
    today: dt.datetime,
    seconds: float,
) -> Comparison:
    """Build the content of the report.

    Args:
        stored_bytes: Mean size of a gzip'd volume in the comparison.
        today: Date of the report, also used for the age of prices.
        seconds: Duration of the demo.
    """
    prices = book.bundled()  # the published job is replayed at its own prices
    costs = predict.Costs.of(prices)
    limits = {one.path.name: predict.Limits.of(one.tier) for one in measured}
    paths, scaling = [], []
    for one in measured:
        path, timed = one.path, one.timed
        rate, share, parts = _steady(timed)
        prediction = predict.published_job(path, limits[path.name], costs, probe)
        paths.append(
            PathFacts(
                name=path.name,
                label=path.label,
                how=path.how,
                losses=list(one.learnt.losses),
                samples_per_s=rate,
                wait_share=share,
                first_batch_s=timed.first_batch_s,
                bytes=timed.bytes + one.stage_bytes,
                throttles=timed.throttles + one.learnt.throttles,
                stage_s=one.stage_s,
                limited_by=_limit(timed, share, parts, mount=path.mount),
                predicted=_predicted(prediction, mount=path.mount),
                requests=timed.requests,
                step_parts_s=parts,
                model_samples_per_s=one.prediction.samples_per_s,
                missed=missed(rate, one.prediction.samples_per_s, parts),
                published=_published(path.published),
                run=timed.id,
            )
        )
        scaling += [
            ScalePoint(path.name, nodes, point.samples_per_s, TERM_LABELS[point.limited_by])
            for nodes, point in predict.scaling(path, limits[path.name], costs, probe, SCALING_NODES)
        ]
    digests = {digest(one.learnt.losses) for one in measured}
    first = measured[0].learnt
    known = {one.path.name: one for one in measured}
    hot, plain, staged = known["streamed-hot"], known["as-published"], known["staged"]
    direct = predict.direct_raw(plain.path, limits["as-published"], costs, probe)
    hungry = predict.higher_demand(hot.path, limits["streamed-hot"], costs, probe)
    stage = predict.staging(limits["staged"], probe)
    seen = plain.tier.observation(OBSERVED)
    invalid = sorted({reason for one in measured for record in (one.learnt, one.timed) for reason in record.invalid})
    return Comparison(
        created=f"{today:%Y-%m-%d %H:%M} UTC",
        scale=size.scale,
        headline=narrative.headline(paths),
        lead=narrative.lead(paths, identical=len(digests) == 1, scale=size.scale),
        paths=paths,
        learning=Learning(
            mae=_number(first.mae),
            mae_constant=_number(first.mae_constant),
            identical=len(digests) == 1 and len(first.losses) > 0,
            digest=min(digests),
            samples=size.learn_samples,
            held_out=size.held_out,
            voxels=size.learn_voxels,
            epochs=size.learn_epochs,
            batch=size.learn_batch,
        ),
        rehearsal=Rehearsal(
            voxels=size.voxels,
            samples=size.volumes,
            distinct=size.distinct,
            epochs=1,
            batch=size.batch,
            step_s=JOB.compute_step_s,
            sample_bytes=size.sample_bytes,
            stored_bytes=stored_bytes,
        ),
        tiers=_tier_rows(measured, size.scale),
        prices=[
            PriceRow(
                p.item,
                f"${p.value:g} per {'' if p.per == 1 else f'{p.per:,} '}{p.unit}{'' if p.per == 1 else 's'}",
                p.region,
                p.source,
                p.as_of,
            )
            for p in costs.rows()
        ],
        prices_line=book.dates_line(costs.rows(), today.date()),
        notes=narrative.notes(
            scale=size.scale,
            step_s=JOB.compute_step_s,
            batch=size.batch,
            distinct=size.distinct,
            volumes=size.volumes,
            voxels=size.voxels,
            spent_at=predict.saturation_nodes(hot.path, limits["streamed-hot"], costs, probe),
            hungry=(hungry.samples_per_s, TERM_LABELS[hungry.limited_by]),
            mount_bytes_per_s=seen.value if seen else math.nan,
            direct=(direct.total_h, direct.cost.total_usd, TERM_LABELS[direct.limited_by]),
            stage_min=stage.stage_s / 60,
            stage_limit=TERM_LABELS[stage.limited_by],
            doubts=[f"INVALID as a measurement: {', '.join(invalid)}. Rates and waits do not show the program’s speed."]
            if invalid
            else [],
        ),
        machine=_machine(staged.timed),
        scaling=scaling,
        seconds=seconds,
        invalid=", ".join(invalid),
    )


def _number(value: float | None) -> float:
    return math.nan if value is None else value

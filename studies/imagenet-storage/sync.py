# SPDX-License-Identifier: Apache-2.0
"""Stages from object stores to disks at scale F, and extrapolates to the 700 GB of the publication."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from penstock import env, stage, tiers
from penstock.bench.loop_disk import LoopDisk, Rate
from penstock.emulator import Emulator
from penstock.plan.model import predict_stage
from penstock.study.result import Claim, PartResult, Table, Value

from .images import make_images
from .limits import DiskRates

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.study.run import Context

__all__ = ["predict_sync", "run"]

# Disk -> id of its figure, and the store of the same cloud.
ROUTES = {
    "aws-gp2@2018": ("sync-gp2", "s3-standard@2026"),
    "aws-st1@2018": ("sync-st1", "s3-standard@2026"),
    "aws-io1@2018": ("sync-io1", "s3-standard@2026"),
    "azure-premium-ssd@2018": ("sync-azure", "azure-hot@2026"),
    "gcp-pd-ssd@2018": ("sync-pd-ssd", "gcs-standard@2026"),
    "gcp-local-ssd@2018": ("sync-local-ssd", "gcs-standard@2026"),
}
_REQUEST_BYTES = 8 << 20
_NAMES = {
    "disk": "the disk's throughput",
    "nic": "the network card",
    "account": "the account",
    "requests": "the store's requests",
}


def predict_sync(spec: dict[str, Any], disk: str, size_bytes: float, scale: float = 1.0) -> tuple[float, str]:
    """Seconds to copy from the store of the disk's cloud, and the limit. Shards are read in requests of 8 MiB."""
    tier = tiers.find(ROUTES[disk][1])
    requests = (
        tier.rate("read-requests", "prefix")
        or tier.rate("read-requests", "bucket")
        or tier.rate("requests", "account")
        or float("inf")
    )
    found = predict_stage(
        nodes=1, wire_bytes=size_bytes, written_bytes=size_bytes, nic_bytes_per_s=spec["node"]["nic_bytes_per_s"] * scale,
        account_bytes_per_s=(tier.rate("read-bytes", "account") or float("inf")) * scale,
        disk_bytes_per_s=DiskRates.of(disk, scale).bytes_per_s, objects=round(size_bytes / _REQUEST_BYTES), requests_per_s=requests * scale,
    )  # fmt: skip
    return found.stage_s, _NAMES[found.limited_by]


def _measure(context: Context, bucket: Path, disk: str, scale: float, stored: int) -> float:
    """Stage all shards to a disk; return the seconds until they are on the device."""
    rates = DiskRates.of(disk, scale)
    mount = context.scratch / "disk"
    mount.mkdir(exist_ok=True)
    with LoopDisk(
        mount, size_bytes=int(stored * 1.3) + (128 << 20), ios=Rate(rates.ios_per_s), moved=Rate(rates.bytes_per_s),
        io_bytes=1 << 20 if "st1" in disk else 262_144, images=context.scratch,
    ), Emulator(bucket, tier=ROUTES[disk][1], scale=scale) as server, env.override(server.env):  # fmt: skip
        begun = time.monotonic()
        stage.run(f"{server.url}train/", str(mount / "train"))
        os.sync()
        return time.monotonic() - begun


def run(context: Context) -> PartResult:
    """Predict all disks at the published size, and measure those of this size."""
    size, spec = context.size, context.study.tables
    scale, whole = size["sync_scale"], float(spec["dataset"]["bytes"])
    predicted = {}
    for disk, (figure, _) in ROUTES.items():
        seconds, limit = predict_sync(spec, disk, whole)
        predicted[figure] = Value(seconds / 60, limit)
    context.progress("making the images")
    bucket = context.scratch / "bucket"
    train = make_images(bucket, images=size["sync_images"], shards=size["shards"], replicate=size["replicate"])
    stored = sum(path.stat().st_size for path in train.iterdir())
    rows, measured, data = [], {}, []
    for disk in size["sync_disks"]:
        figure, tier = ROUTES[disk]
        expected, limit = predict_sync(spec, disk, stored, scale)
        context.progress(f"{tier} to {disk}: {expected:.1f} s expected")
        seconds = _measure(context, bucket, disk, scale, stored)
        full = seconds / stored * whole * scale / 60
        measured[figure] = Value(full, limit, scale=scale)
        rows.append(
            (
                disk,
                tier,
                limit,
                f"{predicted[figure].value:,.0f}",
                f"{expected:.1f}",
                f"{seconds:.1f}",
                f"{seconds / expected:.2f}",
                f"{full:,.0f}",
            )
        )
        data.append({"disk": disk, "tier": tier, "expected_s": expected, "measured_s": seconds, "bytes": stored})
    errors = sorted(abs(each["measured_s"] / each["expected_s"] - 1) for each in data)
    claims = (
        Claim(
            "copies take what the disk's throughput predicts, within 15 % (median)",
            f"median {errors[len(errors) // 2]:.0%}, worst {errors[-1]:.0%}",
            errors[len(errors) // 2] <= 0.15,
        ),
    )
    table = Table(
        f"Copying 700 GB, measured with {stored / 1e6:.0f} MB at F = {scale:g}",
        ("disk", "store", "limit", "predicted, 700 GB, min", "expected at F, s", "measured, s", "ratio", "x size / F, min"), tuple(rows), left=3,
        note="Copies write in order, so st1 is as fast as io1 here: its few IOPS do not matter. Measured until the bytes are on the device.",
    )  # fmt: skip
    return PartResult(predicted=predicted, measured=measured, claims=claims, blocks=(table,), data=data)

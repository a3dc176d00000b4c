# SPDX-License-Identifier: Apache-2.0
"""Stages from object stores to disks at scale F, and extrapolates to the 700 GB of the publication."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock import env, stage, tiers
from penstock.bench.diskstats import read_counters
from penstock.bench.loop_disk import LoopDisk, Rate
from penstock.emulator import Emulator
from penstock.plan.model import predict_stage
from penstock.study.result import Claim, PartResult, Table, Value

from .images import make_images
from .limits import DiskRates

if TYPE_CHECKING:
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
_AT_LIMIT = 0.8  # mean rate of a whole copy, as a share of a limit, from which the limit is named
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


def _measure(context: Context, bucket: Path, disk: str, scale: float, stored: int) -> dict[str, float]:
    """Stage all shards to a disk. Return the seconds until they are on the device, and the shares of its limits that the
    kernel's counters show.
    """
    rates = DiskRates.of(disk, scale)
    mount = context.scratch / "disk"
    mount.mkdir(exist_ok=True)
    with LoopDisk(
        mount, size_bytes=int(stored * 1.3) + (128 << 20), ios=Rate(rates.ios_per_s), moved=Rate(rates.bytes_per_s),
        io_bytes=1 << 20 if "st1" in disk else 262_144, images=context.scratch,
    ) as device, Emulator(bucket, tier=ROUTES[disk][1], scale=scale) as server, env.override(server.env):  # fmt: skip
        name = Path(device.device).name
        before = read_counters()[name]
        stage.run(f"{server.url}train/", str(mount / "train"))
        os.sync()
        after = read_counters()[name]
    seconds = after.at_s - before.at_s
    return {
        "seconds": seconds,
        "bytes_share": (after.bytes - before.bytes) / seconds / rates.bytes_per_s,
        # The kernel's limit counts requests before they are merged.
        "ios_share": (after.ios + after.merged - before.ios - before.merged) / seconds / rates.ios_per_s,
    }


def _limit_of(found: dict[str, float], otherwise: str) -> str:
    """The limit of the disk that was reached, or else the reason that was expected."""
    name, share = max(
        ("the disk's throughput", found["bytes_share"]),
        ("the disk's IOPS", found["ios_share"]),
        key=lambda each: each[1],
    )
    return name if share >= _AT_LIMIT else f"no limit of the disk ({share:.0%} of one); expected: {otherwise}"


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
        found = _measure(context, bucket, disk, scale, stored)
        seconds = found["seconds"]
        full = seconds / stored * whole * scale / 60
        measured[figure] = Value(full, _limit_of(found, limit), scale=scale)
        rows.append(
            (
                disk,
                tier,
                limit,
                f"{predicted[figure].value:,.0f}",
                f"{expected:.1f}",
                f"{seconds:.1f}",
                f"{seconds / expected:.2f}",
                f"{found['bytes_share']:.0%}",
                f"{found['ios_share']:.0%}",
                f"{full:,.0f}",
            )
        )
        data.append(
            {"disk": disk, "tier": tier, "expected_s": expected, "measured_s": seconds, "bytes": stored, **found}
        )
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
        ("disk", "store", "limit", "predicted, 700 GB, min", "expected at F, s", "measured, s", "ratio", "of bytes/s", "of IOPS", "x size / F, min"), tuple(rows), left=3,
        note="Expected: the disk's bytes per second alone. The shares are the mean rates of the device over its limits; IOPS are counted before requests are merged, as the kernel's limit counts them. Measured until the bytes are on the device.",
    )  # fmt: skip
    return PartResult(predicted=predicted, measured=measured, claims=claims, blocks=(table,), data=data)

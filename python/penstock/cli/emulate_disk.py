# SPDX-License-Identifier: Apache-2.0
"""`penstock emulate` for a disk tier: mount a block device with the tier's limits, until interrupted."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING

import click

from penstock.errors import ConfigError
from penstock.units import format_bytes, format_rate

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.price.disks import DiskLimit

__all__ = ["emulate_disk"]


def emulate_disk(
    folder: Path,
    name: str,
    *,
    size_bytes: int,
    scale: float,
    credits_share: float,
    as_json: bool,
    ends: set[signal.Signals],
) -> int:
    """Mount a disk of the price book at an empty folder, until one of the signals `ends` arrives. The rates are the
    rates of the disk in the study that measured it. The file system is smaller than the real disk, because this run's
    data are smaller.
    """
    from penstock.bench.loop_disk import Burst, LoopDisk, Rate
    from penstock.price import disks

    disk = disks.find(name)
    if not 0 < scale < float("inf"):
        raise ConfigError(f"scale: must be finite and above 0 (got {scale:g})", where="--scale")
    if not 0 <= credits_share <= 1:
        raise ConfigError(f"credits: {credits_share:g} is not between 0 and 1", where="--credits")

    def rate(limit: DiskLimit | None) -> Rate | None:
        if limit is None:
            return None
        burst = None
        if limit.burst is not None and limit.credits is not None:
            most = limit.credits * scale
            burst = Burst(per_s=limit.burst * scale, credits=most, held=most * credits_share)
        return Rate(base_per_s=limit.base(disk.size_bytes) * scale, burst=burst)

    ios, moved = rate(disk.limit("ios")), rate(disk.limit("bytes"))
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    try:
        with LoopDisk(folder, size_bytes=size_bytes, ios=ios, moved=moved, io_bytes=disk.io_bytes) as made:
            facts = {
                "schema_version": 2,
                "device": made.device,
                "device_number": made.number,
                "mount": str(folder.resolve()),
                "tier": disk.label,
                "scale": scale,
                "ios_per_s": ios.base_per_s if ios else None,
                "bytes_per_s": moved.base_per_s if moved else None,
                "size_bytes": size_bytes,
                "pid": os.getpid(),
            }
            click.echo(json.dumps(facts) if as_json else _readable(facts, disk.title))
            signal.sigwait(ends)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ends)
    return 0


def _readable(facts: dict[str, object], title: str) -> str:
    ios, moved = facts["ios_per_s"], facts["bytes_per_s"]
    scaled = f", rates x {facts['scale']:g} (F)" if facts["scale"] != 1 else ""
    return "\n".join(
        [
            f"{facts['mount']} is {facts['device']}, {format_bytes(float(str(facts['size_bytes'])))}",
            f"tier {facts['tier']}{scaled}: {title}",
            f"  {'–' if ios is None else format(ios, ',.0f')} I/Os per second, {'–' if moved is None else format_rate(float(str(moved)))}; reads and writes each",
            "Press Ctrl-C to stop.",
        ]
    )

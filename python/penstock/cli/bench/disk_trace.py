# SPDX-License-Identifier: Apache-2.0
"""`penstock bench disk-trace`: find the disk limit that a command hits."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.parameters import BYTES, RATE, SECONDS

if TYPE_CHECKING:
    from penstock.bench.disk_trace import DiskLimits, DiskTrace

__all__ = ["command"]

_COLUMNS = 60
_LEVELS = " ▁▂▃▄▅▆▇█"


@click.command("disk-trace", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option(
    "--device",
    "places",
    multiple=True,
    metavar="DEVICE|PATH",
    help="Block device, or a path on one; repeatable.  [default: the one below the working folder]",
)
@click.option("--tier", metavar="NAME", help="Compare with a disk of the tier book (aws-gp2@2018).")
@click.option("--size", type=BYTES, metavar="SIZE", help="Size of the tier's disk.  [default: the size in its study]")
@click.option("--scale", type=float, default=1.0, show_default=True, metavar="F", help="Factor on the tier's rates.")
@click.option("--max-iops", type=float, metavar="N", help="Limit to compare with, in I/Os per second.")
@click.option("--max-rate", type=RATE, metavar="RATE", help="Limit to compare with, in bytes per second.")
@click.option(
    "--every", type=SECONDS, default="250ms", show_default=True, metavar="TIME", help="Interval between samples."
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Folder for rows.jsonl, spec.toml and machine.json, for `penstock report`.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON document on stdout, after the command's own output."
)
@click.argument("argv", nargs=-1, type=click.UNPROCESSED, metavar="-- CMD...")
def command(places: tuple[str, ...], argv: tuple[str, ...], **given: Any) -> int:
    """Run CMD, and print its use of the disk: utilisation, rate, I/Os per second and queue, compared with the disk's
    limits.

    The limits are those of --tier, or of --max-iops and --max-rate, or of the control group. Exit code 1: CMD failed.
    """
    import msgspec

    from penstock.bench.disk_trace import trace
    from penstock.bench.diskstats import device_of
    from penstock.bench.results import provenance
    from penstock.bench.rows import write_results
    from penstock.errors import ConfigError

    if not 0.01 <= given["every"] <= 3600:
        raise ConfigError(f"every: {given['every']:g} s is not between 10 ms and an hour", where="--every")
    devices = list(dict.fromkeys(device_of(place) for place in places or (".",)))
    traces = trace(argv, devices, limits=_limits(given), every_s=given["every"])
    if given["output"] is not None:
        spec = {"bench": "disk-trace", "tier": given["tier"], "scale": given["scale"], "every_s": given["every"]}
        write_results(given["output"], [one.row() for one in traces], spec=spec, provenance=provenance())
    if given["as_json"]:
        click.echo(msgspec.json.encode({"schema_version": 2, "traces": traces}))
    else:
        for one in traces:
            for line in _drawn(one):
                click.echo(line)
    code = traces[0].exit_code
    if code:
        click.echo(f"{argv[0]} ended with {code}", err=True)
    return 1 if code else 0


def _limits(given: dict[str, Any]) -> DiskLimits | None:
    from penstock.bench.disk_trace import DiskLimits
    from penstock.errors import ConfigError
    from penstock.price import disks

    if given["tier"] is None:
        if given["max_iops"] is None and given["max_rate"] is None:
            return None
        return DiskLimits(ios_per_s=given["max_iops"], bytes_per_s=given["max_rate"], source="the command line")
    disk = disks.find(given["tier"])
    if not 0 < given["scale"] < float("inf"):
        raise ConfigError(f"scale: must be finite and above 0 (got {given['scale']:g})", where="--scale")
    size = given["size"] or disk.size_bytes
    ios, moved = disk.limit("ios"), disk.limit("bytes")
    scaled = f", rates x {given['scale']:g} (F)" if given["scale"] != 1 else ""
    return DiskLimits(
        ios_per_s=ios.most(size) * given["scale"] if ios else None,
        bytes_per_s=moved.most(size) * given["scale"] if moved else None,
        source=f"{disk.label}{scaled}",
    )


def _drawn(trace: DiskTrace) -> list[str]:
    """Draw one line per measure, scaled to its limit: a full block means that the limit is reached."""
    from penstock.units import format_bytes, format_rate, format_seconds

    limits, samples = trace.limits, trace.samples
    moved = [sample.used("bytes", shared=limits.is_shared) for sample in samples]
    ios = [sample.used("ios", shared=limits.is_shared) for sample in samples]
    queue = [sample.queue for sample in samples]
    lines = [
        (
            f"{trace.device}: {format_bytes(trace.read_bytes)} read, {format_bytes(trace.write_bytes)} written,"
            f" {trace.ios:,} I/Os in {format_seconds(trace.seconds)}; limits: {limits.source}"
        )
    ]
    for name, values, limit, shown in (
        ("throughput", moved, limits.bytes_per_s, format_rate),
        ("IOPS", ios, limits.ios_per_s, _count),
        ("queue", queue, None, _count),
        ("utilisation", [sample.utilisation for sample in samples], 1.0, _percent),
    ):
        top = limit or max(values, default=0.0) or 1.0
        what = f"of {shown(limit)}" if limit is not None else f"at most {shown(max(values, default=0.0))}"
        lines.append(f"  {name:12}|{_line(values, top)}| mean {shown(_mean(values))}, {what}")
    for what, share in trace.at_limit.items():
        name = {"bytes": "throughput", "ios": "IOPS"}[what]
        lines.append(f"  at its limit of {name} for {_percent(share)} of the time in use")
    lines.append(f"  limited by: {_LIMIT_TEXTS[trace.binding_limit]}")
    return lines


_LIMIT_TEXTS = {
    "throughput": "the disk's throughput",
    "IOPS": "the disk's I/Os per second",
    "device": "the device itself: it is always busy, below every stated limit",
    "none": "nothing on this disk",
}


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _count(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


def _percent(value: float) -> str:
    return f"{100 * value:.0f} %"


def _line(values: list[float], top: float) -> str:
    """Draw the means of equal time intervals as block characters."""
    count = min(_COLUMNS, len(values))
    cells = [values[len(values) * i // count : len(values) * (i + 1) // count] for i in range(count)]
    levels = [min(len(_LEVELS) - 1, round(_mean(cell) / top * (len(_LEVELS) - 1))) for cell in cells]
    return "".join(_LEVELS[level] for level in levels)

# SPDX-License-Identifier: Apache-2.0
"""`penstock convert`: convert a dataset of records to TFRecord, tar or Parquet."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.parameters import BYTES, SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.writer import Conversion, Written
    from penstock.writer.settings import Compress, Format

__all__ = ["command"]


@click.command("convert")
@click.argument("source", metavar="SRC")
@click.argument("destination", metavar="DST")
@click.option(
    "--format", "format_", type=click.Choice(["tfrecord", "tar", "parquet"]), required=True, help="Format of DST."
)
@click.option(
    "--shard-bytes",
    type=BYTES,
    default="128MB",
    show_default=True,
    help="Size at which a shard ends, before compression.",
)
@click.option(
    "--fields",
    metavar="NAME,NEW=OLD,..",
    help="Parts of a record to convert, and new names for them.  [default: all parts]",
)
@click.option(
    "--compress",
    type=click.Choice(["gzip", "zstd"]),
    help="Compression of the shards; in Parquet, of the columns.  [default: none]",
)
@click.option("--level", type=int, help="Level of the compression.  [default: 6 for gzip, 3 for zstd]")
@click.option("--name", default="shard", show_default=True, help="Start of the names of the shards.")
@click.option(
    "--workers",
    type=click.IntRange(1),
    help="Number of shards that are compressed and sent at the same time.  [default: 4, or one per core]",
)
@click.option("--overwrite", is_flag=True, help="Delete an earlier conversion in DST first.")
@click.option("--dry-run", is_flag=True, help="Print the fields, sizes and cost of reading; write nothing.")
@click.option(
    "--timeout", type=SECONDS, default="10min", show_default=True, metavar="TIME", help="Time limit of a request."
)
@click.option("--json", "as_json", is_flag=True, help="Print a summary as one JSON line.")
def command(
    source: str,
    destination: str,
    format_: Format,
    shard_bytes: int,
    fields: str | None,
    compress: Compress | None,
    level: int | None,
    name: str,
    workers: int | None,
    overwrite: bool,
    dry_run: bool,
    timeout: float,
    as_json: bool,
) -> int:
    """Convert the records of SRC to shards of another format in DST, a folder or a store.

    SRC is anything that `penstock.open` reads: TFRecord, tar, Parquet, MDS, image folders, NumPy files. Encoded images
    and other bytes stay as they are; arrays keep their type and shape. After an interruption, the same command
    continues after the last whole shard. To convert volumes (SEG-Y, Zarr, HDF5), use `penstock array convert`.
    """
    from penstock.writer import convert, plan_conversion

    plan = plan_conversion(
        source, format_, fields=None if fields is None else [each for each in fields.split(",") if each]
    )
    facts = _facts(plan, destination, format_)
    if dry_run:
        click.echo(json.dumps(facts) if as_json else _readable(plan, facts))
        return 0
    for part, reason in plan.left_out:
        click.echo(f"`{part}` is not converted: {reason}", err=True)
    with _progress(plan.samples) as advance:
        written = convert(
            plan,
            destination,
            format=format_,
            shard_bytes=shard_bytes,
            compress=compress,
            level=level,
            name=name,
            workers=workers,
            if_exists="overwrite" if overwrite else "resume",
            timeout_s=timeout,
            progress=advance,
        )
    click.echo(json.dumps({**facts, **_result(written)}) if as_json else _done(written))
    return 0


def _facts(plan: Conversion, destination: str, format_: str) -> dict[str, Any]:
    from penstock.price.estimates import estimate_stage

    source = plan.dataset.source
    size = {"source": plan.dataset.url, "share_requests": [source.requests], "shares": [source.size_bytes]}
    return {
        "schema_version": 1,
        "source": plan.dataset.url,
        "source_format": plan.dataset.format,
        "objects": source.objects,
        "bytes": source.size_bytes,
        "requests": source.requests,
        "samples": plan.samples,
        "destination": destination,
        "format": format_,
        "fields": {name: str(spec) for name, spec in plan.fields.items()},
        "left_out": dict(plan.left_out),
        "money": estimate_stage(size)["money"],
    }


def _result(written: Written) -> dict[str, Any]:
    return {
        "samples": written.samples,
        "shards": written.shards,
        "bytes_stored": written.bytes_stored,
        "skipped": written.skipped,
    }


def _readable(plan: Conversion, facts: dict[str, Any]) -> str:
    from penstock.cli.stage_estimate import usd
    from penstock.units import format_bytes

    count = "an unknown number of" if plan.samples is None else f"{plan.samples:,}"
    size = format_bytes(facts["bytes"])
    lines = [
        f"{facts['source']}: {facts['objects']:,} objects of {facts['source_format']}, {size}, {count} samples",
        f"  to       {facts['destination']} ({facts['format']})",
    ]
    lines += [f"  field    {name}: {spec}" for name, spec in facts["fields"].items()]
    lines += [f"  left out {name}: {reason}" for name, reason in facts["left_out"].items()]
    if facts["money"] is not None:
        money = facts["money"]
        text = f"  reading  {facts['requests']:,} requests, {usd(money['requests_usd'])}"
        if money["egress_usd"]:
            text += f"; egress {usd(money['egress_usd'])} if this machine is outside the cloud"
        lines.append(text)
    return "\n".join(lines)


def _done(written: Written) -> str:
    from penstock.units import format_bytes

    text = (
        f"{written.url}: {written.samples:,} samples in {written.shards:,} shards, "
        f"{format_bytes(written.bytes_stored)} stored"
    )
    if written.skipped:
        text += f" ({written.skipped:,} samples were there already)"
    return text


@contextmanager
def _progress(samples: int | None) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar on a terminal. Yields a function of (samples stored, bytes stored)."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from penstock.units import format_bytes

    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task("samples", total=samples)
        yield lambda done, stored: bar.update(
            task, completed=done, description=f"{done:,} samples, {format_bytes(stored)}"
        )

# SPDX-License-Identifier: Apache-2.0
"""`penstock convert`: convert a dataset of records to TFRecord, tar or Parquet."""

from __future__ import annotations

import json
import re
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import click

from penstock.cli.parameters import BYTES, SECONDS
from penstock.cli.signals import stopped
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.writer import Conversion, Written
    from penstock.writer.settings import Compress, Format

__all__ = ["command"]

_STATES = {
    "complete": "this conversion is complete ({:,} samples): nothing to do",
    "unfinished": "an unfinished run of this conversion: it continues after {:,} samples",
    "replaced": "an earlier conversion, which --overwrite deletes first",
}
"""Lines of a dry run for a destination that is not empty."""


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
    help="A shard ends with the first sample that brings it to this size, before compression.",
)
@click.option(
    "--fields",
    metavar="PART,NEW=OLD,..",
    help="Parts of a record to convert; NEW=OLD stores the part OLD under the name NEW. In a name, write `\\,` for a comma."
    "  [default: all parts]",
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
    help="Number of shards that are compressed and sent at the same time.  [default: number of cores, at most 4]",
)
@click.option("--overwrite", is_flag=True, help="Delete an earlier conversion in DST first.")
@click.option(
    "--dry-run",
    is_flag=True,
    help="Print the fields, sizes, cost of reading and what DST contains, or the error of a real run; write nothing.",
)
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
    and other bytes stay as they are; arrays keep their type and shape. Parts that cannot be converted are listed. After
    an interruption, the same command continues after the last complete shard. To convert volumes (SEG-Y, Zarr, HDF5),
    use `penstock array convert`.
    """
    from penstock.writer import convert, plan_conversion
    from penstock.writer.convert import NOT_SELECTED, stored_samples
    from penstock.writer.destination import Destination
    from penstock.writer.settings import Settings

    with _flags():
        at = Destination(destination, timeout_s=timeout)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            plan = plan_conversion(source, format_, fields=None if fields is None else _names(fields))
        for warning in caught:
            click.echo(warning.message, err=True)
        facts = _facts(plan, destination, format_)
        if_exists: Literal["resume", "overwrite"] = "overwrite" if overwrite else "resume"
        if dry_run:
            try:
                settings = Settings(format_, shard_bytes, compress, level, name, plan.identity)
                state, stored = stored_samples(plan, at, settings, if_exists)
                facts |= {"destination_state": state, "samples_stored": stored}
            finally:
                click.echo(json.dumps(facts) if as_json else _readable(plan, facts))
            return 0
        for part, reason in plan.left_out:
            if reason != NOT_SELECTED:
                click.echo(f"`{part}` is not converted: {reason}", err=True)
        if others := [f"`{part}`" for part, reason in plan.left_out if reason == NOT_SELECTED]:
            click.echo(f"{NOT_SELECTED}: {', '.join(others)}", err=True)
        for part, note in plan.notes:
            click.echo(f"`{part}`: {note}", err=True)
        try:
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
                    if_exists=if_exists,
                    timeout_s=timeout,
                    progress=advance,
                )
        except KeyboardInterrupt as stop:
            what, code = stopped(stop)
            click.echo(f"{what}; complete shards are kept, and the same command continues after them", err=True)
            return code
    click.echo(json.dumps({**facts, **_result(written)}) if as_json else _done(written))
    return 0


def _names(text: str) -> list[str]:
    names = (name.replace("\\,", ",").strip() for name in re.split(r"(?<!\\),", text))
    return [name for name in names if name]


@contextmanager
def _flags() -> Iterator[None]:
    """Replace the names of Python arguments in hints by the names of flags."""
    try:
        yield
    except PenstockError as error:
        if error.hint:
            hint = error.hint.replace('if_exists="overwrite"', "--overwrite")
            hint = hint.replace("repeat the same call", "run the same command again")
            hint = re.sub(r'(\w+)="(\w+)"(?: or "(\w+)")?', _flag, hint)
            error.__notes__[0] = hint.replace("fields=", "--fields").replace("shard_bytes", "--shard-bytes")
        raise


def _flag(found: re.Match[str]) -> str:
    name, value, other = found.groups()
    return f"--{name} {value}" + (f" or {other}" if other else "")


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
        "notes": dict(plan.notes),
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
    from penstock.writer.convert import NOT_SELECTED

    count = "an unknown number of" if plan.samples is None else f"{plan.samples:,}"
    size = format_bytes(facts["bytes"])
    lines = [
        f"{facts['source']}: {facts['objects']:,} objects of {facts['source_format']}, {size}, {count} samples",
        f"  to       {facts['destination']} ({facts['format']})",
    ]
    lines += [f"  field    {name}: {spec}" for name, spec in facts["fields"].items()]
    lines += [f"  left out {name}: {reason}" for name, reason in plan.left_out if reason != NOT_SELECTED]
    if others := [name for name, reason in plan.left_out if reason == NOT_SELECTED]:
        lines.append(f"  left out {', '.join(others)}: {NOT_SELECTED}")
    lines += [f"  note     {name}: {note}" for name, note in facts["notes"].items()]
    if plan.dataset.format in ("tfrecord", "tar", "jsonl") and plan.dataset.source.fields is None:
        lines.append("  note     parts that only records after the first 100 have are left out")
    if facts["money"] is not None:
        money = facts["money"]
        text = f"  reading  {facts['requests']:,} requests, {usd(money['requests_usd'])}"
        if money["egress_usd"]:
            text += f"; egress {usd(money['egress_usd'])} if this machine is outside the cloud"
        lines.append(text)
    if facts.get("destination_state", "empty") != "empty":
        lines.append(f"  state    {_STATES[facts['destination_state']].format(facts['samples_stored'])}")
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

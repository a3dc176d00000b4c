# SPDX-License-Identifier: Apache-2.0
"""`penstock dataset images`: generate ImageNet-like JPEGs in shards or class folders."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.dataset_output import progress_bar, refuse_store
from penstock.cli.parameters import BYTES

if TYPE_CHECKING:
    from penstock.datasets.image_shards import ImageFormat
    from penstock.datasets.images import Summary

    _ParamType = click.ParamType[Any]
else:
    _ParamType = click.ParamType  # in the oldest supported click, ParamType is generic only for type checkers

__all__ = ["images"]


class _Size(_ParamType):
    name = "WxH"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        sides = re.fullmatch(r"\s*([0-9]{1,5})\s*[x×]\s*([0-9]{1,5})\s*", value)
        if sides is None:
            self.fail(f"`{value}` is not a size in pixels such as 500x400", param, ctx)
        return int(sides[1]), int(sides[2])


@click.command(
    epilog="""\b
Examples:
  penstock dataset images imagenet --images 20000 --classes 100 --validation 1000
  penstock dataset images shards --images 20000 --classes 100 --format tar
  penstock dataset images large --images 1281167 --shards 1024 --replicate 5 --dry-run
"""
)
@click.argument("out", type=click.Path(file_okay=False))
@click.option("--images", "count", type=click.IntRange(1), required=True, help="Number of training images.")
@click.option(
    "--classes",
    type=click.IntRange(1, 1000),
    default=1000,
    show_default=True,
    help="Number of classes. Each class has the same number of images, give or take one.",
)
@click.option("--validation", type=click.IntRange(0), default=0, show_default=True, help="Number of validation images.")
@click.option(
    "--format",
    "image_format",
    type=click.Choice(["tfrecord", "tar", "folder"]),
    default="tfrecord",
    show_default=True,
    help="TFRecords with ImageNet's features, tar shards as of WebDataset, or class folders.",
)
@click.option(
    "--shards",
    type=click.IntRange(1),
    help="Number of training shards of one copy.  [default: shards of about 128 MiB, at least 8]",
)
@click.option(
    "--replicate",
    type=click.IntRange(1, 100),
    default=1,
    show_default=True,
    help="Number of copies of each training image, each with its own name, in separate shards.",
)
@click.option("--median-bytes", type=BYTES, default="110kB", show_default=True, help="Median size of a JPEG.")
@click.option(
    "--sigma",
    type=click.FloatRange(0, 1),
    default=0.29,
    show_default=True,
    help="Standard deviation of the logarithm of a JPEG's size; the sizes are lognormal.",
)
@click.option(
    "--size",
    type=_Size(),
    default="500x400",
    show_default=True,
    help="Nominal width and height in pixels. Most images have this long side; aspects vary, and a quarter is portrait.",
)
@click.option(
    "--broken",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Number of training images to break: truncated, not a JPEG, empty, or with a label out of range, in turn.",
)
@click.option(
    "--seed",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Seed of the generator; equal seeds give equal bytes.",
)
@click.option("--jobs", type=click.IntRange(1), help="Number of processes; does not change the bytes.  [default: CPUs]")
@click.option("--dry-run", is_flag=True, help="Print the number of shards and bytes; write nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line on stdout.")
def images(
    out: str,
    count: int,
    classes: int,
    validation: int,
    image_format: ImageFormat,
    shards: int | None,
    replicate: int,
    median_bytes: int,
    sigma: float,
    size: tuple[int, int],
    broken: int,
    seed: int,
    jobs: int | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Generate ImageNet-like JPEGs in folder OUT.

    Each class has a colour, a shape and a texture that a model can learn. The training data are in OUT/train, the
    validation data in OUT/validation; OUT/dataset.json lists the settings, shards, classes and broken images. Labels
    count from 1 in TFRecords (image/class/label) and from 0 in tar shards (KEY.cls) and class folders.

    A command that was interrupted continues if it is repeated. A repeated command also writes damaged shards again:
    those whose size differs from OUT/dataset.json.
    """
    from dataclasses import asdict

    from penstock.extras import require

    require("penstock dataset images", "images")
    from penstock.datasets.images import ImageSpec, expected, generate

    refuse_store(out)
    spec = ImageSpec(
        images=count,
        classes=classes,
        shards=shards or 0,
        validation=validation,
        format=image_format,
        width=size[0],
        height=size[1],
        median_bytes=median_bytes,
        sigma=sigma,
        seed=seed,
        replicate=replicate,
        broken=broken,
    )
    plan = expected(spec)
    began = time.monotonic()
    if dry_run:
        summary = plan
    else:
        with progress_bar("images", total=plan.records) as advance:
            summary = generate(Path(out), spec, jobs=jobs, progress=advance)
    wall_s = time.monotonic() - began
    if as_json:
        click.echo(json.dumps({"schema_version": 1, "output": out, "dry_run": dry_run, **asdict(summary)}))
    elif dry_run:
        click.echo(f"{out}: would contain {_contents(summary)}, about {_stored(summary)}")
    else:
        click.echo(f"{out}: {_contents(summary)}, {_stored(summary)}")
        if summary.damaged:
            plural = "s" if summary.damaged > 1 else ""
            click.echo(
                f"  damaged: {summary.damaged:,} shard{plural} of another size than in dataset.json, written again"
            )
        rate = f", {summary.written / wall_s:,.0f} records/s" if summary.written else ""
        click.echo(f"  written now: {summary.written:,} of {summary.records:,} records in {wall_s:.1f} s{rate}")
        if summary.drawn != summary.written:
            click.echo(
                f"  drawn now: {summary.drawn:,} images, {summary.drawn / wall_s:,.0f} images/s; the rest are copies"
            )
        if summary.broken:
            click.echo(f"  broken on purpose: {summary.broken:,} records, listed in dataset.json")


def _contents(summary: Summary) -> str:
    shards = f" in {summary.shards:,} {summary.format} shards" if summary.shards else " in class folders"
    return f"{summary.records:,} records of {summary.images:,} images in {summary.classes:,} classes{shards}"


def _stored(summary: Summary) -> str:
    from penstock.units import format_bytes

    return format_bytes(summary.bytes_stored)

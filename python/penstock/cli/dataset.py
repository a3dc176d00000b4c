# SPDX-License-Identifier: Apache-2.0
"""`penstock dataset`: make honest data to try things on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from penstock.datasets.cosmoflow import Codec

__all__ = ["command"]


@click.group(name="dataset")
def command() -> None:
    """Make honest data to try things on: it compresses, decodes and can be learnt from as the real data does."""


@command.command()
@click.argument("out", type=click.Path(file_okay=False))
@click.option("--samples", type=int, required=True, help="Samples to make, one file each.")
@click.option(
    "--voxels",
    type=int,
    default=128,
    show_default=True,
    help="Side of a sample: 128 as published, 64, 32, or any from 8 to 512.",
)
@click.option(
    "--box",
    "box_mpc",
    type=float,
    help="Side of a sample's box in Mpc/h at H_0 = 70.  [default: 4 a voxel, at least 192]",
)
@click.option(
    "--cubes-per-universe", type=int, default=1, show_default=True, help="Samples cut from one simulation: 1, 8 or 64."
)
@click.option(
    "--first-universe",
    type=int,
    default=0,
    show_default=True,
    help="Number of the first universe; a validation set continues where training ended.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Same seed, same bytes.")
@click.option(
    "--compress",
    type=click.Choice(["gzip", "zstd", "none"]),
    default="gzip",
    show_default=True,
    help="How each file is stored.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON line on stdout.")
def cosmoflow(
    out: str,
    samples: int,
    voxels: int,
    box_mpc: float | None,
    cubes_per_universe: int,
    first_universe: int,
    seed: int,
    compress: Codec,
    as_json: bool,
) -> None:
    """Make CosmoFlow-like volumes in the folder OUT.

    Each sample is int16 particle counts [V, V, V, 4] at four redshifts (x) and four cosmological parameters in [-1, 1]
    (y), in a TFRecord of its own. The parameters can be learnt from the volumes.
    """
    from dataclasses import asdict

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from penstock.datasets.cosmoflow import generate
    from penstock.errors import Unsupported
    from penstock.units import format_bytes

    if "://" in out:
        raise Unsupported(f"{out} is in a store: datasets are made in a local folder", where=out)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task("samples", total=samples)
        summary = generate(
            Path(out),
            samples=samples,
            voxels=voxels,
            seed=seed,
            box_mpc=box_mpc,
            cubes_per_universe=cubes_per_universe,
            first_universe=first_universe,
            compress=compress,
            progress=lambda _stored, done: bar.update(task, completed=done),
        )
    if as_json:
        click.echo(json.dumps({"schema_version": 1, "out": out, **asdict(summary)}))
    else:
        ratio = summary.bytes_inflated / summary.bytes_stored
        click.echo(
            f"{out}: {summary.samples} samples of {voxels}³ x 4, {format_bytes(summary.bytes_stored)} stored, {ratio:.1f}x compressed"
        )

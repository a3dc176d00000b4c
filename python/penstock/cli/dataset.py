# SPDX-License-Identifier: Apache-2.0
"""`penstock dataset`: generate data with realistic content and sizes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from penstock.cli.dataset_images import images
from penstock.cli.dataset_output import progress_bar, refuse_store
from penstock.cli.parameters import BYTES

if TYPE_CHECKING:
    from penstock.datasets.cosmoflow import Codec

__all__ = ["command"]


@click.group(name="dataset")
def command() -> None:
    """Generate realistic datasets for experiments: they compress, decode and train like the real data."""


@command.command()
@click.argument("out", type=click.Path(file_okay=False))
@click.option("--samples", type=int, required=True, help="Number of samples to generate, each in its own file.")
@click.option(
    "--voxels",
    type=int,
    default=128,
    show_default=True,
    help="Side of a sample in voxels, 8 to 512; 128 as published.",
)
@click.option(
    "--box",
    "box_mpc",
    type=float,
    help="Side of a sample's box in Mpc/h at H_0 = 70.  [default: 4 per voxel, at least 192]",
)
@click.option(
    "--cubes-per-universe",
    type=int,
    default=1,
    show_default=True,
    help="Number of samples cut from one simulation: 1, 8 or 64.",
)
@click.option(
    "--first-universe",
    type=int,
    default=0,
    show_default=True,
    help="Number of the first universe; for a validation set, use the number after the last universe of the training set.",
)
@click.option(
    "--seed", type=int, default=0, show_default=True, help="Seed of the generator; equal seeds give equal bytes."
)
@click.option(
    "--compress",
    type=click.Choice(["gzip", "zstd", "none"]),
    default="gzip",
    show_default=True,
    help="Compression of each file.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line on stdout.")
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
    """Generate CosmoFlow-like volumes in folder OUT.

    Each sample is int16 particle counts [V, V, V, 4] at four redshifts (x) and four cosmological parameters in [-1, 1]
    (y), in its own TFRecord file. The parameters can be learnt from the volumes.
    """
    from dataclasses import asdict

    from penstock.extras import require

    require("penstock dataset cosmoflow", "numpy")
    from penstock.datasets.cosmoflow import generate
    from penstock.units import format_bytes

    refuse_store(out)
    with progress_bar("samples", total=samples) as advance:
        summary = generate(
            Path(out),
            samples=samples,
            voxels=voxels,
            seed=seed,
            box_mpc=box_mpc,
            cubes_per_universe=cubes_per_universe,
            first_universe=first_universe,
            compress=compress,
            progress=advance,
        )
    if as_json:
        click.echo(json.dumps({"schema_version": 2, "output": out, **asdict(summary)}))
    else:
        ratio = summary.bytes_inflated / summary.bytes_stored
        click.echo(
            f"{out}: {summary.samples} samples of {voxels}³ x 4, {format_bytes(summary.bytes_stored)} stored, {ratio:.1f}x compressed"
        )


@command.command()
@click.argument("model")
@click.argument("out", type=click.Path(file_okay=False))
@click.option("--files", type=click.IntRange(1), help="Number of files to generate.  [default: the published number]")
@click.option(
    "--records-per-file", type=click.IntRange(1), help="Number of records in each file, instead of the model's."
)
@click.option("--record-size", type=BYTES, help="Mean size of a record, instead of the model's.")
@click.option(
    "--compresses",
    type=float,
    default=1.0,
    show_default=True,
    help="Ratio by which gzip compresses the records; 1 is noise.",
)
@click.option(
    "--seed", type=int, default=0, show_default=True, help="Seed of the generator; equal seeds give equal bytes."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line on stdout.")
def emulated(
    model: str,
    out: str,
    files: int | None,
    records_per_file: int | None,
    record_size: int | None,
    compresses: float,
    seed: int,
    as_json: bool,
) -> None:
    """Generate in folder OUT the files that MODEL reads, for `penstock bench accelerator`.

    MODEL is unet3d, resnet50, retinanet or dlrm, or a workload file of DLIO (*.yaml). The files have the same names,
    sizes and formats as DLIO's files.
    """
    from dataclasses import asdict, replace

    from penstock.bench.importers.dlio import model_settings
    from penstock.extras import require

    require("penstock dataset emulated", "numpy")
    from penstock.datasets.emulated import generate
    from penstock.units import format_bytes
    from penstock.workloads.emulated import model_of

    refuse_store(out)
    preset = model_of(model_settings(model))
    if record_size is not None:
        preset = replace(preset, record_bytes=record_size, record_deviation_bytes=0)
    with progress_bar("files", total=files or preset.files) as advance:
        summary = generate(
            Path(out),
            format=preset.format,
            files=files or preset.files,
            records_per_file=records_per_file or preset.records_per_file,
            record_bytes=preset.record_bytes,
            record_deviation_bytes=preset.record_deviation_bytes,
            compresses=compresses,
            seed=seed,
            progress=advance,
        )
    if as_json:
        click.echo(json.dumps({"schema_version": 2, "output": out, **asdict(summary)}))
    else:
        click.echo(
            f"{out}: {summary.records:,} records in {summary.files:,} files, {format_bytes(summary.bytes_stored)}"
        )


command.add_command(images)

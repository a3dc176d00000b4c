# SPDX-License-Identifier: Apache-2.0
"""`penstock array create`: create model volumes for experiments."""

from __future__ import annotations

import json
import os

import click

__all__ = ["command"]


@click.command("create")
@click.argument("destination", metavar="DST")
@click.option(
    "--kind",
    type=click.Choice(["seismic", "layered", "constant"]),
    default="seismic",
    show_default=True,
    help="Content: seismic (similar to recorded data), layered (velocity layers), or constant (one velocity).",
)
@click.option(
    "--shape",
    default="64,96,256",
    show_default=True,
    metavar="I,X,Z",
    help="Number of inlines, crosslines and samples; the volume is created in memory.",
)
@click.option(
    "--interval",
    type=float,
    default=4.0,
    show_default=True,
    metavar="MS",
    help="Sample interval in ms, or in m for a depth axis.",
)
@click.option("--to", type=click.Choice(["zarr", "segy", "hdf5"]), help="Format of DST. [its suffix: .zarr, .sgy, .h5]")
@click.option("--codec", metavar="NAME[:LEVEL]", help="Compression, as in convert.")
@click.option("--format", "format_", type=int, metavar="CODE", help="Sample format of SEG-Y: 1 IBM, 5 IEEE. [5]")
@click.option("--seed", type=int, default=0, show_default=True, metavar="N", help="Seed of layers and noise.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line.")
def command(
    destination: str,
    kind: str,
    shape: str,
    interval: float,
    to: str | None,
    codec: str | None,
    format_: int | None,
    seed: int,
    as_json: bool,
) -> int:
    """Create a synthetic volume DST for experiments: SEG-Y, HDF5 or Zarr, on any store."""
    from penstock.arrays.convert.chunking import parse_shape
    from penstock.arrays.convert.run import format_of
    from penstock.arrays.create import create_volume
    from penstock.arrays.location import Location
    from penstock.arrays.model_volumes import model_volume
    from penstock.units import format_bytes

    location = Location(os.fspath(destination))
    chosen = format_of(location, to)
    sides = parse_shape(shape, 3, "shape")
    values, dims, coords, attrs = model_volume(kind, sides, interval_ms=interval, seed=seed)
    options = create_volume(location, values, dims, coords, to=chosen, attrs=attrs, codec=codec, format=format_)
    facts = {"url": location.url, "kind": kind, "shape": sides, "bytes": values.nbytes, "open_with": options}
    size = " × ".join(f"{side:,}" for side in sides)
    click.echo(
        json.dumps({"schema_version": 1, **facts})
        if as_json
        else f"{location.url}: {kind}, {size} float32, {format_bytes(values.nbytes)}"
    )
    return 0

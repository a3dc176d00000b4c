# SPDX-License-Identifier: Apache-2.0
"""`penstock array slice`: write a slice of a volume as a picture or a NumPy file."""

from __future__ import annotations

from typing import Any

import click

from penstock.cli.array.convert import segy_overrides

__all__ = ["command"]


@click.command("slice")
@click.argument("volume", metavar="VOLUME")
@click.option(
    "--at",
    "places",
    multiple=True,
    metavar="DIM=NUMBER",
    help="Coordinate of a fixed dimension: inline=120. Repeatable.",
)
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Picture (.png), array (.npy) or SEG-Y file (.sgy, .segy).",
)
@click.option("--array", metavar="NAME", help="Array of an HDF5 file or a Zarr group. [its main one]")
@segy_overrides
def command(
    volume: str,
    places: tuple[str, ...],
    output: str,
    array: str | None,
    map_: str | None,
    format_: int | None,
    **options: Any,
) -> int:
    """Write a slice of VOLUME as a picture, a NumPy file or a SEG-Y file.

    Without --at, the slice is at the middle of the first dimension. A SEG-Y slice has the trace headers of VOLUME; if
    VOLUME has none, headers are computed from its coordinates. An existing SEG-Y file is not replaced.
    """
    import io
    from pathlib import Path

    import numpy as np

    from penstock.arrays import open as open_array
    from penstock.arrays.convert.segy_slice import write_segy_slice
    from penstock.arrays.convert.source import open_source
    from penstock.arrays.location import Location
    from penstock.arrays.pictures import picture, place_of
    from penstock.atomic_file import atomic_file
    from penstock.errors import ConfigError

    kind = Path(output).suffix.lower()
    if kind not in (".png", ".npy", ".sgy", ".segy"):
        raise ConfigError(f"output: `{kind}` is not one of .png, .npy, .sgy, .segy", where="output")
    found = open_array(volume, array=array, map=map_, format=format_, **options)
    at = dict(_place(text) for text in places)
    if not at and found.ndim == 3:
        dim = found.dims[0]
        middle = found.shape[0] // 2
        at = {dim: float(found.coords[dim].values[middle]) if dim in found.coords else float(middle)}
    if kind in (".sgy", ".segy"):
        source = open_source(Location(volume), array=array, map=map_, format=format_, **options)
        count = write_segy_slice(Location(output), source, found, place_of(found, at))
        cost = f"{count:,} traces"
    else:
        if kind == ".png":
            content = picture(found, at)
        else:
            out = io.BytesIO()
            np.save(out, np.asarray(found[place_of(found, at)]))
            content = out.getvalue()
        with atomic_file(Path(output)) as file:
            file.write(content)
        cost = f"{found.stats().get('requests', 0):,} requests"
    place = ", ".join(f"{dim} {value:g}" for dim, value in at.items()) or "all"
    click.echo(f"{output}: {place} of {found!r}, {cost}")
    return 0


def _place(text: str) -> tuple[str, float]:
    from penstock.errors import ConfigError

    dim, _, number = text.partition("=")
    try:
        return dim.strip(), float(number)
    except ValueError:
        problem = f"at: `{text}` is not DIMENSION=NUMBER"
        raise ConfigError(problem, where="at", hint="write it as --at inline=120") from None

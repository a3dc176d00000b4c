# SPDX-License-Identifier: Apache-2.0
"""`penstock array info`: describe a volume."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.array.convert import progress_bar, save_template, segy_overrides, template_of, write_template

if TYPE_CHECKING:
    from penstock.arrays import Array

__all__ = ["command"]


@click.command("info")
@click.argument("volume", metavar="VOLUME")
@click.option(
    "--scan", is_flag=True, help="SEG-Y: rank the geometries that the trace headers allow, with the evidence."
)
@click.option("--headers", is_flag=True, help="SEG-Y: print the text header and the binary header.")
@click.option("--array", metavar="NAME", help="Array of an HDF5 file or a Zarr group. [its main one]")
@segy_overrides
@save_template
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line.")
def command(
    volume: str,
    scan: bool,
    headers: bool,
    array: str | None,
    map_: str | None,
    format_: int | None,
    save_template: str | None,
    as_json: bool,
    **options: Any,
) -> int:
    """Describe VOLUME: its dimensions, coordinates, chunks, and the headers of a SEG-Y file."""
    from penstock.arrays import open as open_array
    from penstock.arrays.location import Location
    from penstock.arrays.segy.geometry import candidates, describe
    from penstock.arrays.segy.reader import SegyFile
    from penstock.errors import ConfigError

    with progress_bar() as advance:
        found = open_array(
            volume,
            array=array,
            map=map_,
            format=format_,
            progress=lambda done, total: advance("scan", done, total),
            **options,
        )
    facts = _facts(found)
    for flag, is_given in (("scan", scan), ("headers", headers), ("save-template", save_template is not None)):
        if is_given and found.attrs["kind"] != "segy":
            raise ConfigError(f"{flag}: supported only for SEG-Y, but {volume} is {found.attrs['kind']}", where=flag)
    if save_template is not None:
        write_template(save_template, template_of(found.attrs["map"], {**options, "format": format_}))
    if scan or headers:
        kept = {name: options[name] for name in ("byte_order", "samples", "allow_trailing")}
        file = SegyFile(Location(volume), format=found.attrs["format"], **kept)
        if scan:
            facts["candidates"] = [describe(each) for each in candidates(file.scan())]
            facts["template"] = template_of(found.attrs["map"], {**options, "format": format_}).to_toml()
        if headers:
            facts["text_header"], facts["binary_header"] = file.text_header().splitlines(), file.binary_header()
    click.echo(json.dumps({"schema_version": 1, **facts}, default=str) if as_json else _readable(facts))
    return 0


def _facts(found: Array) -> dict[str, Any]:
    import numpy as np

    dims = []
    for dim, side in zip(found.dims, found.shape, strict=True):
        coordinate = found.coords.get(dim)
        row: dict[str, Any] = {"name": dim, "size": side}
        if coordinate is not None and len(coordinate.values):
            values = np.asarray(coordinate.values)
            row |= {"first": values[0].item(), "last": values[-1].item(), "units": coordinate.attrs.get("units")}
        dims.append(row)
    attrs = {key: value for key, value in found.attrs.items() if key != "penstock_segy"}
    return {
        "kind": attrs.pop("kind"), "name": found.name, "dtype": found.dtype.name, "bytes": found.nbytes,
        "dims": dims, "chunks": list(found.chunks), "coords": [name for name in found.coords if name not in found.dims],
        "attrs": attrs,
    }  # fmt: skip


def _readable(facts: dict[str, Any]) -> str:
    from penstock.units import format_bytes

    shape = " × ".join(f"{dim['size']:,}" for dim in facts["dims"])
    lines = [f"{facts['kind']}: {facts['name']}, {shape} {facts['dtype']}, {format_bytes(facts['bytes'])}"]
    for dim in facts["dims"]:
        span = f"{dim['first']:g} to {dim['last']:g}" if "first" in dim else ""
        unit = dim.get("units") or ""
        lines.append(f"  {dim['name']:<12} {dim['size']:>9,}  {span} {'' if unit == '1' else unit}".rstrip())
    lines.append(f"  chunks       {' × '.join(f'{side:,}' for side in facts['chunks'])}")
    if facts["coords"]:
        lines.append(f"  coordinates  {', '.join(facts['coords'])}")
    lines += [f"  {key:<12} {value}" for key, value in facts["attrs"].items() if value not in ("", None)]
    if "candidates" in facts:
        lines += ["", "geometries that the trace headers allow, the best first:"]
        for each in facts["candidates"]:
            shape = " × ".join(f"{side:,}" for side in each["shape"])
            evidence = f"{each['filled']:.1%} of {shape} filled, {each['duplicates']:,} duplicates"
            lines.append(f"  {each['score']:6.3f}  {each['map'] or 'the order of the file'}: {evidence}")
        lines += ["", "as a template:", *[f"  {line}" for line in facts["template"].splitlines()]]
    if "text_header" in facts:
        lines += ["", *facts["text_header"], ""]
        lines += [f"  {key:<22} {value:,}" for key, value in facts["binary_header"].items()]
    return "\n".join(lines)

# SPDX-License-Identifier: Apache-2.0
"""`penstock array convert`: convert between SEG-Y, Zarr and HDF5 without loss."""

from __future__ import annotations

import json
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from penstock.cli.parameters import SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from penstock.arrays.convert.run import ConversionReport
    from penstock.arrays.templates import Template

__all__ = ["command", "loss_of", "progress_bar", "save_template", "segy_overrides", "template_of", "write_template"]


def segy_overrides(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add flags for properties that the headers of a SEG-Y file omit or state incorrectly. `--template` sets all these
    properties together.
    """

    @wraps(command)
    def with_template(*args: Any, template: str | None, **options: Any) -> Any:
        if template is not None:
            from penstock.arrays.templates import load_template
            from penstock.env import read

            source = click.get_current_context().get_parameter_source
            for name, value in load_template(read(), template).options().items():
                parameter = {"map": "map_", "format": "format_"}.get(name, name)
                if source(parameter) is not ParameterSource.COMMANDLINE:
                    options[parameter] = value
        return command(*args, **options)

    wrapped: Callable[..., Any] = with_template
    for option in reversed(
        [
            click.option(
                "--map",
                "map_",
                metavar="DIM=BYTE:TYPE,..",
                help="Header fields that number the dimensions, such as inline=189:i4,crossline=193:i4. [the best of info --scan]",
            ),
            click.option(
                "--vertical",
                type=click.Choice(["time", "depth"]),
                default="time",
                show_default=True,
                help="Vertical axis of the samples.",
            ),
            click.option(
                "--format", "format_", type=int, metavar="CODE", help="Sample format: 1 IBM, 5 IEEE, ... [header]"
            ),
            click.option("--byte-order", type=click.Choice(["big", "little"]), help="Byte order. [header]"),
            click.option("--samples", type=int, metavar="N", help="Number of samples per trace. [header]"),
            click.option(
                "--allow-trailing",
                is_flag=True,
                help="Accept and keep bytes after the last complete trace, instead of reporting an error.",
            ),
            click.option(
                "--template",
                metavar="NAME|FILE",
                help="Read these flags from a saved template; flags on the command line take precedence.",
            ),
        ]
    ):
        wrapped = option(wrapped)
    return wrapped


def save_template(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--save-template`."""
    return click.option(
        "--save-template",
        metavar="NAME|FILE",
        help="SEG-Y: save the geometry and the flags above as a template, for --template.",
    )(command)


def template_of(map_: str | None, options: Mapping[str, Any]) -> Template:
    """Return the template with this geometry and these file properties."""
    from penstock.arrays.templates import Template

    kept = {key: options.get(key) for key in ("vertical", "format", "byte_order", "samples", "allow_trailing")}
    return Template(map=map_ or None, **kept)  # type: ignore[arg-type]


def write_template(name: str, template: Template) -> None:
    """Save a template, and print its location."""
    from penstock.arrays.templates import save_template
    from penstock.env import read

    click.echo(f"template: {save_template(read(), name, template)}", err=True)


@click.command("convert")
@click.argument("source", metavar="SRC")
@click.argument("destination", metavar="DST")
@click.option(
    "--to", type=click.Choice(["zarr", "segy", "hdf5"]), help="Format of DST. [its suffix: .zarr, .mdio, .sgy, .h5]"
)
@click.option(
    "--layout",
    type=click.Choice(["plain", "mdio"]),
    help="Layout of a Zarr group: plain, or mdio, which MDIO v1 can open. [plain; mdio for the suffix .mdio]",
)
@click.option("--array", metavar="NAME", help="Array of an HDF5 file or a Zarr group. [its main one]")
@click.option(
    "--access",
    default="balanced",
    show_default=True,
    metavar="DIM,..",
    help="Access pattern that determines the chunk shape: the dimensions across which slices are read (inline,time), balanced, shots or train.",
)
@click.option("--chunks", metavar="N,N,..", help="Shape of a chunk. [determined by --access]")
@click.option(
    "--shards", metavar="N,N,..|none", help="Shape of a shard; none stores each chunk as an object. [about 64 MiB]"
)
@click.option(
    "--codec",
    metavar="NAME[:LEVEL]",
    help="Compression: lz4, zstd, blosc-zstd, gzip or none; for HDF5 gzip or none. Lossy, for Zarr only: zfp:tolerance=X "
    "(largest error), zfp:precision=BITS or zfp:rate=BITS. [Zarr: lz4, HDF5: none]",
)
@segy_overrides
@save_template
@click.option(
    "--osdu",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Write an OSDU manifest of DST to FILE, as JSON: a SeismicTraceData record and its dataset record.",
)
@click.option(
    "--osdu-set",
    multiple=True,
    metavar="NAME=VALUE,..",
    help="Value that --osdu requires: partition, owners, viewers, legal-tags and countries; repeatable.",
)
@click.option(
    "--threads",
    type=click.IntRange(1, 1024),
    metavar="N",
    help="Maximum number of objects that are processed concurrently. [number of cores]",
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="Print the chunk shape with the reason, and the cost of reading slices; write nothing.",
)
@click.option("--timeout", type=SECONDS, default=600.0, metavar="TIME", help="Time limit of one request. [10min]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line.")
def command(
    source: str,
    destination: str,
    map_: str | None,
    format_: int | None,
    save_template: str | None,
    osdu: str | None,
    osdu_set: tuple[str, ...],
    as_json: bool,
    timeout: float,
    access: str,
    **options: Any,
) -> int:
    """Convert the volume SRC to DST without loss, unless --codec zfp is given.

    SRC and DST may be SEG-Y, Zarr or HDF5, each in a folder or a store. A conversion from SEG-Y stores all headers, so
    that the reverse conversion produces the same bytes; `penstock array verify` certifies this. The written Zarr can be
    opened with xarray and zarr-python.

    A killed conversion to Zarr or SEG-Y continues when the same command is repeated. If a launcher starts it on many
    nodes, the ranks divide the objects of the Zarr array among themselves. A second concurrent conversion to the same
    destination is rejected.
    """
    from pathlib import Path

    from penstock.arrays.convert.run import convert
    from penstock.arrays.osdu import osdu_manifest, parse_settings
    from penstock.atomic_file import atomic_file
    from penstock.env import read
    from penstock.errors import ConfigError
    from penstock.ranks import detect

    if osdu is None and osdu_set:
        raise ConfigError("osdu-set: requires --osdu", where="osdu-set")
    settings = None if osdu is None else parse_settings(osdu_set)
    with progress_bar() as advance:
        report = convert(
            source,
            destination,
            map=map_,
            format=format_,
            access=[part.strip() for part in access.split(",")],
            rank=detect(read()),
            timeout_s=timeout,
            progress=advance,
            **options,
        )
    if osdu is not None and settings is not None and report.is_complete:
        # A SEG-Y file that a conversion wrote has the geometry of the conversion's source.
        again: dict[str, Any] = {}
        if report.format == "segy":
            kept = {name: options[name] for name in ("vertical", "byte_order", "samples", "allow_trailing")}
            again = {"map": report.map or None, "format": format_, **kept}
        manifest = osdu_manifest(report.destination, settings, timeout_s=timeout, **again)
        with atomic_file(Path(osdu)) as out:
            out.write(json.dumps(manifest, indent=2).encode() + b"\n")
    if save_template is not None:
        if report.map is None:
            raise ConfigError(
                f"save-template: requires a SEG-Y source, but {source} is not SEG-Y", where="save-template"
            )
        write_template(save_template, template_of(report.map, {**options, "format": format_}))
    click.echo(
        json.dumps({"schema_version": 1, **report.to_json()}) if as_json else _readable(report, options["dry_run"])
    )
    return 0


@contextmanager
def progress_bar() -> Iterator[Callable[[str, int, int], None]]:
    """Show a progress bar for each phase on a terminal. Yields a function of (phase, done, total)."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    tasks: dict[str, Any] = {}
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:

        def advance(phase: str, done: int, total: int) -> None:
            if phase not in tasks:
                tasks[phase] = bar.add_task(phase, total=total)
            bar.update(tasks[phase], completed=done, total=total)

        yield advance


def loss_of(lossy: Mapping[str, Any]) -> str:
    """Describe the loss: codec, setting, and error in the unit of the samples."""
    settings = {"tolerance": "tolerance {}", "precision": "{} bits of precision", "rate": "{} bits a sample"}
    setting = ", ".join(text.format(lossy[name]) for name, text in settings.items() if name in lossy)
    return (
        f"{lossy['codec']}, {setting}: largest error {lossy['max_error']:.4g}, RMS error {lossy['rms_error']:.4g} "
        f"of {lossy['samples']:,} samples"
    )


def _readable(report: ConversionReport, dry_run: bool) -> str:
    from penstock.units import format_bytes, format_rate, format_seconds

    shape = " × ".join(f"{side:,}" for side in report.shape)
    lines = [f"{report.source}: {shape} ({', '.join(report.dims)}) {report.dtype}, {format_bytes(report.sample_bytes)}"]
    lines += [f"  {text}" for text in report.explanation]
    if dry_run:
        return "\n".join([*lines, f"{report.destination}: nothing was written (--dry-run)"])
    if report.lossy is not None:
        lines.append(f"  lossy: {loss_of(report.lossy)}")
    if report.resumed == report.blocks:
        return "\n".join([*lines, f"{report.destination}: was complete already"])
    rate = format_rate(report.sample_bytes / report.seconds) if report.seconds else "at once"
    parts = [f"{report.blocks:,} blocks in {format_seconds(report.seconds)}, {rate}"]
    if report.resumed:
        parts.append(f"{report.resumed:,} were already written")
    if report.stored_bytes:
        parts.append(f"{format_bytes(report.stored_bytes)} stored")
    if report.ibm_words:
        parts.append(f"{report.ibm_words:,} IBM words kept apart")
    return "\n".join([*lines, f"{report.destination}: " + ", ".join(parts)])

# SPDX-License-Identifier: Apache-2.0
"""`penstock array verify`: certify a conversion from SEG-Y."""

from __future__ import annotations

import click

from penstock.cli.array.convert import loss_of, progress_bar
from penstock.cli.parameters import SECONDS

__all__ = ["command"]


@click.command("verify")
@click.argument("source", metavar="SEGY")
@click.argument("target", metavar="VOLUME")
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False), metavar="FILE", help="Write the certificate to FILE, as JSON."
)
@click.option("--timeout", type=SECONDS, default=600.0, metavar="TIME", help="Time limit of one request. [10min]")
@click.option("--json", "as_json", is_flag=True, help="Print the certificate as one JSON line.")
def command(source: str, target: str, output: str | None, timeout: float, as_json: bool) -> int:
    """Certify that VOLUME, which was converted from SEGY, can be converted back to the same file.

    Reads every byte of both, recreates the SEG-Y file in memory, and compares the bytes. The certificate contains
    SHA-256 digests of the source, of the volume's objects, and of the recreated file.

    For a lossy volume (zfp), the command prints the error of the samples, and certifies nothing.

    Exit code 0: the bytes are identical. 1: they differ, or the volume is lossy.
    """
    from pathlib import Path

    from penstock.arrays.convert.verify import verify
    from penstock.atomic_file import atomic_file
    from penstock.units import format_bytes

    with progress_bar() as advance:
        found = verify(source, target, timeout_s=timeout, progress=lambda done, total: advance("verify", done, total))
    if output is not None:
        with atomic_file(Path(output)) as out:
            out.write(found.to_json().encode() + b"\n")
    if as_json:
        click.echo(found.to_json())
    else:
        verdict = "identical" if found.is_identical else f"different from byte {found.first_difference or 0:,} on"
        if found.lossy is not None:
            headers = "identical" if found.lossy["headers_are_identical"] else "different"
            verdict = f"not certified, the volume is lossy ({loss_of(found.lossy)}); trace headers {headers}"
        click.echo(
            f"{found.source}  {format_bytes(found.source_bytes)}  sha256 {found.source_sha256}\n"
            f"{found.target}  {format_bytes(found.target_bytes)} in {found.target_objects:,} objects  sha256 {found.target_sha256}\n"
            f"round trip  sha256 {found.round_trip_sha256}: {verdict}"
        )
    return 0 if found.is_identical else 1

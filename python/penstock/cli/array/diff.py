# SPDX-License-Identifier: Apache-2.0
"""`penstock array diff`: compare two volumes."""

from __future__ import annotations

import click

from penstock.cli.array.convert import progress_bar

__all__ = ["command"]


@click.command("diff")
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@click.option(
    "--tolerance",
    type=float,
    default=0.0,
    show_default=True,
    metavar="X",
    help="Largest difference that counts as equal.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line.")
def command(a: str, b: str, tolerance: float, as_json: bool) -> int:
    """Compare the samples, dimensions and coordinates of the volumes A and B, whatever their formats.

    Exit code 0: A and B are equal. 1: they differ.
    """
    from penstock.arrays import open as open_array
    from penstock.arrays.compare import compare

    with progress_bar() as advance:
        found = compare(
            open_array(a),
            open_array(b),
            tolerance=tolerance,
            progress=lambda done, total: advance("compare", done, total),
        )
    if as_json:
        click.echo(found.to_json())
        return 0 if found.is_same else 1
    lines = list(found.problems)
    if found.first is not None:
        lines.append(
            f"{found.samples:,} samples differ, by {found.largest:g} at most; the first is {list(found.first)}"
        )
    click.echo("\n".join(lines) if lines else "equal")
    return 0 if found.is_same else 1

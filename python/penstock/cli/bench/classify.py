# SPDX-License-Identifier: Apache-2.0
"""`penstock bench classify`: find the limit of each point of a sweep, measured by any supported tool."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.bench.verdict import Judged

__all__ = ["command"]


@click.command("classify")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
def command(file: Path, as_json: bool) -> None:
    """Report the limit of each point of a sweep, and what to change.

    FILE is an elbencho CSV, fio's JSON, IOR's output (text, JSON or CSV), mdtest's output, a folder of these, or a
    folder that `penstock bench` wrote. Nothing is measured.
    """
    import msgspec

    from penstock.bench.importers.read_any import read_any
    from penstock.bench.verdict import classify
    from penstock.cli.bench.table import columns_of
    from penstock.errors import NotFound

    verdict = classify(read_any(file).rows)
    if not verdict.cells:
        raise NotFound(
            f"{file} contains no point that can be classified ({verdict.left_out} rows left out)",
            where=str(file),
            hint="give results with phases such as READ or WRITE that moved data and are not marked INVALID",
        )
    if as_json:
        click.echo(msgspec.json.encode(verdict))
        return
    for line in _lines(verdict.cells, columns_of(sys.stdout)):
        click.echo(line)
    if verdict.left_out:
        click.echo(
            f"{verdict.left_out} rows left out: they are INVALID, or their phases cannot be classified", err=True
        )


def _lines(cells: Sequence[Judged], room: int | None) -> Iterator[str]:
    """Format one line per cell. If a line is wider than the terminal, the advice moves below it, and empty columns are
    omitted.
    """
    from penstock.units import format_bytes, format_rate

    def size(cell: Judged) -> str:
        return "–" if cell.file_size_bytes is None else format_bytes(cell.file_size_bytes, binary=True)

    rows = [("operation", "hosts", "threads", "file", "block", "rate", "limited by", "next")]
    for cell in cells:
        block = "–" if cell.block_size_bytes is None else format_bytes(cell.block_size_bytes, binary=True)
        rate = format_rate(cell.bytes_per_s) if cell.bytes_per_s else f"{cell.entries_per_s:,.0f}/s"
        advice = f"{cell.advice.text} (x{cell.advice.gain:.1f} predicted)" if cell.advice else ""
        limit = cell.regime + (", retrograde" if cell.retrograde else "")
        rows.append((cell.operation, str(cell.hosts), str(cell.threads), size(cell), block, rate, limit, advice))
    longest = sum(max(len(row[i]) for row in rows) + 2 for i in range(len(rows[0]))) - 2
    is_narrow = room is not None and longest > room
    kept = [i for i in range(len(rows[0]) - 1) if not (is_narrow and rows[0][i] in ("hosts", "block"))]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    right = {1, 2, 3, 4, 5}
    for row in rows:
        head = [row[i].rjust(widths[i]) if i in right else row[i].ljust(widths[i]) for i in kept]
        if is_narrow:
            yield "  ".join(head).rstrip()
            if row[-1] and row is not rows[0]:
                yield f"    {row[-1]}"
        else:
            yield "  ".join([*head, row[-1]]).rstrip()

# SPDX-License-Identifier: Apache-2.0
"""`penstock bench classify`: what limits each point of a sweep, whoever measured it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.bench.verdict import Judged

__all__ = ["command"]


@click.command("classify")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def command(file: Path, as_json: bool) -> None:
    """Say which limit each point of a sweep is at, and what to change.

    FILE is an elbencho CSV, fio's JSON, what IOR or mdtest printed, a folder of these, or one that `penstock bench`
    wrote. Nothing is measured.
    """
    import msgspec

    from penstock.bench.old_results import read_any
    from penstock.bench.verdict import classify
    from penstock.errors import NotFound

    verdict = classify(read_any(file).rows)
    if not verdict.cells:
        raise NotFound(
            f"{file} holds no point that can be judged ({verdict.left_out} rows left out)",
            where=str(file),
            hint="points are phases such as READ or WRITE that moved something and are not marked INVALID",
        )
    if as_json:
        click.echo(msgspec.json.encode(verdict))
        return
    for line in _lines(verdict.cells):
        click.echo(line)
    if verdict.left_out:
        click.echo(f"{verdict.left_out} rows were INVALID, or of phases that are none to judge", err=True)


def _lines(cells: Sequence[Judged]) -> Iterator[str]:
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
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    right = {1, 2, 3, 4, 5}
    for row in rows:
        head = [
            text.rjust(width) if i in right else text.ljust(width)
            for i, (text, width) in enumerate(zip(row, widths, strict=False))
        ]
        yield "  ".join([*head, row[-1]]).rstrip()

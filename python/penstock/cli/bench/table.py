# SPDX-License-Identifier: Apache-2.0
"""Prints the rows of a benchmark as table lines as soon as they are measured, and then the limit of each point."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING, TextIO

import click

from penstock.units import format_bytes, format_rate, format_seconds

if TYPE_CHECKING:
    from penstock.bench.rows import End, Latency, Row
    from penstock.bench.verdict import Verdict

__all__ = ["Table", "columns_of"]

_HEAD = (
    "phase",
    "threads",
    "depth",
    "file",
    "block",
    "first",
    "last",
    "rate",
    "/s",
    "mean",
    "p50",
    "p99",
    "max",
    "caches",
)
_WIDTHS = (8, 7, 5, 9, 9, 9, 9, 10, 9, 9, 9, 9, 9, 8)
# Columns for a narrow terminal (80 characters without wrapping).
_NARROW = ("phase", "threads", "file", "last", "rate", "/s", "p50", "p99")


def columns_of(stream: TextIO) -> int | None:
    """Return the width of a stream's terminal; None for a file or a pipe."""
    return shutil.get_terminal_size().columns if stream.isatty() else None


class Table:
    """Table on stdout. With `silent`, no rows are printed: stdout contains only the caller's JSON, and stderr only the
    progress.
    """

    def __init__(self, *, silent: bool) -> None:
        self._silent = silent
        self._is_begun = False
        self._has_bar = False
        self._notes: list[str] = []
        room = columns_of(sys.stdout)
        self._shown = _NARROW if room is not None and room < sum(_WIDTHS) + len(_WIDTHS) - 1 else _HEAD

    def echo(self, text: str) -> None:
        click.echo(text, err=True)

    def on_progress(self, phase: str, workers: int, done: tuple[int, int, int]) -> None:
        """Print the progress on a terminal, in one line that is overwritten."""
        if not sys.stderr.isatty():
            return
        entries, ios, moved = done
        line = f"{phase} by {workers}: {entries:,} files, {ios:,} requests, {format_bytes(moved)}"
        click.echo(f"\r\x1b[K{line}", nl=False, err=True)
        self._has_bar = True

    def _clear(self) -> None:
        if self._has_bar:
            click.echo("\r\x1b[K", nl=False, err=True)
            self._has_bar = False

    def row(self, row: Row) -> None:
        self._clear()
        if self._silent:
            return
        if not self._is_begun:
            self._line(_HEAD)
            self._is_begun = True
        latency = (
            row.entry_latency if row.entry_latency and (not row.io_latency or row.last.entries) else row.io_latency
        )
        size = "–" if row.file_size_bytes is None else format_bytes(row.file_size_bytes, binary=True)
        block = "–" if row.block_size_bytes is None else format_bytes(row.block_size_bytes, binary=True)
        self._line(
            (
                row.operation.lower(),
                str(row.threads),
                str(row.io_depth),
                size,
                block,
                "–" if row.first is None else format_seconds(row.first.time_s),
                format_seconds(row.last.time_s),
                "–" if row.last.bytes_per_s is None else format_rate(row.last.bytes_per_s),
                _per_s(row.last),
                *_figures(latency),
                row.cache.state,
            )
        )
        for why in row.invalid:
            self._note(f"INVALID: {why}")
        if row.cache.state != "cold":
            self._note(f"caches {row.cache.state}: {row.cache.how}")
        if phases := row.raw.get("not_run"):
            self._note(
                f"the limit ended the write phase before all data was written: {phases.replace(',', ', ')} not run"
            )
        if row.raw.get("durable", "fsync") != "fsync":
            self._note(f"written, {row.raw['durable']}")

    def hosts(self, count: int, clock_skew_s: float, rows: list[Row]) -> None:
        """Print the start skew and clock skew of several hosts."""
        starts = max((float(row.raw.get("start_skew_s", 0)) for row in rows), default=0.0)
        self.echo(
            f"{count} hosts: phases began within {format_seconds(starts)} of each other at worst; clocks differ by up to"
            f" {format_seconds(clock_skew_s)}; start times are corrected for this"
        )

    def _note(self, text: str) -> None:
        if text not in self._notes:
            self._notes.append(text)

    def _line(self, fields: tuple[str, ...]) -> None:
        first, *rest = (
            text.ljust(width) if i == 0 else text.rjust(width)
            for i, (name, text, width) in enumerate(zip(_HEAD, fields, _WIDTHS, strict=True))
            if name in self._shown
        )
        click.echo(" ".join([first, *rest]).rstrip())

    def verdict(self, verdict: Verdict) -> None:
        """Print the limit of each point, and the advice."""
        for note in self._notes:
            click.echo(note, err=True)
        if not verdict.cells:
            return
        click.echo("")
        for cell in verdict.cells:
            size = "" if cell.file_size_bytes is None else f" of {format_bytes(cell.file_size_bytes, binary=True)}"
            shape = f"{cell.operation.lower()} by {cell.threads}{size}"
            limit = f"{cell.regime}-limited" + (", retrograde" if cell.retrograde else "")
            advice = f": {cell.advice.text} (x{cell.advice.gain:.1f} predicted)" if cell.advice else ""
            click.echo(f"{shape}: {limit}{advice}")


def _per_s(end: End) -> str:
    rate = end.entries_per_s if end.ios_per_s is None else end.ios_per_s
    return "–" if rate is None else f"{rate:,.0f}"


def _figures(latency: Latency | None) -> tuple[str, str, str, str]:
    if latency is None:
        return ("–", "–", "–", "–")
    found = (latency.mean_us, latency.percentiles_us.get("50"), latency.percentiles_us.get("99"), latency.max_us)
    mean, median, late, worst = ("–" if value is None else format_seconds(value / 1e6) for value in found)
    return mean, median, late, worst

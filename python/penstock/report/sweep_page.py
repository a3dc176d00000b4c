# SPDX-License-Identifier: Apache-2.0
"""Writes the sweep page: the bottleneck of each point, advice, and how reliable the measurements are."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

from penstock.price.book import dates_text
from penstock.report.document import document, escape, figure, refuse_without_charts, table
from penstock.report.runs_section import money_text, runs_charts, runs_section
from penstock.report.sweep import rate_label
from penstock.report.sweep_charts import sweep_charts
from penstock.report.train_section import train_charts, train_section
from penstock.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.bench.results import RunRecord
    from penstock.bench.rows import Row
    from penstock.bench.verdict import Judged
    from penstock.report.sweep import CellGroup, SweepReport

__all__ = ["sweep_page"]

_REGIMES = {
    "concurrency": "too few requests in flight: more threads raise the rate",
    "metadata": "the server for opening files is saturated: larger files move more bytes, more threads do not help",
    "bandwidth": "the byte rate is saturated: neither threads nor sizes raise it",
    "client": "the measuring hosts are saturated (processors or network): more hosts would raise the rate",
    "iops": "the disk's operations per second are saturated: larger blocks move more bytes",
    "throttle": "the store throttles, and refused requests cost time: send fewer at once, or raise the limit",
}
_CAPTIONS = {
    "latencies": "Percentiles of latency; a line that rises at the right shows a tail.",
    "series": "Rate over time. A triangle marks a refusal by the store.",
    "losses": "How the workers spent their time.",
    "limit-bytes_per_s": "Bytes per second against the limit stated for the disk or tier.",
    "limit-ios_per_s": "I/O operations per second against the stated limit.",
    "limit-entries_per_s": "Operations per second against the stated limit.",
}
_MAX_ROWS = 400
_MAX_SURFACES = 12
_GAINS = "gains are predictions of the fitted model for the next measurement; outside the measured range they are extrapolated"


def _size(value: int | None) -> str:
    return "–" if value is None else format_bytes(value, binary=True)


def _sizes(cell: Judged) -> str:
    """Format the file size, and the block size if it differs."""
    if cell.block_size_bytes in (None, cell.file_size_bytes):
        return _size(cell.file_size_bytes)
    return f"{_size(cell.file_size_bytes)}, {_size(cell.block_size_bytes)}"


def _share(value: object) -> str:
    return f"{value:.2f}" if isinstance(value, float) else "–"


def _cells(cells: Sequence[Judged]) -> str:
    head = [
        ("", "operation"),
        ("n", "hosts × threads"),
        ("n", "file, block"),
        ("n", "rate"),
        ("", "limited by"),
        ("w", "next measurement"),
        ("n", "own : op : bytes"),
        ("n", "by threads : size"),
    ]
    rows: Iterable[list[tuple[str, str]]] = (
        [
            ("head", escape(c.operation)),
            ("n", f"{c.hosts} × {c.threads}"),
            ("n", _sizes(c)),
            ("n", escape(rate_label(c))),
            ("", escape(c.regime + (", retrograde" if c.retrograde else ""))),
            ("w", escape(f"{c.advice.text} (×{c.advice.gain:.1f})") if c.advice else "–"),
            ("n", " : ".join(_share(c.evidence["terms"].get(part, 0.0)) for part in ("own", "op", "bytes"))),
            ("n", " : ".join(_share(c.evidence[f"elasticity_{axis}"]) for axis in ("threads", "size"))),
        ]
        for c in cells[:_MAX_ROWS]
    )
    more = (
        f'<p class="note">{len(cells) - _MAX_ROWS} more points are in the JSON.</p>' if len(cells) > _MAX_ROWS else ""
    )
    return table(head, rows) + more


def _surface(index: int, group: CellGroup) -> str:
    counts = ", ".join(f"{count} {regime}" for regime, count in group.regimes.items())
    slower = f"; {group.retrograde} slower than with fewer threads (▼)" if group.retrograde else ""
    return f"<h3>{escape(group.title)}</h3>" + figure(
        f"surface-{index}",
        f"Best {escape(rate_label(group.best))}. {escape(counts)}{escape(slower)}. A stronger colour is nearer to "
        "the best rate.",
    )


def sweep_page(report: SweepReport, rows: Sequence[Row], training: Sequence[RunRecord] = ()) -> str:
    """Return the complete HTML document. `training` are the training runs whose steps it shows.

    Raises:
        Unsupported: altair or vl-convert is not installed.
    """
    refuse_without_charts()
    shown = report.groups[:_MAX_SURFACES]
    lines, today = report.runs, dt.datetime.now(tz=dt.UTC).date()
    compared = runs_charts(lines)
    specs = {**compared, **sweep_charts(shown, rows), **train_charts(training)}
    sources = ", ".join(f"{count} rows of {source}" for source, count in report.sources.items())
    met = [r for r in _REGIMES if any(r in group.regimes for group in report.groups)]
    invalid = "; ".join(f"{count} rows: {reason}" for reason, count in report.invalid.items())
    facts = {
        "sources": sources,
        "caches": "; ".join(f"{count} rows {state}" for state, count in report.caches.items()),
        "specification": ", ".join(report.spec_hashes) or "none recorded",
        "prices as of": dates_text(report.prices_as_of, today) if report.prices_as_of else "no cost recorded",
        **{
            name: str(value)
            for name, value in report.machine.items()
            if not isinstance(value, dict) and value is not None
        },
        **{
            name: str(value)
            for name, value in (report.machine.get("machine") or {}).items()
            if isinstance(value, str | int | float)
        },
    }
    parts = [
        f'<p class="kicker"><b>Penstock</b><span>measured phases</span><span>{escape(sources)}</span></p>',
        f"<h1>{escape(report.headline)}</h1>",
        f'<p class="invalid">INVALID, and left out: {escape(invalid)}.</p>' if invalid else "",
        f'<p class="lead">{escape(report.lead)}</p>',
        runs_section(lines, money_text(rows, today), compared),
        train_section(training),
        "<h2>What limits each point</h2>" if report.groups else "",
        "".join(f'<p class="note"><b>{regime}</b>: {escape(_REGIMES[regime])}.</p>' for regime in met),
        "".join(_surface(i, group) for i, group in enumerate(shown)),
        f'<p class="note">{len(report.groups) - len(shown):,} more groups are in the tables only.</p>'
        if len(report.groups) > len(shown)
        else "",
        *(
            f"<h2>{escape(heading)}</h2>" + "".join(figure(name, escape(_CAPTIONS[name])) for name in names)
            for heading, names in (
                ("Latency", ["latencies"] if "latencies" in specs else []),
                ("Over time", ["series"] if "series" in specs else []),
                ("Against the stated limits", [name for name in specs if name.startswith("limit-")]),
                ("Where time went", ["losses"] if "losses" in specs else []),
            )
            if names
        ),
        (
            "<h2>Every point</h2>"
            '<p class="note">Shares of the fitted time of one operation: the worker’s own waiting, time per '
            "operation, time per byte. "
            "Elasticities are measured between neighbours: at 1 the rate doubles with the input, at 0 it does not "
            "change.</p>" + _cells(report.verdict.cells)
        )
        if report.verdict.cells
        else "",
        f'<h2>Read this before you quote it</h2><ul class="notes">{"".join(f"<li>{escape(n)}</li>" for n in (*report.warnings, _GAINS))}</ul>',
        f'<h2>Where it comes from</h2><dl class="machine">{"".join(f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in facts.items())}</dl>',
        (
            "<footer>Made by <code>penstock report</code> from the rows alone; the verdict was computed again. This file "
            "is self-contained and loads nothing.</footer>"
        ),
    ]
    return document(f"Penstock: {report.headline}", parts, specs)

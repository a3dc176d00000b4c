# SPDX-License-Identifier: Apache-2.0
"""Page of `penstock explain`: the answer, its cost, where the time goes, what to change first, and the evidence.

One file without scripts. The bar of time shares is SVG; the table below it contains the same numbers.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from penstock.explain.result import CLASS_TEXTS
from penstock.report.document import document, escape, table, write_whole
from penstock.report.number_format import share, usd
from penstock.units import format_bytes, format_rate, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from penstock.explain.result import Cost, Evidence, Explanation, TimeShare

__all__ = ["explain_page", "write_explain_page"]

KIND_TEXTS = {
    "storage-bandwidth": "storage: bandwidth",
    "storage-latency": "storage: latency",
    "storage-metadata": "storage: metadata",
    "storage-throttled": "storage: throttling",
    "small-reads": "small reads",
    "decompression": "decompression",
    "decoding": "decoding",
    "python-workers": "pickling and queues between processes",
    "no-workers": "no workers: loading and the step take turns",
    "host-to-device": "copies to the device",
    "model": "the model",
    "other-ranks": "other ranks",
    "disk": "a local disk",
    "healthy": "nothing: the input keeps up",
    "unknown": "not named",
}
# The model has the neutral colour, so that all other colours mark waiting. Idle and other time have the colour of
# lines.
_COLOURS = ("path1", "path0", "path2", "path3", "path4", "wait")
_FIXED = {"model": "compute", "idle": "line", "other": "muted"}
_BAR_WIDTH = 1000
_MAX_ROWS = 60

Cell = tuple[str, str]


def _number(value: float, unit: str) -> str:
    """Format a value with the unit of the schema."""
    match unit:
        case "share":
            return share(value)
        case "s":
            return format_seconds(value)
        case "bytes":
            return format_bytes(value)
        case "bytes/s":
            return format_rate(value)
        case "count":
            return f"{value:,.0f}"
    return f"{value:,.3g} {unit}" if value < 1000 else f"{value:,.0f} {unit}"


def _lost(cost: Cost) -> str:
    """The cost as a paragraph. Without a price, the paragraph explains how to set a price."""
    hours = cost.hours_lost_per_day
    if 3600 * hours < 1:
        return '<p class="lead">No time is lost to waiting for input.</p>'
    text = f"<b>{escape(format_seconds(3600 * hours))}</b> of each day would be spent waiting at this rate"
    if cost.usd_lost_per_day is not None:
        price = "" if cost.price_usd_per_hour is None else f" at {usd(cost.price_usd_per_hour)} an hour"
        source = f" ({cost.price_source})" if cost.price_source else ""
        text += f", which costs <b>{escape(usd(cost.usd_lost_per_day))} a day</b>{escape(price + source)}."
    else:
        text += ". Money is not shown, because no price was given; add <code>--price USD_PER_HOUR</code>."
    return f'<p class="lead">{text}</p>'


def _colours(shares: Sequence[TimeShare]) -> dict[str, str]:
    """CSS variable of each class, in the order of the bar."""
    rest = [one.name for one in shares if one.name not in _FIXED]
    return _FIXED | {name: _COLOURS[at % len(_COLOURS)] for at, name in enumerate(rest)}


def _class_text(name: str) -> str:
    return CLASS_TEXTS.get(name, name.replace("_", " "))


def _bar(shares: Sequence[TimeShare], colours: dict[str, str]) -> str:
    """The critical shares as one bar. Segments are separated by gaps, so that no border depends on colour alone."""
    drawn = [one for one in shares if one.critical > 0]
    words = "; ".join(f"{_class_text(one.name)} {share(one.critical)}" for one in drawn)
    total = sum(one.critical for one in drawn)
    segments, at = "", 0.0
    for one in drawn:
        width = _BAR_WIDTH * one.critical / total
        segments += (
            f'<rect x="{at:.1f}" y="0" width="{max(1.0, width - 3):.1f}" height="40"'
            f' style="fill:var(--{colours[one.name]})">'
            f"<title>{escape(_class_text(one.name))}: {share(one.critical)}</title></rect>"
        )
        at += width
    return (
        f'<svg role="img" aria-label="Time of the training loop: {escape(words)}" viewBox="0 0 {_BAR_WIDTH} 40"'
        f' width="100%" height="40" preserveAspectRatio="none">{segments}</svg>'
    )


def _time(shares: Sequence[TimeShare]) -> str:
    if not any(one.critical > 0 for one in shares):
        return "<p>No stacks were sampled, so the time is not divided.</p>"
    order = sorted(shares, key=lambda one: one.critical, reverse=True)
    shown = [one for one in order if max(one.critical, one.consumer, one.loaders) > 0]
    colours = _colours(shown)
    rows: list[list[Cell]] = [
        [
            ("head", f'<i style="--c:var(--{colours[one.name]})"></i>{escape(_class_text(one.name))}'),
            ("n", share(one.critical)),
            ("n", share(one.consumer)),
            ("n", share(one.loaders)),
        ]
        for one in shown
    ]
    head = [("", "class of time"), ("n", "training loop, waits divided"), ("n", "training loop"), ("n", "loaders")]
    caption = (
        "Bar and first column: time of the threads that run the training loop, with their waits for loaders divided by"
        " what the loaders did meanwhile. The other columns are the time as it was sampled."
    )
    return f"<figure>{_bar(order, colours)}<figcaption>{caption}</figcaption></figure>" + table(head, rows)


def _remedies(result: Explanation) -> str:
    if not result.remedies:
        return "<p>Nothing to change in the input.</p>"
    rows: list[list[Cell]] = [
        [
            ("n", str(place)),
            ("w", escape(one.text) + (f"<br><code>{escape(one.command)}</code>" if one.command else "")),
            ("n", one.gain_text),
            ("source", escape(one.gain_source)),
        ]
        for place, one in enumerate(result.remedies, start=1)
    ]
    head = [("n", ""), ("", "change"), ("n", "predicted rate"), ("", "how the gain is computed")]
    note = '<p class="note" style="margin-top:12px">Gains are predictions from the shares above with assumed factors, not measurements.</p>'
    return table(head, rows) + note


def _evidence_row(one: Evidence) -> list[Cell]:
    ceiling = "–" if one.ceiling is None else _number(one.ceiling, one.unit)
    used = share(one.value / one.ceiling) if one.ceiling and one.unit != "share" else "–"
    source = one.source + (f"; ceiling: {one.ceiling_source}" if one.ceiling_source else "")
    return [
        ("head", escape(one.quantity)),
        ("n", escape(_number(one.value, one.unit))),
        ("n", escape(ceiling)),
        ("n", used),
        ("source", escape(source)),
    ]


def _section(title: str, head: Sequence[Cell], rows: Iterable[list[Cell]]) -> str:
    """A heading with a table; nothing if there are no rows. Long tables are cut, with a note."""
    every = list(rows)
    if not every:
        return ""
    cut = f'<p class="note">{len(every) - _MAX_ROWS:,} more rows are in the JSON.</p>' if len(every) > _MAX_ROWS else ""
    return f"<h2>{escape(title)}</h2>{table(head, every[:_MAX_ROWS])}{cut}"


def _resources(result: Explanation) -> str:
    ceilings = _section(
        "How far from the ceiling",
        [("", "resource"), ("n", "used"), ("n", "limit"), ("n", "share"), ("", "source of the limit")],
        (
            [
                ("head", escape(one.resource)),
                ("n", escape(_number(one.value, one.unit))),
                ("n", escape(_number(one.limit, one.unit))),
                ("n", share(one.share)),
                ("source", escape(one.source)),
            ]
            for one in result.ceilings
        ),
    )
    endpoints = _section(
        "Network endpoints",
        [
            ("", "endpoint"),
            ("", "role"),
            ("n", "received"),
            ("n", "sent"),
            ("n", "rate"),
            ("n", "connections"),
            ("n", "opened"),
            ("n", "round trip"),
            ("n", "sent again"),
        ],
        (
            [
                ("head", escape(f"{one.address}:{one.port}")),
                ("", escape(one.role)),
                ("n", format_bytes(one.received_bytes)),
                ("n", format_bytes(one.sent_bytes)),
                ("n", format_rate(one.rate_bytes_per_s)),
                ("n", f"{one.connections:,}"),
                ("n", f"{one.opened:,}"),
                ("n", "–" if one.rtt_s is None else format_seconds(one.rtt_s)),
                ("n", f"{one.retransmits:,}"),
            ]
            for one in result.endpoints
        ),
    )
    files = _section(
        "File systems",
        [("", "mounted at"), ("", "type"), ("n", "files"), ("n", "rate"), ("n", "blocked"), ("n", "device busy")],
        (
            [
                ("head", escape(one.mount_point)),
                ("", escape(f"{one.kind}, {one.place}" + (f", {one.device}" if one.device else ""))),
                ("n", f"{one.files:,}"),
                ("n", format_rate(one.read_bytes_per_s)),
                ("n", share(one.blocked_share)),
                ("n", "–" if one.device_busy_share is None else share(one.device_busy_share)),
            ]
            for one in result.file_systems
        ),
    )
    return ceilings + endpoints + files


def _processes(result: Explanation) -> str:
    return _section(
        "Processes",
        [
            ("", "process"),
            ("", "role"),
            ("n", "cores"),
            ("n", "waited for a core"),
            ("n", "read"),
            ("n", "from disks"),
            ("n", "memory"),
            ("", "time"),
        ],
        (
            [
                ("head", escape(f"{one.pid}" + ("" if one.rank is None else f", rank {one.rank}"))),
                ("w", escape(f"{one.role}: {one.command}")),
                ("n", f"{one.cpu_cores:.2f}"),
                ("n", share(one.run_queue_share)),
                ("n", format_rate(one.read_bytes_per_s)),
                ("n", format_rate(one.disk_bytes_per_s)),
                ("n", format_bytes(one.rss_bytes)),
                ("source", escape("; ".join(f"{_class_text(name)} {share(part)}" for name, part in one.top[:3]))),
            ]
            for one in result.processes
        ),
    )


def _facts(result: Explanation) -> str:
    """Provenance: the program, the observation and what it cost."""
    program, overhead = result.program, result.overhead
    if program.ended:
        end = "ended by itself" if program.exit_code is None else f"ended with exit code {program.exit_code}"
    else:
        end = "still ran at the end of the observation"
    facts = {
        "program": shlex.join(program.argv),
        "process": f"{program.pid}, {'attached to' if program.attached else 'started here'}; {end}",
        "host": program.host,
        "started": program.started,
        "observed": f"{format_seconds(program.seen_s)}, after {format_seconds(program.startup_s)} of start-up",
        "cost of observing": (
            f"{overhead.share:.1%} of one core, {overhead.share_of_machine:.1%} of {overhead.cores} cores;"
            f" the program was stopped for {format_seconds(overhead.pause_s)}"
        ),
        "stacks": f"{overhead.stack_samples:,} samples",
        "schema": f"version {result.schema_version} of the result of penstock explain",
    }
    rows = "".join(f"<div><dt>{name}</dt><dd>{escape(text)}</dd></div>" for name, text in facts.items() if text)
    return f'<h2>Provenance</h2><dl class="machine">{rows}</dl>'


def _answer(result: Explanation) -> str:
    """The sentence, the reason, and the kind of limit with its confidence."""
    verdict = result.verdict
    is_good = verdict.kind in ("healthy", "model")
    chips = (
        f'<span class="verdict{"" if is_good else " bad"}">limited by <b>{escape(KIND_TEXTS[verdict.kind])}</b></span>'
    )
    if verdict.subject:
        chips += f'<span class="verdict">{escape(verdict.subject)}</span>'
    chips += f'<span class="verdict">confidence: {escape(verdict.confidence)}</span>'
    if verdict.second:
        chips += f'<span class="verdict">next limit: {escape(KIND_TEXTS[verdict.second])}</span>'
    reason = f'<p class="lead">{escape(verdict.reason)}</p>' if verdict.reason else ""
    return f"<h1>{escape(verdict.sentence)}</h1><p>{chips}</p>{reason}{_lost(result.cost)}"


def explain_page(result: Explanation) -> str:
    """Return the complete HTML document."""
    program = result.program
    kicker = f'<p class="kicker"><b>penstock explain</b><span>{escape(shlex.join(program.argv)[:200])}</span></p>'
    evidence = _section(
        "Evidence",
        [("", "quantity"), ("n", "measured"), ("n", "ceiling"), ("n", "share"), ("", "source")],
        map(_evidence_row, result.evidence),
    )
    limits = "".join(f"<li>{escape(one)}</li>" for one in result.limits)
    parts = [
        kicker,
        _answer(result),
        f"<h2>What to change first</h2>{_remedies(result)}",
        f"<h2>Where the time goes</h2>{_time(result.shares)}",
        evidence,
        _resources(result),
        _processes(result),
        f'<h2>What could not be seen</h2><ul class="notes">{limits}</ul>' if limits else "",
        _facts(result),
    ]
    return document(f"Penstock: {result.verdict.sentence}", parts, {})


def write_explain_page(result: Explanation, file: Path) -> None:
    """Write the page as one HTML file, atomically."""
    write_whole(explain_page(result), file)

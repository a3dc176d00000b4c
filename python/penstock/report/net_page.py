# SPDX-License-Identifier: Apache-2.0
"""Page of a network benchmark: the verdict, the tables of its tests, and the pairs of ranks. Draws no charts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.bench.net.verdict import judge
from penstock.report.document import document, escape, table
from penstock.units import plural

if TYPE_CHECKING:
    from penstock.bench.net.nccl_format import NcclHalf
    from penstock.bench.net.osu_format import OsuRow
    from penstock.bench.net.result import NetResult, NetTable
    from penstock.bench.net.verdict import PairFigure

__all__ = ["net_page"]


def net_page(result: NetResult) -> str:
    """Return the complete HTML document. The verdict is computed again from the figures."""
    verdict = judge(result)
    hosts = plural(len({place.host for place in result.places}), "host")
    ran = f"{plural(result.world, 'rank')} on {hosts}"
    title = f"Network between {ran}"
    findings = "".join(f"<li><b>{escape(each.kind)}</b>: {escape(each.text)}</li>" for each in verdict.findings)
    parts = [
        f'<p class="kicker"><b>Penstock</b><span>{escape(result.library)}</span><span>{escape(ran)}</span></p>',
        f"<h1>{escape(title)}</h1>",
        f'<h2>Verdict</h2><ul class="notes">{findings}</ul>' if findings else "",
        *(_test(each) for each in result.tables if each.rows),
        _pairs(verdict.pairs) if verdict.pairs else "",
        (
            "<footer>Made by <code>penstock report</code>; the verdict was computed again. This file is self-contained "
            "and loads nothing.</footer>"
        ),
    ]
    return document(f"Penstock: {title}", parts, {})


def _test(found: NetTable) -> str:
    source = "" if found.source == "penstock" else f" of {found.source}"
    if found.nccl_rows():
        head = ["size (B)", "time (µs)", "algbw (GB/s)", "busbw (GB/s)", "in place: time (µs)", "algbw (GB/s)", "busbw (GB/s)"]  # fmt: skip
        rows = [[f"{row.size_bytes:,}", *_half(row.out_of_place), *_half(row.in_place)] for row in found.nccl_rows()]
    else:
        unit = found.unit.replace("us", "µs")
        columns = [("value", unit), ("min_us", "minimum, µs"), ("max_us", "maximum, µs")]
        kept = [
            (field, text) for field, text in columns if any(getattr(r, field) is not None for r in found.osu_rows())
        ]
        head = ["size (B)", *(text for _, text in kept)]
        rows = [[f"{row.size_bytes:,}", *(_number(row, field) for field, _ in kept)] for row in found.osu_rows()]
    return f"<h2>{escape(found.program)}{escape(source)}</h2>" + table(
        [("n", text) for text in head], ([("n", escape(cell)) for cell in row] for row in rows)
    )


def _number(row: OsuRow, field: str) -> str:
    value = getattr(row, field)
    return "–" if value is None else f"{value:,.2f}"


def _half(half: NcclHalf | None) -> list[str]:
    return ["–"] * 3 if half is None else [f"{half.time_us:,.2f}", f"{half.algbw:,.2f}", f"{half.busbw:,.2f}"]


def _pairs(pairs: tuple[PairFigure, ...]) -> str:
    head = [("", "ranks"), ("", "relation"), ("n", "latency (µs)"), ("n", "bandwidth (MB/s)"), ("n", "back (MB/s)"), ("", "")]  # fmt: skip
    rows = (
        [
            ("head", f"{each.a} and {each.b}"), ("", escape(each.relation)), ("n", f"{each.latency_us:,.2f}"),
            ("n", f"{each.a_to_b / 1e6:,.1f}"), ("n", f"{each.b_to_a / 1e6:,.1f}"), ("", "slow" if each.is_slow else ""),
        ]
        for each in pairs
    )  # fmt: skip
    return "<h2>Pairs of ranks</h2>" + table(head, rows)

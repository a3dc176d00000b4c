# SPDX-License-Identifier: Apache-2.0
"""What `penstock stage --dry-run` says: shares, requests, money and time, before the first byte."""

from __future__ import annotations

import datetime as dt
from typing import Any

from penstock.price import book as books
from penstock.price.transfer_cost import transfer_cost

__all__ = ["estimated", "readable", "usd"]

# Nodes spelt out; all of them stand in the JSON.
_TOLD = 64


def estimated(
    summary: dict[str, Any],
    *,
    tier: str | None = None,
    max_requests_per_s: float | None = None,
    max_bytes_per_s: float | None = None,
) -> dict[str, Any]:
    """The summary of a dry run with `money` (None where nobody bills) and `eta_s` (None where no rate is known).

    Raises:
        ConfigError: No such tier.
    """
    requests, sizes = summary["share_requests"], summary["shares"]
    money = None
    priced = transfer_cost(summary["source"], requests, sizes, tier=tier)
    if priced is not None:
        cost, used = priced
        money = {
            "tier": cost.tier,
            "is_inferred": cost.is_inferred,
            "node_requests_usd": cost.requests_usd,
            "requests_usd": cost.total_requests_usd,
            "node_egress_usd": cost.egress_usd,
            "egress_usd": cost.total_egress_usd,
            "prices": list(cost.prices),
            "as_of": list(cost.as_of),
            "dates": books.dates_line(used, dt.datetime.now(tz=dt.UTC).date()),
        }
    waits = []
    if max_bytes_per_s:
        waits.append(sum(sizes) / max_bytes_per_s)
    if max_requests_per_s:
        waits.append(sum(requests) / max_requests_per_s)
    return {**summary, "money": money, "eta_s": max(waits, default=None)}


def usd(amount: float) -> str:
    """Money for people."""
    return f"${amount:,.2f}" if amount >= 0.01 or amount == 0 else "< $0.01"


def readable(summary: dict[str, Any]) -> str:
    """The same in lines of at most 80 columns."""
    from penstock.units import format_bytes, format_seconds

    nodes, money = summary["nodes"], summary["money"]
    share = f"node {summary['node']} of {nodes}: " if nodes > 1 else ""
    whole = f"{summary['objects']:,} objects, {format_bytes(summary['bytes'])}"
    lines = [f"{share}would read {whole} in {summary['requests']:,} requests"]
    if nodes > 1:
        rows = zip(summary["share_objects"], summary["shares"], summary["share_requests"], strict=True)
        for node, (objects, size, requests) in enumerate(rows):
            if node == _TOLD:
                lines.append(f"  ... and {nodes - _TOLD:,} more nodes (--json lists all)")
                break
            cost = f"  {usd(money['node_requests_usd'][node])}" if money else ""
            lines.append(
                f"  node {node:>4}  {objects:>10,} objects  {format_bytes(size):>9}  {requests:>10,} requests{cost}"
            )
        stored = summary["shares"]
        if sum(stored):
            worst = max(stored) * nodes / sum(stored)
            lines.append(f"  all  {summary['objects_in_all']:,} objects, {format_bytes(sum(stored))}")
            lines.append(f"  fullest node {worst:.3f} x the mean in stored bytes")
    if summary["eta_s"] is not None:
        lines.append(f"  at least {format_seconds(summary['eta_s'])} for all nodes at the rates given")
    if money:
        how = "by the URL" if money["is_inferred"] else "as told"
        lines.append(f"  requests {usd(money['requests_usd'])} in all ({money['tier']}, {how})")
        if money["egress_usd"] is not None:
            lines.append(f"  egress $0.00 inside the cloud; {usd(money['egress_usd'])} where the nodes lie outside it")
        lines += [f"  {price}" for price in money["prices"]]
        lines += _wrapped(money["dates"])
    return "\n".join(lines)


def _wrapped(text: str, width: int = 78) -> list[str]:
    import textwrap

    return textwrap.wrap(text, width, initial_indent="  ", subsequent_indent="  ")

# SPDX-License-Identifier: Apache-2.0
"""Formats the estimate of `penstock stage --dry-run`: shares, requests, cost and time."""

from __future__ import annotations

from typing import Any

__all__ = ["readable", "usd"]

# Maximum number of printed nodes. The JSON output contains all.
_MAX_SHOWN = 64


def usd(amount: float) -> str:
    """Format an amount in US dollars."""
    return f"${amount:,.2f}" if amount >= 0.01 or amount == 0 else "< $0.01"


def readable(summary: dict[str, Any]) -> str:
    """Format the estimate in lines of at most 80 columns."""
    from penstock.units import format_bytes, format_seconds

    nodes, money = summary["nodes"], summary["money"]
    share = f"node {summary['node']} of {nodes}: " if nodes > 1 else ""
    whole = f"{summary['objects']:,} objects, {format_bytes(summary['bytes'])}"
    lines = [f"{share}would read {whole} in {summary['requests']:,} requests"]
    if nodes > 1:
        rows = zip(summary["share_objects"], summary["shares"], summary["share_requests"], strict=True)
        for node, (objects, size, requests) in enumerate(rows):
            if node == _MAX_SHOWN:
                lines.append(f"  ... and {nodes - _MAX_SHOWN:,} more nodes (--json lists all)")
                break
            cost = f"  {usd(money['node_requests_usd'][node])}" if money else ""
            lines.append(
                f"  node {node:>4}  {objects:>10,} objects  {format_bytes(size):>9}  {requests:>10,} requests{cost}"
            )
        stored = summary["shares"]
        if sum(stored):
            worst = max(stored) * nodes / sum(stored)
            lines.append(f"  all  {summary['objects_total']:,} objects, {format_bytes(sum(stored))}")
            lines.append(f"  fullest node {worst:.3f} x the mean in stored bytes")
    if summary["eta_s"] is not None:
        lines.append(f"  at least {format_seconds(summary['eta_s'])} for all nodes at the rates given")
    if money:
        how = "by the URL" if money["is_inferred"] else "as given"
        lines.append(f"  requests {usd(money['requests_usd'])} in all ({money['tier']}, {how})")
        if money["egress_usd"] is not None:
            lines.append(f"  egress $0.00 inside the cloud; {usd(money['egress_usd'])} if the nodes are outside it")
        for text in (*money["prices"], money["dates"]):
            lines += _wrapped(text)
    return "\n".join(lines)


def _wrapped(text: str, width: int = 78) -> list[str]:
    import textwrap

    return textwrap.wrap(text, width, initial_indent="  ", subsequent_indent="  ")

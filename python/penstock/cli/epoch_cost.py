# SPDX-License-Identifier: Apache-2.0
"""Formats the cost of all epochs for `penstock train` and `penstock bench feed`, which print it before the first
epoch.
"""

from __future__ import annotations

from typing import Any

__all__ = ["money_text"]


def money_text(money: dict[str, Any]) -> str:
    """Format the cost as lines of text."""
    from penstock.cli.stage_estimate import usd
    from penstock.units import format_bytes

    how = "by the URL" if money["is_inferred"] else "as given"
    epochs, nodes = money["epochs"], money["nodes"]
    of = f"{epochs:,} epoch{'s' if epochs > 1 else ''} on {nodes:,} node{'s' if nodes > 1 else ''}"
    lines = [f"{format_bytes(money['size_bytes'])} x {of}, {money['tier']} ({how}):"]
    for name, label in (("without_cache", "without the node's cache"), ("with_cache", "with it")):
        way = money[name]
        egress = (
            "" if way["egress_usd"] is None else f", egress {usd(way['egress_usd'])} if the nodes are outside the cloud"
        )
        lines.append(f"  {label}: requests {usd(way['requests_usd'])}{egress}")
    return "\n".join([*lines, f"  {money['dates']}"])

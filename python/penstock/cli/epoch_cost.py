# SPDX-License-Identifier: Apache-2.0
"""What `penstock train` and `penstock bench feed` say of money before the first epoch: bytes x epochs x price."""

from __future__ import annotations

import datetime as dt
from typing import Any

from penstock.price import book as books
from penstock.price.transfer_cost import epochs_cost

__all__ = ["epoch_money", "money_text"]


def epoch_money(
    url: str, *, objects: int, size_bytes: int, requests: float, epochs: int, nodes: int = 1, tier: str | None = None
) -> dict[str, Any] | None:
    """The money of all epochs as plain values, without the node's cache and with it; None where nobody bills.

    Raises:
        ConfigError: No such tier.
    """
    found = epochs_cost(
        url, objects=objects, size_bytes=size_bytes, requests=requests, epochs=epochs, nodes=nodes, tier=tier
    )
    if found is None:
        return None
    cost, used = found
    ways = {"without_cache": cost.streamed, "with_cache": cost.cached}
    return {
        "tier": cost.streamed.tier,
        "is_inferred": cost.streamed.is_inferred,
        "epochs": epochs,
        "nodes": nodes,
        "size_bytes": size_bytes,
        **{
            name: {"requests_usd": way.total_requests_usd, "egress_usd": way.total_egress_usd}
            for name, way in ways.items()
        },
        "prices": list(cost.streamed.prices),
        "dates": books.dates_line(used, dt.datetime.now(tz=dt.UTC).date()),
    }


def money_text(money: dict[str, Any]) -> str:
    """The same in lines for people."""
    from penstock.units import format_bytes

    how = "by the URL" if money["is_inferred"] else "as told"
    epochs, nodes = money["epochs"], money["nodes"]
    of = f"{epochs:,} epoch{'s' if epochs > 1 else ''} on {nodes:,} node{'s' if nodes > 1 else ''}"
    lines = [f"{format_bytes(money['size_bytes'])} x {of}, {money['tier']} ({how}):"]
    for name, label in (("without_cache", "without the node's cache"), ("with_cache", "with it")):
        way = money[name]
        egress = "" if way["egress_usd"] is None else f", egress {_usd(way['egress_usd'])} if the nodes lie outside it"
        lines.append(f"  {label}: requests {_usd(way['requests_usd'])}{egress}")
    return "\n".join([*lines, f"  {money['dates']}"])


def _usd(amount: float) -> str:
    return f"${amount:,.2f}" if amount >= 0.01 or amount == 0 else "< $0.01"

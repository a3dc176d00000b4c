# SPDX-License-Identifier: Apache-2.0
"""Estimates the cost of a stage or of a training before it starts, and returns it as plain values."""

from __future__ import annotations

import datetime as dt
from typing import Any

from penstock.price import book as books
from penstock.price.transfer_cost import epochs_cost, transfer_cost

__all__ = ["estimate_epochs", "estimate_stage"]


def estimate_stage(
    summary: dict[str, Any],
    *,
    tier: str | None = None,
    max_requests_per_s: float | None = None,
    max_bytes_per_s: float | None = None,
) -> dict[str, Any]:
    """Add `money` (None if nothing is billed) and `eta_s` (None if no limit is given) to the summary of a dry run.

    Raises:
        ConfigError: The tier is unknown.
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


def estimate_epochs(
    url: str, *, objects: int, size_bytes: int, requests: float, epochs: int, nodes: int = 1, tier: str | None = None
) -> dict[str, Any] | None:
    """Estimate the cost of all epochs with and without the node cache, as plain values; None if nothing is billed.

    Raises:
        ConfigError: The tier is unknown.
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

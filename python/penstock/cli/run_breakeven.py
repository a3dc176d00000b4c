# SPDX-License-Identifier: Apache-2.0
"""Formats the break-even of a pool, which `penstock run` prints."""

from __future__ import annotations

from typing import Any

__all__ = ["breakeven_lines"]


def breakeven_lines(result: dict[str, Any] | None) -> list[str]:
    """Format the break-even as lines of text; empty without a `[demand]`."""
    from penstock.units import format_bytes, format_rate, format_seconds

    if result is None:
        return []
    nodes, rate = result["nodes"], result["source_bytes_per_s"]
    if rate is None:
        return ["pool: break-even unknown; set source_rate in [demand] to the total bandwidth of the source"]
    delivers = f"{format_rate(rate)} ({result['rate_source']})"
    if "faster" not in result:
        return [
            (
                f"pool: the source delivers {delivers}, {format_rate(rate / nodes)} to each of {nodes} nodes; a pool pays"
                " off if a node reads faster than that (set node_rate in [demand])"
            )
        ]
    epochs, more = result["epochs"], result["from_epochs"]
    by_epochs = "its stage never pays off" if more is None else f"its stage pays off after {more:,} epochs"
    return [
        (
            f"pool: an epoch of {format_bytes(result['stored_bytes'])} in {format_seconds(result['epoch_s'])} is"
            f" {format_rate(result['node_bytes_per_s'])} per node, and the source delivers {delivers}: a pool pays off"
            f" at {result['from_nodes']:,} or more nodes; this job has {nodes}"
        ),
        (
            f"pool: {epochs:,} epochs: streamed {format_seconds(result['stream_s'])}, from a pool {format_seconds(result['pool_s'])}"
            f" ({format_seconds(result['before_s'])} before the first epoch): {result['faster']} is faster; {by_epochs}"
        ),
    ]

# SPDX-License-Identifier: Apache-2.0
"""What `penstock run` says of when a pool starts to pay: by the job's `[demand]`, its source's bytes and what its tier gives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.cli.run_cost import list_source, source_of, tier_of
from penstock.errors import ConfigError
from penstock.plan.breakeven import Demand, break_even
from penstock.price import tiers

if TYPE_CHECKING:
    from penstock.job.spec import Job

__all__ = ["breakeven_lines", "job_breakeven", "needs_listing"]


def needs_listing(job: Job) -> bool:
    """Whether `job_breakeven` lists the job's source: where it is known what the source gives and what is eaten of it."""
    return source_of(job) is not None and job.demand is not None and _source_rate(job)[0] is not None


def job_breakeven(job: Job, nodes: int, found: dict[str, Any] | None = None) -> dict[str, Any] | None:
    """The numbers, rates in bytes/s; None where the job reads nothing that is known. `found`: its source, listed already.

    Raises:
        PenstockError: The source cannot be listed, which is done where `[demand]` says what is eaten of it.
    """
    source, demand = source_of(job), job.demand
    if source is None:
        return None
    rate, whose = _source_rate(job)
    result: dict[str, Any] = {"nodes": nodes, "source": source, "source_bytes_per_s": rate, "rate_of": whose}
    if demand is None or rate is None:
        return result
    from penstock.units import parse_rate, parse_seconds

    stored = sum((found or list_source(job, nodes))["shares"])
    if demand.epoch is not None:
        epoch_s = parse_seconds(demand.epoch)
    else:
        epoch_s = stored / nodes / parse_rate(demand.node_rate or "")
    if not stored:
        return result
    nic = {"nic_bytes_per_s": parse_rate(demand.nic_rate)} if demand.nic_rate else {}
    demand_facts = Demand(
        stored_bytes=stored, nodes=nodes, epochs=demand.epochs, epoch_s=epoch_s, source_bytes_per_s=rate,
        inflated=demand.inflated, copies=job.pool.copies if job.pool else 1, **nic,
    )  # fmt: skip
    comparison = break_even(demand_facts)
    return {
        **result, "stored_bytes": stored, "epochs": demand.epochs, "epoch_s": epoch_s, **nic, "inflated": demand.inflated,
        **{name: getattr(comparison, name) for name in comparison.__struct_fields__},
    }  # fmt: skip


def breakeven_lines(result: dict[str, Any] | None) -> list[str]:
    """The same for people."""
    from penstock.units import format_bytes, format_rate, format_seconds

    if result is None:
        return []
    nodes, rate = result["nodes"], result["source_bytes_per_s"]
    if rate is None:
        return [
            "pool: when one starts to pay cannot be told: [demand] source_rate says what the source gives to all nodes"
        ]
    gives = f"{format_rate(rate)} ({result['rate_of']})"
    if "sooner" not in result:
        return [
            (
                f"pool: the source gives {gives}, {format_rate(rate / nodes)} to each of {nodes} nodes; a pool starts to pay where one"
                " eats more ([demand] says what yours eat)"
            )
        ]
    epochs, more = result["epochs"], result["from_epochs"]
    by_epochs = "no number of epochs repays it" if more is None else f"it repays its stage from {more:,} epochs on"
    return [
        (
            f"pool: an epoch of {format_bytes(result['stored_bytes'])} in {format_seconds(result['epoch_s'])} is"
            f" {format_rate(result['node_bytes_per_s'])} a node; the source gives {gives}: a pool starts to pay from"
            f" {result['from_nodes']:,} such nodes on, and here are {nodes}"
        ),
        (
            f"pool: {epochs:,} epochs: streamed {format_seconds(result['stream_s'])}, from a pool {format_seconds(result['pool_s'])}"
            f" ({format_seconds(result['before_s'])} of it before the first): {result['sooner']} is sooner; {by_epochs}"
        ),
    ]


def _source_rate(job: Job) -> tuple[float | None, str]:
    """What the source gives to all nodes together, and who says so."""
    from penstock.units import parse_rate

    if job.demand is not None and job.demand.source_rate is not None:
        return parse_rate(job.demand.source_rate), "as told"
    tier = tier_of(job)
    if tier is None:
        return None, ""
    try:
        found = tiers.find(tier)
    except ConfigError:
        return None, ""  # it has prices and no page in the book of tiers
    return found.rate("read-bytes", "account"), found.label

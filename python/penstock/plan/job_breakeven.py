# SPDX-License-Identifier: Apache-2.0
"""Computes when a pool breaks even for a job, from its `[demand]` section, its source's size and its tier's rate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock import tiers
from penstock.errors import ConfigError
from penstock.plan.breakeven import JobDemand, break_even
from penstock.price.job_cost import source_of, tier_of
from penstock.units import parse_rate, parse_seconds

if TYPE_CHECKING:
    from penstock.job.spec import Job

__all__ = ["job_breakeven", "needs_listing"]


def needs_listing(job: Job) -> bool:
    """Whether `job_breakeven` needs a listing of the source: true if the source's rate and the demand are known."""
    return source_of(job) is not None and job.demand is not None and _source_rate(job)[0] is not None


def job_breakeven(job: Job, nodes: int, found: dict[str, Any] | None = None) -> dict[str, Any] | None:
    """Compute when a pool breaks even for a job, with rates in bytes/s; None if the job file contains no source.

    Without a `[demand]` section, only the source's rate is returned.

    Args:
        found: Listing of the source; required if `needs_listing` returns True.
    """
    source, demand = source_of(job), job.demand
    if source is None:
        return None
    rate, rate_source = _source_rate(job)
    result: dict[str, Any] = {"nodes": nodes, "source": source, "source_bytes_per_s": rate, "rate_source": rate_source}
    if demand is None or rate is None:
        return result
    assert found is not None
    stored = sum(found["shares"])
    if demand.epoch is not None:
        epoch_s = parse_seconds(demand.epoch)
    else:
        epoch_s = stored / nodes / parse_rate(demand.node_rate or "")
    if not stored:
        return result
    nic = {"nic_bytes_per_s": parse_rate(demand.nic_rate)} if demand.nic_rate else {}
    demand_facts = JobDemand(
        stored_bytes=stored, nodes=nodes, epochs=demand.epochs, epoch_s=epoch_s, source_bytes_per_s=rate,
        compression_ratio=demand.compression_ratio, copies=job.pool.copies if job.pool else 1, **nic,
    )  # fmt: skip
    comparison = break_even(demand_facts)
    return {
        **result, "stored_bytes": stored, "epochs": demand.epochs, "epoch_s": epoch_s, **nic, "compression_ratio": demand.compression_ratio,
        **{name: getattr(comparison, name) for name in comparison.__struct_fields__},
    }  # fmt: skip


def _source_rate(job: Job) -> tuple[float | None, str]:
    """Total rate of the source to all nodes, and a text that states where the number comes from."""
    if job.demand is not None and job.demand.source_rate is not None:
        return parse_rate(job.demand.source_rate), "as given"
    tier = tier_of(job)
    if tier is None:
        return None, ""
    try:
        found = tiers.find(tier)
    except ConfigError:
        return None, ""  # the source has prices but no entry in the tier book
    return found.rate("read-bytes", "account"), found.label

# SPDX-License-Identifier: Apache-2.0
"""Computes the cost of a job: node hours, requests and bytes of the stage, the sum, and the dates of the prices."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

from penstock.price import book as books
from penstock.price.cost import job_cost
from penstock.price.estimates import estimate_stage
from penstock.price.transfer_cost import tier_of_url

if TYPE_CHECKING:
    from penstock.job.spec import Job, MoneySection

__all__ = ["job_money", "source_of", "tier_of"]


def source_of(job: Job) -> str | None:
    """URL of the job's source, from `[stage]` or otherwise from `[demand]`; None if the job file contains none."""
    if job.stage is not None:
        return job.stage.source
    return job.demand.source if job.demand is not None else None


def tier_of(job: Job) -> str | None:
    """Price tier of the job's source; None if reads from the source are not billed."""
    section, source = job.money.tier if job.money else None, source_of(job)
    return section or (tier_of_url(source) if source else None)


def job_money(job: Job, nodes: int, found: dict[str, Any] | None, *, copies: int = 1) -> dict[str, Any]:
    """Compute the cost of a job in USD, by item. Unknown items are None.

    Args:
        nodes: Number of nodes of the job.
        found: Result of `list_source`, if reads from the source are billed.
        copies: Number of times that the whole dataset is staged: once, or once per node.

    Raises:
        ConfigError: `[money]` names an item that the price book does not have.
    """
    section, price, per_hour = job.money, None, None
    if section is not None:
        per_hour, price = _node_price(section)
    staged = None
    if found is not None and job.stage is not None and tier_of(job) is not None:
        much = {key: [copies * each for each in found[key]] for key in ("shares", "share_requests")}
        staged = estimate_stage({**found, **much}, tier=tier_of(job))
    requests = staged["money"]["requests_usd"] if staged else 0.0
    egress = staged["money"]["egress_usd"] if staged else 0.0
    total = None
    if per_hour is not None and section is not None and section.hours is not None:
        total = job_cost(nodes=nodes, usd_per_node_hour=per_hour, run_h=section.hours, requests=requests).total_usd
    return {
        "nodes": nodes,
        "usd_per_node_hour": per_hour,
        "node": None if price is None else {"item": price.item, "region": price.region},
        "hours": section.hours if section else None,
        "stage_objects": staged["objects_total"] if staged else None,
        "stage_requests": sum(staged["share_requests"]) if staged else None,
        "stage_bytes": sum(staged["shares"]) if staged else None,
        "requests_usd": requests,
        "tier": staged["money"]["tier"] if staged else None,
        "egress_usd_inside": 0.0,
        "egress_usd_outside": egress,
        "job_usd": total,
        "dates": ([staged["money"]["dates"]] if staged else [])
        + ([books.dates_line([price], dt.datetime.now(tz=dt.UTC).date())] if price else []),
    }


def _node_price(section: MoneySection) -> tuple[float, books.Price | None]:
    if section.usd_per_node_hour is not None:
        return section.usd_per_node_hour, None
    price = books.load().find(section.node or "", section.region)
    return price.usd_per_unit, price

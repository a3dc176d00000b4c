# SPDX-License-Identifier: Apache-2.0
"""What `penstock run --dry-run` says of money: nodes by the hour, the stage's requests, the whole job, with the prices' dates."""

from __future__ import annotations

import datetime as dt
import tempfile
from typing import TYPE_CHECKING

from penstock.cli.stage_estimate import estimated, usd
from penstock.price import book as books
from penstock.price.cost import job_cost
from penstock.price.moving import tier_of_url

if TYPE_CHECKING:
    from penstock.cluster.job import Job, Money

__all__ = ["money_lines"]


def money_lines(job: Job, nodes: int) -> list[str]:
    """Lines for people; where nothing is billed or told of, they say what is missing. Lists the stage's source.

    Raises:
        ConfigError: `[money]` names what the price book does not have.
        PenstockError: The source cannot be listed.
    """
    told = job.money
    lines, prices = [], []
    usd_per_hour = None
    if told is not None:
        usd_per_hour, price = _node_price(told)
        prices += [price] if price else []
        whose = f" ({price.item}, {price.region})" if price else ""
        lines.append(f"nodes: {nodes} x {usd_per_hour:g} USD/h{whose}: {usd(nodes * usd_per_hour)} an hour")
    else:
        lines.append("nodes: no price is told of; [money] node = an item of the price book, or usd_per_node_hour")
    requests_usd = 0.0
    tier = told.tier if told else None
    if job.stage is not None and (tier or tier_of_url(job.stage.source)):
        found = estimated(_listed(job, nodes), tier=tier)
        requests_usd = found["money"]["requests_usd"]
        lines.append(
            f"stage: {found['objects_in_all']:,} objects, {sum(found['share_requests']):,} requests: {usd(requests_usd)}"
            f" ({found['money']['tier']}; {found['money']['dates']})"
        )
    elif job.stage is not None:
        lines.append("stage: nobody bills for its requests")
    if usd_per_hour is not None and told is not None and told.hours is not None:
        cost = job_cost(nodes=nodes, usd_per_node_hour=usd_per_hour, run_h=told.hours, requests=requests_usd)
        lines.append(f"job: {told.hours:g} h on {nodes} nodes: {usd(cost.total_usd)}")
    if prices:
        lines.append(books.dates_line(prices, dt.datetime.now(tz=dt.UTC).date()))
    return lines


def _node_price(told: Money) -> tuple[float, books.Price | None]:
    if told.usd_per_node_hour is not None:
        return told.usd_per_node_hour, None
    price = books.load().find(told.node or "", told.region)
    return price.usd_per_unit, price


def _listed(job: Job, nodes: int) -> dict[str, object]:
    from penstock import stage
    from penstock.ranks import Rank

    assert job.stage is not None
    # What is there already would need the nodes: this is what a fresh stage costs.
    with tempfile.TemporaryDirectory() as nothing:
        spec = stage.StageSpec(
            job.stage.source, f"{nothing}/x", inflate=job.stage.inflate, rank=Rank(nodes=nodes), dry_run=True
        )
        return stage.wait(stage.start(spec))

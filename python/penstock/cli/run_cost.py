# SPDX-License-Identifier: Apache-2.0
"""What `penstock run --dry-run` says of money: nodes by the hour, the stage's requests and bytes, the whole job, with the prices'
dates.
"""

from __future__ import annotations

import datetime as dt
import tempfile
from typing import TYPE_CHECKING, Any

from penstock.cli.stage_estimate import estimated, usd
from penstock.job.compare_paths import staged_leftover
from penstock.price import book as books
from penstock.price.cost import job_cost
from penstock.price.transfer_cost import tier_of_url

if TYPE_CHECKING:
    from penstock.job.spec import Job, MoneySection

__all__ = ["job_money", "list_source", "money_lines", "source_of", "tier_of"]


def source_of(job: Job) -> str | None:
    """The URL of what the job reads; None where nobody says."""
    if job.stage is not None:
        return job.stage.source
    return job.demand.source if job.demand is not None else None


def tier_of(job: Job) -> str | None:
    """The tier that its source is billed by; None where nobody bills."""
    section, source = job.money.tier if job.money else None, source_of(job)
    return section or (tier_of_url(source) if source else None)


def list_source(job: Job, nodes: int, *, deadline_s: float | None = None) -> dict[str, Any]:
    """What a fresh stage of the job's source would move, by node; lists it.

    Raises:
        Deadline: That takes longer.
        PenstockError: The source cannot be listed.
    """
    from penstock import stage
    from penstock.ranks import Rank

    source, inflate = source_of(job) or "", job.stage is not None and job.stage.inflate
    # What is there already would need the nodes: this is what a fresh stage costs.
    with tempfile.TemporaryDirectory() as nothing:
        spec = stage.StageSpec(
            source, f"{nothing}/x", inflate=inflate, rank=Rank(nodes=nodes), dry_run=True, deadline_s=deadline_s
        )
        return stage.wait(stage.start(spec))


def job_money(job: Job, nodes: int, found: dict[str, Any] | None) -> dict[str, Any]:
    """In USD, None where it is not known. `found` is what `list_source` gave, of a source that somebody bills for.

    Raises:
        ConfigError: `[money]` names what the price book does not have.
    """
    section, price, per_hour = job.money, None, None
    if section is not None:
        per_hour, price = _node_price(section)
    staged = None
    if found is not None and job.stage is not None and tier_of(job) is not None:
        # `staged` brings the whole dataset to every node.
        times = nodes if staged_leftover(job) is not None else 1
        much = {key: [times * each for each in found[key]] for key in ("shares", "share_requests")}
        staged = estimated({**found, **much}, tier=tier_of(job))
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
        "stage_objects": staged["objects_in_all"] if staged else None,
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


def money_lines(job: Job, money: dict[str, Any]) -> list[str]:
    """The same for people; where nothing is billed or told of, they say what is missing."""
    from penstock.units import format_bytes

    nodes, per_hour, lines = money["nodes"], money["usd_per_node_hour"], []
    if per_hour is None:
        lines.append("nodes: no price is told of; [money] node = an item of the price book, or usd_per_node_hour")
    else:
        whose = f" ({money['node']['item']}, {money['node']['region']})" if money["node"] else ""
        lines.append(f"nodes: {nodes} x {per_hour:g} USD/h{whose}: {usd(nodes * per_hour)} an hour")
    if money["tier"] is not None:
        lines.append(
            f"stage: {money['stage_objects']:,} objects, {money['stage_requests']:,} requests: {usd(money['requests_usd'])}"
            f" ({money['tier']}; {money['dates'][0]})"
        )
        outside = money["egress_usd_outside"]
        priced = (
            f"{usd(outside)} where the nodes lie outside it" if outside is not None else "no price is known outside it"
        )
        lines.append(f"egress: {format_bytes(money['stage_bytes'])}: $0.00 inside the cloud; {priced}")
    elif job.stage is not None:
        lines.append("stage: nobody bills for its requests")
    else:
        lines.append("requests: nothing is staged; those of the ranks' own reads are not counted")
    if money["job_usd"] is not None:
        lines.append(f"job: {money['hours']:g} h on {nodes} nodes: {usd(money['job_usd'])}")
    if money["node"]:
        lines.append(money["dates"][-1])
    return lines


def _node_price(section: MoneySection) -> tuple[float, books.Price | None]:
    if section.usd_per_node_hour is not None:
        return section.usd_per_node_hour, None
    price = books.load().find(section.node or "", section.region)
    return price.usd_per_unit, price

# SPDX-License-Identifier: Apache-2.0
"""Cost of a job for `penstock run --dry-run`: lists the source and formats the cost."""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING, Any

from penstock.cli.stage_estimate import usd
from penstock.price.job_cost import source_of

if TYPE_CHECKING:
    from penstock.job.spec import Job

__all__ = ["list_source", "money_lines"]


def list_source(job: Job, nodes: int, *, timeout_s: float | None = None) -> dict[str, Any]:
    """List the job's source, and return the bytes and requests that each node needs for a fresh stage.

    Raises:
        Deadline: Listing takes longer than `timeout_s`.
        PenstockError: The source cannot be listed.
    """
    from penstock import stage
    from penstock.ranks import Rank

    source, decompress = source_of(job) or "", job.stage is not None and job.stage.decompress
    # Estimate a stage into an empty folder. Files that already exist on the nodes cannot be seen from here.
    with tempfile.TemporaryDirectory() as nothing:
        spec = stage.StageSpec(
            source, f"{nothing}/x", decompress=decompress, rank=Rank(nodes=nodes), dry_run=True, timeout_s=timeout_s
        )
        return stage.wait(stage.start(spec))


def money_lines(job: Job, money: dict[str, Any]) -> list[str]:
    """Format the cost as lines of text. For each missing price, one line explains how to set this price."""
    from penstock.units import format_bytes

    nodes, per_hour, lines = money["nodes"], money["usd_per_node_hour"], []
    if per_hour is None:
        lines.append("nodes: no price set; in [money], set node to an item of the price book, or usd_per_node_hour")
    else:
        whose = f" ({money['node']['item']}, {money['node']['region']})" if money["node"] else ""
        lines.append(f"nodes: {nodes} x {per_hour:g} USD/h{whose}: {usd(nodes * per_hour)} per hour")
    if money["tier"] is not None:
        lines.append(
            f"stage: {money['stage_objects']:,} objects, {money['stage_requests']:,} requests: {usd(money['requests_usd'])}"
            f" ({money['tier']}; {money['dates'][0]})"
        )
        outside = money["egress_usd_outside"]
        priced = f"{usd(outside)} for nodes outside it" if outside is not None else "outside it, the price is unknown"
        lines.append(f"egress: {format_bytes(money['stage_bytes'])}: $0.00 inside the cloud; {priced}")
    elif job.stage is not None:
        lines.append("stage: its requests are free")
    else:
        lines.append("requests: nothing is staged; requests of the ranks' own reads are not counted")
    if money["job_usd"] is not None:
        lines.append(f"job: {money['hours']:g} h on {nodes} nodes: {usd(money['job_usd'])}")
    if money["node"]:
        lines.append(money["dates"][-1])
    return lines

# SPDX-License-Identifier: Apache-2.0
"""Cost formulas: pure functions of USD, hours and bytes, independent of the price book and of jobs."""

from __future__ import annotations

import math

import msgspec

from penstock.errors import ConfigError

__all__ = ["Cost", "billed_requests", "egress_usd", "job_cost", "requests_usd", "storage_usd"]

GIB = 2**30
HOURS_PER_MONTH = 730.0  # 365 x 24 / 12, the month in cloud price pages


class Cost(msgspec.Struct, frozen=True):
    """Cost of a job, by item."""

    nodes_usd: float
    requests_usd: float = 0.0
    storage_usd: float = 0.0
    egress_usd: float = 0.0

    @property
    def total_usd(self) -> float:
        """Sum of all items."""
        return self.nodes_usd + self.requests_usd + self.storage_usd + self.egress_usd


def _not_negative(**amounts: float) -> None:
    for name, amount in amounts.items():
        if not (amount >= 0 and math.isfinite(amount)):
            raise ConfigError(f"{name}: must be finite and at least 0 (got {amount})")


def billed_requests(object_bytes: int, *, requests: int = 1, bytes_per_unit: int | None = None) -> int:
    """Number of read operations that a store bills for an object that is read with `requests` GETs.

    Args:
        object_bytes: Stored size of the object.
        requests: Number of GETs for the object.
        bytes_per_unit: N if the store bills one read for every N bytes or part thereof, else None. N is 4 MiB for Azure
            accounts with a hierarchical name space. Source: Azure Blob pricing page, "read operations of 4 MB". A 16.8
            MB object costs 5 read operations (16.78 MB / 4 MiB = 4.0003).
    """
    _not_negative(object_bytes=object_bytes, requests=requests)
    if bytes_per_unit is None:
        return requests
    return max(requests, -(-object_bytes // bytes_per_unit))


def requests_usd(count: float, usd_per_request: float) -> float:
    """Cost of requests, in USD: count x price. The count must include failed or throttled requests that are billed."""
    _not_negative(count=count, usd_per_request=usd_per_request)
    return count * usd_per_request


def storage_usd(size_bytes: float, usd_per_gib_month: float, hours: float) -> float:
    """Cost of storing `size_bytes` for `hours`, in USD. Clouds bill GB-months by the hour, with a GB of 2^30 bytes."""
    _not_negative(size_bytes=size_bytes, usd_per_gib_month=usd_per_gib_month, hours=hours)
    return size_bytes / GIB * usd_per_gib_month * hours / HOURS_PER_MONTH


def egress_usd(size_bytes: float, usd_per_gib: float) -> float:
    """Cost of bytes that leave the region, in USD. Traffic inside the region is free."""
    _not_negative(size_bytes=size_bytes, usd_per_gib=usd_per_gib)
    return size_bytes / GIB * usd_per_gib


def job_cost(
    *,
    nodes: int,
    usd_per_node_hour: float,
    run_h: float,
    stage_h: float = 0.0,
    requests: float = 0.0,
    storage: float = 0.0,
    egress: float = 0.0,
) -> Cost:
    """Cost of one job: nodes x $/h x (stage_h + run_h) + requests + GB-months + egress (the last three in USD).

    The nodes are also billed while they stage, as in the published study.

    Source: DESIGN section 4, Plan; the first term is the formula of that study (`plan.reference_job`).
    """
    _not_negative(
        nodes=nodes,
        usd_per_node_hour=usd_per_node_hour,
        run_h=run_h,
        stage_h=stage_h,
        requests=requests,
        storage=storage,
        egress=egress,
    )
    return Cost(nodes * usd_per_node_hour * (stage_h + run_h), requests, storage, egress)

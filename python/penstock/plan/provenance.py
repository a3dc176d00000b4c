# SPDX-License-Identifier: Apache-2.0
"""Lists the limits of each store in a plan, with their source and uncertainty, and the properties of the stores that
the step model leaves out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock import tiers
from penstock.units import format_rate

if TYPE_CHECKING:
    from penstock.plan.spec import PlanSpec, Store

__all__ = ["doubts", "limit_sources"]

_DOUBTFUL = {"unverified": "is not verified", "ours": "has no source, and is an assumption"}
_MIN_UNCERTAINTY = 0.05
_REQUESTS = ("read-requests", "requests")


def limit_sources(spec: PlanSpec) -> list[str]:
    """One line for each limit of the stores' tiers: value, source, date and confidence."""
    lines = []
    for store in spec.stores:
        if store.tier is None:
            continue
        tier = tiers.find(store.tier)
        lines += [
            f"{store.name}: {limit.what} of one {limit.scope}, {_value(limit)}, {limit.confidence}, as of "
            f"{limit.as_of} ({limit.source})"
            for limit in tier.limits
        ]
        lines += [
            f"{store.name}: {one.what} latency, p50 {one.p50_ms:g} ms, p99 {one.p99_ms:g} ms, {one.confidence}, as of "
            f"{one.as_of} ({one.source})"
            for one in tier.latency
        ]
    return lines


def doubts(spec: PlanSpec) -> list[str]:
    """One line for each read limit that is not verified, or that a probe measured with more than 5 % uncertainty. Also
    one line for each property of a tier that the step model leaves out.
    """
    return [text for store in spec.stores if store.tier is not None for text in _doubts_of(store, store.tier)]


def _doubts_of(store: Store, name: str) -> list[str]:
    tier = tiers.find(name)
    lines = []
    for limit in tier.limits:
        if limit.what.startswith("write-"):
            continue
        if _is_replaced(store, limit):
            continue
        what = f"{store.name}: {limit.what} of one {limit.scope} ({_value(limit)})"
        if limit.confidence in _DOUBTFUL:
            lines.append(f"{what} {_DOUBTFUL[limit.confidence]}")
        elif (limit.uncertainty or 0.0) > _MIN_UNCERTAINTY:
            lines.append(f"{what} is known to ± {100 * (limit.uncertainty or 0.0):.0f} %")
    read = next((one for one in tier.latency if one.what == "read"), None)
    if read is not None and store.latency_s is None and read.p99_ms > 3 * read.p50_ms:
        lines.append(
            f"{store.name}: 1 % of first bytes take {read.p99_ms:g} ms or more, and the prediction has the median of "
            f"{read.p50_ms:g} ms"
        )
    return lines


def _is_replaced(store: Store, limit: tiers.Limit) -> bool:
    """Whether a key of the plan file replaces a limit of the tier, as in `scenario.limits_of`."""
    if limit.what in _REQUESTS:
        return store.requests_per_s is not None
    key = store.connection_bytes_per_s if limit.scope == "connection" else store.account_bytes_per_s
    return limit.what == "read-bytes" and key is not None


def _value(limit: tiers.Limit) -> str:
    return format_rate(limit.value) if limit.unit == "bytes/s" else f"{limit.value:,.0f} requests/s"

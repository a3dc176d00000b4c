# SPDX-License-Identifier: Apache-2.0
"""Transfer cost of a dataset: requests x price + egress bytes x price, by the kind of store in a URL."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from penstock.errors import ConfigError
from penstock.price import book as books
from penstock.price import cost

if TYPE_CHECKING:
    from penstock.price.book import Price, PriceBook

__all__ = ["TIERS", "EpochsCost", "TransferCost", "epochs_cost", "tier_of_url", "transfer_cost"]

# Store -> the book's rows: reads, and a byte that leaves for the internet.
TIERS: dict[str, tuple[str, str | None]] = {
    "s3-standard": ("s3-standard-read", "s3-egress-internet"),
    "gcs-standard": ("gcs-standard-read", "gcs-egress-internet"),
    "azure-hot": ("azure-hot-read", None),
    "azure-premium": ("azure-premium-read", None),
}
_BY_SCHEME = {"s3": "s3-standard", "gs": "gcs-standard", "az": "azure-hot"}


class TransferCost(msgspec.Struct, frozen=True):
    """USD, by node and in all. `egress_usd` is what nodes outside the cloud pay; nodes inside pay 0."""

    tier: str
    is_inferred: bool
    requests_usd: list[float]
    egress_usd: list[float] | None
    prices: tuple[str, ...]
    as_of: tuple[str, ...]

    @property
    def total_requests_usd(self) -> float:
        """Money for all requests."""
        return sum(self.requests_usd)

    @property
    def total_egress_usd(self) -> float | None:
        """Money for all bytes where they leave the cloud; None where the book has no price for that."""
        return None if self.egress_usd is None else sum(self.egress_usd)


class EpochsCost(msgspec.Struct, frozen=True):
    """What feeding a training costs, without a node cache and with one."""

    epochs: int
    nodes: int
    streamed: TransferCost
    cached: TransferCost


def tier_of_url(url: str) -> str | None:
    """The tier that a URL's scheme most likely means; None for a source without billed requests (files, web servers)."""
    return _BY_SCHEME.get(url.partition("://")[0]) if "://" in url else None


def transfer_cost(
    url: str,
    requests: list[int],
    sizes_bytes: list[int],
    *,
    tier: str | None = None,
    book: PriceBook | None = None,
) -> tuple[TransferCost, list[Price]] | None:
    """What each node's requests and bytes cost, and the prices that were used; None where nothing is billed.

    Args:
        requests: GETs (and HEADs) of each node.
        sizes_bytes: Stored bytes of each node.
        tier: One of `TIERS`; else what the URL's scheme most likely means.
    Raises:
        ConfigError: No such tier.
    """
    named = tier or tier_of_url(url)
    if named is None:
        return None
    if named not in TIERS:
        raise ConfigError(f"--price-tier: `{named}` is none of {', '.join(TIERS)}", where="--price-tier")
    book = book or books.load()
    read_item, egress_item = TIERS[named]
    read = book.find(read_item)
    used = [read]
    egress = None
    if egress_item is not None:
        leaving = book.find(egress_item)
        used.append(leaving)
        egress = [cost.egress_usd(size, leaving.usd_per_unit) for size in sizes_bytes]
    found = TransferCost(
        tier=named,
        is_inferred=tier is None,
        requests_usd=[cost.requests_usd(count, read.usd_per_unit) for count in requests],
        egress_usd=egress,
        prices=tuple(
            f"{price.item}: {price.value:g} USD for {price.per:,} {price.unit}{'s' if price.per > 1 else ''}, {price.region}"
            for price in used
        ),
        as_of=tuple(price.as_of for price in used),
    )
    return found, used


def epochs_cost(
    url: str,
    *,
    objects: int,
    size_bytes: int,
    requests: float,
    epochs: int,
    nodes: int = 1,
    tier: str | None = None,
    book: PriceBook | None = None,
) -> tuple[EpochsCost, list[Price]] | None:
    """What all epochs of a training read, in money; None where nothing is billed.

    Without a cache every epoch moves every byte. With one, a node fetches an object when it first needs it: of N nodes
    that share each epoch evenly, each holds 1 - (1 - 1/N)^e of the dataset after e epochs, and N times that has moved.

    Args:
        objects, size_bytes: Of the dataset, as stored.
        requests: GETs of one epoch over all nodes, without a cache.
    Raises:
        ConfigError: No such tier, or no epoch or node.
    """
    if epochs < 1 or nodes < 1:
        raise ConfigError(f"{epochs} epochs on {nodes} nodes read nothing")
    held = nodes * (1 - (1 - 1 / nodes) ** epochs)
    streamed = transfer_cost(url, [round(requests * epochs)], [size_bytes * epochs], tier=tier, book=book)
    cached = transfer_cost(url, [round(objects * held)], [round(size_bytes * held)], tier=tier, book=book)
    if streamed is None or cached is None:
        return None
    return EpochsCost(epochs, nodes, streamed[0], cached[0]), streamed[1]

# SPDX-License-Identifier: Apache-2.0
"""Computes the transfer cost of a dataset: requests x price + egress bytes x price. The URL determines the prices."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from penstock.errors import ConfigError
from penstock.price import book as books
from penstock.price import cost

if TYPE_CHECKING:
    from penstock.price.book import Price, PriceBook

__all__ = ["TIERS", "EpochsCost", "TransferCost", "epochs_cost", "tier_of_url", "transfer_cost"]

# Price book items for each tier: a read request, and internet egress.
TIERS: dict[str, tuple[str, str | None]] = {
    "s3-standard": ("s3-standard-read", "s3-egress-internet"),
    "gcs-standard": ("gcs-standard-read", "gcs-egress-internet"),
    "azure-hot": ("azure-hot-read", "azure-egress-internet"),
    "azure-premium": ("azure-premium-read", "azure-egress-internet"),
}
_BY_SCHEME = {"s3": "s3-standard", "gs": "gcs-standard", "az": "azure-hot"}


class TransferCost(msgspec.Struct, frozen=True):
    """Transfer cost in USD, per node and in total. `egress_usd` applies only to nodes outside the cloud."""

    tier: str
    is_inferred: bool
    requests_usd: list[float]
    egress_usd: list[float] | None
    prices: tuple[str, ...]
    as_of: tuple[str, ...]

    @property
    def total_requests_usd(self) -> float:
        """Cost of all requests."""
        return sum(self.requests_usd)

    @property
    def total_egress_usd(self) -> float | None:
        """Cost of all bytes if they leave the cloud; None if the book has no egress price for the tier."""
        return None if self.egress_usd is None else sum(self.egress_usd)


class EpochsCost(msgspec.Struct, frozen=True):
    """Transfer cost of a training: `streamed` without a node cache, `cached` with a node cache."""

    epochs: int
    nodes: int
    streamed: TransferCost
    cached: TransferCost


def tier_of_url(url: str) -> str | None:
    """Return the most likely tier for a URL's scheme; None if requests are not billed (files, web servers)."""
    return _BY_SCHEME.get(url.partition("://")[0]) if "://" in url else None


def transfer_cost(
    url: str,
    requests: list[int],
    sizes_bytes: list[int],
    *,
    tier: str | None = None,
    book: PriceBook | None = None,
) -> tuple[TransferCost, list[Price]] | None:
    """Compute the cost of each node's requests and bytes; return it with the prices used. None if nothing is billed.

    Args:
        requests: Number of GETs and HEADs of each node.
        sizes_bytes: Stored bytes that each node transfers.
        tier: One of `TIERS`; by default, the most likely tier for the URL's scheme.
    Raises:
        ConfigError: The tier is unknown.
    """
    named = tier or tier_of_url(url)
    if named is None:
        return None
    if named not in TIERS:
        raise ConfigError(f"--price-tier: `{named}` is not one of {', '.join(TIERS)}", where="--price-tier")
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
    """Compute the cost of the reads in all epochs of a training; None if nothing is billed.

    Without a cache, every epoch transfers every byte. With a cache, a node fetches an object only when it first needs
    it. If N nodes share each epoch evenly, each node has cached the fraction 1 - (1 - 1/N)^e of the dataset after e
    epochs. All nodes together have then transferred N times this fraction.

    Args:
        objects, size_bytes: Number of objects and stored bytes of the dataset.
        requests: Number of GETs in one epoch over all nodes, without a cache.
    Raises:
        ConfigError: The tier is unknown, or the number of epochs or nodes is 0.
    """
    if epochs < 1 or nodes < 1:
        raise ConfigError(f"epochs and nodes must be at least 1 (got {epochs} and {nodes})")
    held = nodes * (1 - (1 - 1 / nodes) ** epochs)
    streamed = transfer_cost(url, [round(requests * epochs)], [size_bytes * epochs], tier=tier, book=book)
    cached = transfer_cost(url, [round(objects * held)], [round(size_bytes * held)], tier=tier, book=book)
    if streamed is None or cached is None:
        return None
    return EpochsCost(epochs, nodes, streamed[0], cached[0]), streamed[1]

# SPDX-License-Identifier: Apache-2.0
"""Limits what a probe may spend: time, money, bytes and requests. Computes the upper bound before the first request."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Literal

import msgspec

from penstock.errors import ConfigError
from penstock.price import book as books
from penstock.price import cost
from penstock.price.transfer_cost import TIERS, tier_of_url

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.price.book import Price, PriceBook

__all__ = ["Meter", "Prices", "Silent", "Spent", "prices_of"]

Kind = Literal["read", "write"]


class Spent(Exception):
    """A limit of the probe is reached. This ends the current part, and the card names the part."""


class Silent(Spent):
    """No request of a phase was answered within the phase's time."""


class Prices(msgspec.Struct, frozen=True, kw_only=True):
    """Prices of a store. A price is None if it is unknown; `unknown` states why.

    Attributes:
        tier: Tier of the price book whose prices apply; None if nothing is counted.
        read_usd, write_usd: Price of one GET or HEAD, and of one PUT or LIST.
        egress_usd_per_gib: Price of bytes that leave the region. 0 if the user states that this machine is in the
            region.
    """

    tier: str | None
    read_usd: float | None
    write_usd: float | None
    egress_usd_per_gib: float | None
    is_billed: bool = True
    unknown: tuple[str, ...] = ()
    used: tuple[str, ...] = ()


def prices_of(
    url: str,
    *,
    is_custom_endpoint: bool,
    same_region: bool,
    tier: str | None = None,
    book: PriceBook | None = None,
) -> Prices:
    """Prices that apply to a URL.

    Args:
        is_custom_endpoint: The endpoint is not the cloud's own, so its prices are unknown.
        same_region: This machine is in the store's region, where reads are not billed as egress.
        tier: Tier of the price book; by default, the tier of the URL's scheme. `none`: nothing is billed.
    Raises:
        ConfigError: The tier has no prices.
    """
    named = tier or tier_of_url(url)
    if named == "none" or named is None:
        return Prices(tier=None, read_usd=0.0, write_usd=0.0, egress_usd_per_gib=0.0, is_billed=False)
    if named not in TIERS:
        raise ConfigError(f"price-tier: must be {', '.join(TIERS)} or `none` (got `{named}`)", where="--price-tier")
    if is_custom_endpoint and tier is None:
        why = "the endpoint is not the cloud's own, and the price book does not contain its prices"
        return Prices(tier=None, read_usd=None, write_usd=None, egress_usd_per_gib=None, unknown=(why,))
    book = book or books.load()
    unknown: list[str] = []
    used: list[str] = []

    def price(item: str | None, what: str) -> float | None:
        try:
            found: Price | None = book.find(item) if item else None
        except ConfigError:
            found = None
        if found is None:
            unknown.append(f"the price book has no price for {what} of {named}")
            return None
        used.append(
            f"{found.item}: {found.value:g} USD for {found.per:,} {found.unit}{'s' if found.per > 1 else ''},"
            f" {found.region}, {found.as_of}"
        )
        return found.usd_per_unit

    read_item, egress_item = TIERS[named]
    return Prices(
        tier=named,
        read_usd=price(read_item, "read requests"),
        write_usd=price(read_item.removesuffix("-read") + "-write", "write and list requests"),
        egress_usd_per_gib=0.0 if same_region else price(egress_item, "egress"),
        unknown=tuple(unknown),
        used=tuple(used),
    )


class Meter:
    """Counts what a probe has used, and raises `Spent` at its limits.

    Args:
        prices: Prices of the store; an unknown price counts as 0 and is reported.
        budget_usd: Maximum cost.
        max_bytes: Maximum number of bytes to read and write.
        time_s: Maximum time, from now on.
    """

    def __init__(
        self,
        prices: Prices,
        *,
        budget_usd: float,
        max_bytes: int,
        time_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.prices, self.budget_usd, self.max_bytes, self.time_s = prices, budget_usd, max_bytes, time_s
        self._clock, self._began_s = clock, clock()
        self.requests: dict[Kind, int] = {"read": 0, "write": 0}
        self.bytes_read = self.bytes_written = 0

    @property
    def elapsed_s(self) -> float:
        return self._clock() - self._began_s

    @property
    def left_s(self) -> float:
        return self.time_s - self.elapsed_s

    def usd(self, *, reads: float = 0, writes: float = 0, bytes_read: float = 0) -> float:
        """Price of requests and of bytes read, as far as the prices are known."""
        prices = self.prices
        return (
            reads * (prices.read_usd or 0.0)
            + writes * (prices.write_usd or 0.0)
            + cost.egress_usd(bytes_read, prices.egress_usd_per_gib or 0.0)
        )

    @property
    def spent_usd(self) -> float:
        return self.usd(reads=self.requests["read"], writes=self.requests["write"], bytes_read=self.bytes_read)

    def seconds(self, want_s: float, *, at_least_s: float = 0.5) -> float:
        """Time that a phase may take.

        Raises:
            Spent: Less than `at_least_s` is left.
        """
        if self.left_s < at_least_s:
            raise Spent(f"the time limit of {self.time_s:g} s is reached")
        return min(want_s, self.left_s)

    def allow(self, kind: Kind, want: int, size_bytes: int, *, share: float = 1.0) -> int:
        """Number of requests of `size_bytes` each that a phase may send: at most `want`, and at most as many as the
        share `share` of the remaining money and bytes allows.

        Raises:
            Spent: Not one more request fits.
        """
        one = self.usd(reads=kind == "read", writes=kind == "write", bytes_read=size_bytes if kind == "read" else 0)
        left_usd = self.budget_usd - self.spent_usd
        affordable = want if one <= 0 else int(share * left_usd / one)
        if affordable < 1:
            raise Spent(f"the budget of {self.budget_usd:g} USD is reached ({self.spent_usd:.4f} USD spent)")
        left_bytes = self.max_bytes - self.bytes_read - self.bytes_written
        fitting = want if size_bytes <= 0 else int(share * left_bytes / size_bytes)
        if fitting < 1:
            raise Spent(f"the limit of {self.max_bytes:,} bytes is reached")
        return min(want, affordable, fitting)

    def check(self, kind: Kind, requests: int, moved: int) -> None:
        """Check a running phase that has sent `requests` and moved `moved` bytes.

        Raises:
            Spent: The phase exceeds the budget, for example because the store refuses most of its requests.
        """
        extra = self.usd(
            reads=requests if kind == "read" else 0,
            writes=requests if kind == "write" else 0,
            bytes_read=moved if kind == "read" else 0,
        )
        if self.spent_usd + extra > self.budget_usd:
            raise Spent(f"the budget of {self.budget_usd:g} USD is reached ({self.spent_usd + extra:.4f} USD spent)")

    def count(self, kind: Kind, requests: int, moved: int) -> None:
        """Count the requests (all attempts) and bytes of a finished or cancelled phase."""
        self.requests[kind] += requests
        if kind == "read":
            self.bytes_read += moved
        else:
            self.bytes_written += moved

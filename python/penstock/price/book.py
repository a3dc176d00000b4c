# SPDX-License-Identifier: Apache-2.0
"""Price book: reads prices from TOML, each with its unit, date and source. Computes no costs."""

from __future__ import annotations

import re
from importlib import resources
from typing import TYPE_CHECKING, Literal

import msgspec

from penstock.errors import ConfigError

if TYPE_CHECKING:
    import datetime as dt

__all__ = ["Confidence", "Price", "PriceBook", "dates_line", "load"]

STALE_AFTER_MONTHS = 12
_MONTH = re.compile(r"^(20\d\d)-(0[1-9]|1[0-2])$")


Confidence = Literal["published", "derived", "unverified"]
"""The provider or a study prints it; arithmetic on such numbers; or a third party prints it."""


class Price(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One price in USD: `value / per` is the price of one `unit`."""

    item: str
    value: float
    unit: Literal["hour", "GiB-month", "GiB", "request"]
    region: str
    source: str
    as_of: str
    per: int = 1
    confidence: Confidence = "unverified"

    def __post_init__(self) -> None:
        if not _MONTH.match(self.as_of):
            raise ValueError(f"as_of of {self.item} is `{self.as_of}`, not YYYY-MM")
        if not (0 <= self.value < 1e6) or self.per < 1:
            raise ValueError(f"{self.item} costs {self.value} per {self.per}, which is not a valid price")
        if not self.source.strip() or not self.region.strip():
            raise ValueError(f"{self.item} has no source or no region")

    @property
    def usd_per_unit(self) -> float:
        """USD per unit."""
        return self.value / self.per

    def age_months(self, today: dt.date) -> int:
        """Whole months since `as_of`; 0 if `as_of` is in the future."""
        year, month = map(int, self.as_of.split("-"))
        return max(0, (today.year - year) * 12 + today.month - month)


class PriceBook(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All prices in one file."""

    schema_version: int
    price: tuple[Price, ...]

    def find(self, item: str, region: str | None = None) -> Price:
        """Return the price of `item` in `region`, or, without `region`, in the first region that the book lists.

        Raises:
            ConfigError: The book has no price for the item.
        """
        for row in self.price:
            if row.item == item and (region is None or region.casefold() in row.region.casefold()):
                return row
        known = sorted({row.item for row in self.price})
        where = f" in {region}" if region else ""
        raise ConfigError(f"the price book does not contain `{item}`{where}", hint=f"use one of {', '.join(known)}")


def load(text: str | None = None) -> PriceBook:
    """Read a price book from TOML text; without `text`, read the bundled price book.

    Raises:
        ConfigError: The text is not TOML, or a row lacks a unit, region, source or date.
    """
    if text is None:
        text = resources.files(__package__).joinpath("books", "prices.toml").read_text(encoding="utf-8")
    try:
        book = msgspec.toml.decode(text, type=PriceBook)
    except (msgspec.DecodeError, ValueError) as error:
        raise ConfigError(f"the price book cannot be read: {error}") from error
    if book.schema_version != 1:
        raise ConfigError(f"the price book has schema_version {book.schema_version}, but this build reads 1")
    return book


def dates_line(prices: list[Price], today: dt.date) -> str:
    """One sentence with the dates of the used prices, and a warning if any is older than 12 months.

    Example:
        >>> dates_line([], dt.date(2026, 1, 1))
        'no prices used'
    """
    if not prices:
        return "no prices used"
    months = sorted({p.as_of for p in prices})
    span = months[0] if len(months) == 1 else f"{months[0]} to {months[-1]}"
    old = [p for p in prices if p.age_months(today) > STALE_AFTER_MONTHS]
    if not old:
        return f"prices as of {span}"
    oldest = max(p.age_months(today) for p in old)
    return f"prices as of {span}; {len(old)} of {len(prices)} are older than {STALE_AFTER_MONTHS} months (oldest {oldest}): check them before you spend"

# SPDX-License-Identifier: Apache-2.0
"""Price book: reads prices from TOML, each with its unit, currency, date and source. Computes no costs."""

from __future__ import annotations

import difflib
import re
from importlib import resources
from typing import TYPE_CHECKING, Literal

import msgspec

from penstock.errors import ConfigError, NotFound
from penstock.price.override import own_file

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

__all__ = [
    "BOOKS",
    "CURRENCY",
    "STALE_AFTER_MONTHS",
    "Confidence",
    "Price",
    "PriceBook",
    "age_months",
    "bundled",
    "dates_line",
    "dates_text",
    "load",
    "own_prices",
    "parse",
    "read_prices",
    "to_toml",
]

STALE_AFTER_MONTHS = 12
CURRENCY = "USD"
"""Currency of the bundled prices and of all costs."""
BOOKS = ("machines.toml", "storage.toml", "egress.toml")
"""Files of the bundled price book."""
SCHEMA_VERSION = 1
_DATE = re.compile(r"^(20\d\d)-(0[1-9]|1[0-2])(-(0[1-9]|[12]\d|3[01]))?$")
_NEAREST = 5


Confidence = Literal["published", "derived", "unverified"]
"""`published`: the provider or a study printed the number. `derived`: it was computed from published numbers.
`unverified`: a third party printed it.
"""

Unit = Literal["hour", "GiB-month", "GiB", "request", "IOPS-month", "MBps-month"]


class Price(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One price: `value / per` is the price of one `unit`.

    Attributes:
        item: Name of the item, such as `azure-hot-read`.
        region: Names of the regions in which the price applies, separated by commas.
        as_of: Date of the price, YYYY-MM or YYYY-MM-DD.
        currency: ISO 4217 code.
    """

    item: str
    value: float
    unit: Unit
    region: str
    source: str
    as_of: str
    per: int = 1
    confidence: Confidence = "unverified"
    currency: str = CURRENCY

    def __post_init__(self) -> None:
        if not self.item.strip():
            raise ValueError("a price has no item")
        if not _DATE.match(self.as_of):
            raise ValueError(f"as_of of {self.item} is `{self.as_of}`, not YYYY-MM or YYYY-MM-DD")
        if not (0 <= self.value < 1e6) or self.per < 1:
            raise ValueError(f"{self.item} costs {self.value} per {self.per}, which is not a valid price")
        if not self.source.strip() or not self.region.strip():
            raise ValueError(f"{self.item} has no source or no region")
        if not re.fullmatch(r"[A-Z]{3}", self.currency):
            raise ValueError(f"currency of {self.item} is `{self.currency}`, not a code such as USD")

    @property
    def usd_per_unit(self) -> float:
        """USD per unit.

        Raises:
            ConfigError: The price is in another currency.
        """
        if self.currency != CURRENCY:
            raise _mixed(self)
        return self.value / self.per

    def age_months(self, today: dt.date) -> int:
        """Whole months since `as_of`; 0 if `as_of` is in the future."""
        return age_months(self.as_of, today)

    def holds_in(self, region: str) -> bool:
        """Whether `region` is exactly one of the price's regions. Case, spaces and hyphens do not matter."""
        return _plain(region) in {_plain(name) for name in self.region.split(",")}


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]", "", name.casefold())


def _mixed(price: Price) -> ConfigError:
    return ConfigError(
        f"{price.item} is priced in {price.currency}, but all other prices and the costs are in {CURRENCY}: "
        "two currencies cannot be added",
        hint=f"convert the price to {CURRENCY}, and state the exchange rate in `source`",
    )


class PriceBook(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All prices, in order of precedence: if an item has several prices for a region, the first price applies."""

    schema_version: int
    price: tuple[Price, ...] = ()

    def find(self, item: str, region: str | None = None) -> Price:
        """Return the price of `item` in `region`, or, without `region`, in the first region that the book lists.

        Args:
            region: Name of a region, or a part of the name if no region has exactly this name.
        Raises:
            ConfigError: The book has no price for the item in this region, or `region` is a part of the names of
                several regions with different prices.
        """
        rows = [row for row in self.price if row.item == item]
        if not rows:
            raise ConfigError(f"the price book does not contain `{item}`", hint=self._nearest(item))
        if region is None:
            return rows[0]
        part = _plain(region)
        found = next((row for row in rows if row.holds_in(region)), None)
        if found is None and (near := [row for row in rows if part in _plain(row.region)]):
            if len({(row.value / row.per, row.unit, row.currency) for row in near}) > 1:
                names = "; ".join(dict.fromkeys(row.region for row in near))
                raise ConfigError(f"{region} is the name of several regions of `{item}`", hint=f"use one of {names}")
            return near[0]
        if found is None:
            listed = "; ".join(dict.fromkeys(row.region for row in rows))
            raise ConfigError(
                f"the price book does not contain `{item}` in {region}",
                hint=f"use a region that it lists ({listed}), or add the price to your own file (penstock --prices FILE)",
            )
        return found

    def has(self, item: str) -> bool:
        """Whether the book has a price of `item` in any region."""
        return any(row.item == item for row in self.price)

    def _nearest(self, item: str) -> str:
        known = sorted({row.item for row in self.price})
        near = difflib.get_close_matches(item.casefold(), known, n=_NEAREST, cutoff=0.5)
        words = {word for word in re.split(r"[-_. ]", item.casefold()) if len(word) > 2}
        near += [name for name in known if name not in near and words & set(re.split(r"[-_.]", name))]
        names = ", ".join(near[:_NEAREST])
        more = "`penstock config prices show` lists all items"
        return f"the nearest names are {names}; {more}" if names else more


def parse(text: str, place: str = "the price book") -> PriceBook:
    """Read a price book from TOML text.

    Raises:
        ConfigError: The text is not TOML, a row lacks a unit, region, source or date, or a currency is not USD.
    """
    try:
        book = msgspec.toml.decode(text, type=PriceBook)
    except (msgspec.DecodeError, ValueError) as error:
        raise ConfigError(f"{place} cannot be read: {error}", where=place) from error
    if book.schema_version != SCHEMA_VERSION:
        raise ConfigError(
            f"{place} has schema_version {book.schema_version}, but this build reads {SCHEMA_VERSION}", where=place
        )
    for price in book.price:
        if price.currency != CURRENCY:
            raise _mixed(price)
    return book


def bundled() -> PriceBook:
    """Return the price book of this build, without the user's own prices."""
    folder = resources.files(__package__).joinpath("books")
    books = [parse(folder.joinpath(name).read_text(encoding="utf-8"), f"the bundled {name}") for name in BOOKS]
    return PriceBook(SCHEMA_VERSION, tuple(price for book in books for price in book.price))


def load(text: str | None = None) -> PriceBook:
    """Read a price book from TOML text; without `text`, read the bundled book, with the user's own prices in front.

    Raises:
        ConfigError: The text or the user's file is not a valid price book.
    """
    if text is not None:
        return parse(text)
    return PriceBook(SCHEMA_VERSION, (*own_prices(), *bundled().price))


def own_prices(environment: Mapping[str, str] | None = None) -> tuple[Price, ...]:
    """Read the user's prices; none if the user has no price file.

    Raises:
        NotFound: The named file does not exist.
        ConfigError: The file is not a valid price book, or has prices in another currency than the bundled one.
    """
    file = own_file(environment)
    return () if file is None else read_prices(file)


def read_prices(file: Path) -> tuple[Price, ...]:
    """Read the prices of a file.

    Raises:
        NotFound: The file does not exist.
        ConfigError: The file is not a valid price book, or has prices in another currency than the bundled one.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        hint = "give an existing file with --prices, or write one with `penstock config prices refresh`"
        raise NotFound(f"price file {file} does not exist", hint=hint) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"price file {file} cannot be read: {error}", where=str(file)) from error
    return parse(text, str(file)).price


def dates_line(prices: Sequence[Price], today: dt.date) -> str:
    """One sentence with the dates of the used prices, and a warning if any is older than 12 months.

    Example:
        >>> dates_line([], dt.date(2026, 1, 1))
        'no prices used'
    """
    return dates_text([price.as_of for price in prices], today)


def dates_text(dates: Sequence[str], today: dt.date) -> str:
    """The sentence of `dates_line` for prices of which only the dates are known, as in old results."""
    if not dates:
        return "no prices used"
    days = sorted(set(dates))
    span = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    ages = [age_months(day, today) for day in dates]
    old = [age for age in ages if age > STALE_AFTER_MONTHS]
    if not old:
        return f"prices as of {span}"
    which = "all" if len(old) == len(dates) else f"{len(old)} of {len(dates)}"
    age = f"older than {STALE_AFTER_MONTHS} months (oldest: {max(old)} months)"
    return f"prices as of {span}, {which} {age}: check them before you spend"


def age_months(as_of: str, today: dt.date) -> int:
    """Whole months since a date YYYY-MM or YYYY-MM-DD; 0 if it is in the future."""
    year, month = map(int, as_of.split("-")[:2])
    return max(0, (today.year - year) * 12 + today.month - month)


def to_toml(prices: Iterable[Price], comment: str = "") -> str:
    """Format prices as the text of a price book, with a comment above them."""
    lines = [f"# {line}" for line in comment.splitlines()]
    lines.append(f"schema_version = {SCHEMA_VERSION}")
    for price in prices:
        plain: dict[str, object] = msgspec.to_builtins(price)
        lines += ["", "[[price]]", *(f"{key} = {_value(value)}" for key, value in plain.items())]
    return "\n".join(lines) + "\n"


def _value(value: object) -> str:
    # JSON strings without non-ASCII escapes are valid TOML basic strings.
    return msgspec.json.encode(value).decode() if isinstance(value, str) else repr(value)

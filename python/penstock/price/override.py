# SPDX-License-Identifier: Apache-2.0
"""The user's own price file: where it is, and its content after a refresh. `book` reads it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from penstock.config import user_folder
from penstock.env import read

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from penstock.price.book import Price, PriceBook

__all__ = ["VARIABLE", "default_file", "own_file", "with_refreshed"]

VARIABLE = "PENSTOCK_PRICES"
"""Variable with the path of the user's price file; `penstock --prices FILE` sets it for one command."""


def default_file(environment: Mapping[str, str]) -> Path | None:
    """Return the default path of the user's price file: `prices.toml` in the folder of the user's settings. None if the
    user has no home folder.
    """
    folder = user_folder(environment)
    return folder / "prices.toml" if folder else None


def own_file(environment: Mapping[str, str] | None = None) -> Path | None:
    """Return the user's price file: the file that PENSTOCK_PRICES names, otherwise the default file. None if the
    default file does not exist.

    An empty PENSTOCK_PRICES also gives None, so that a run can use the bundled prices alone.
    """
    environment = read() if environment is None else environment
    named = environment.get(VARIABLE)
    if named is not None:
        return Path(named) if named else None
    file = default_file(environment)
    return file if file is not None and file.is_file() else None


def with_refreshed(
    before: Sequence[Price], refreshed: Iterable[Price], source: str, bundled: PriceBook
) -> tuple[Price, ...]:
    """Return the content of a price file after a refresh.

    Prices that the user wrote come first. The refreshed prices replace the prices of earlier refreshes. Prices that
    this refresh did not request are kept. Per item, the region that is the default in the bundled book comes first, so
    that a refresh does not change the default region.

    Args:
        before: Prices in the file so far.
        source: Start of the `source` of refreshed prices.
    """
    new = list(refreshed)
    renewed = {(price.item, price.region) for price in new}
    written = [price for price in before if not price.source.startswith(source)]
    stale = [price for price in before if price.source.startswith(source)]
    new += [price for price in stale if (price.item, price.region) not in renewed]

    def is_not_default(price: Price) -> bool:
        return not (bundled.has(price.item) and bundled.find(price.item).holds_in(price.region))

    return (*written, *sorted(new, key=lambda price: (price.item, is_not_default(price))))

# SPDX-License-Identifier: Apache-2.0
"""The user's own prices: finds and reads the file that takes precedence over the bundled price book."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from penstock.config import user_folder
from penstock.env import read
from penstock.errors import ConfigError, NotFound
from penstock.price.book import parse

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.price.book import Price

__all__ = ["VARIABLE", "default_file", "own_file", "own_prices"]

VARIABLE = "PENSTOCK_PRICES"
"""Variable with the path of the user's price file; `penstock --prices FILE` sets it for one command."""


def default_file(environment: Mapping[str, str]) -> Path | None:
    """Return the place of the user's price file without the variable: `prices.toml` in the folder of the user's
    settings; None if the user has no home folder.
    """
    folder = user_folder(environment)
    return folder / "prices.toml" if folder else None


def own_file(environment: Mapping[str, str] | None = None) -> Path | None:
    """Return the user's price file: that of PENSTOCK_PRICES, otherwise the default one if it exists; else None.

    An empty PENSTOCK_PRICES means none, so that a run can use the bundled prices alone.
    """
    environment = read() if environment is None else environment
    named = environment.get(VARIABLE)
    if named is not None:
        return Path(named) if named else None
    file = default_file(environment)
    return file if file is not None and file.is_file() else None


def own_prices(environment: Mapping[str, str] | None = None) -> tuple[Price, ...]:
    """Read the user's prices; none if the user has no price file.

    Raises:
        NotFound: The named file does not exist.
        ConfigError: The file is not a valid price book, or has prices in another currency than the bundled one.
    """
    file = own_file(environment)
    if file is None:
        return ()
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        hint = "give an existing file with --prices, or write one with `penstock config prices refresh`"
        raise NotFound(f"price file {file} does not exist", hint=hint) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"price file {file} cannot be read: {error}", where=str(file)) from error
    return parse(text, str(file)).price

# SPDX-License-Identifier: Apache-2.0
"""Checks fields with a default, which would otherwise hide a misspelt column."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock import env
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock import _native
    from penstock.feed.fields import FieldSpec

__all__ = ["refuse_unknown"]


def refuse_unknown(
    source: _native.Source, requested: Iterable[tuple[str, FieldSpec]], known: set[tuple[str, ...]]
) -> None:
    """Raise ConfigError if a field has a default, and no file has a column that it can be read from. Does nothing for
    formats that do not list their columns. `known` holds the columns that were found before.
    """
    asked = {
        tuple(getattr(spec, "parts", ()) or (name,)): name
        for name, spec in requested
        if getattr(spec, "default", None) is not None
    }
    wanted = [parts for parts in asked if parts not in known]
    if not wanted:
        return
    unknown = source.unknown_columns(wanted, dict(env.read()))
    if unknown:
        parts = wanted[unknown[0]]
        raise ConfigError(
            f"fields: {asked[parts]} is read from `{'`, `'.join(parts)}`, but no file of {source.url} has this column",
            where="fields",
            hint="compare the name with schema()",
        )
    known.update(wanted)

# SPDX-License-Identifier: Apache-2.0
"""Checks fields with a default, because a default would hide a misspelt column name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock import env
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.feed.dataset import Dataset

__all__ = ["refuse_unknown"]


def refuse_unknown(datasets: Sequence[Dataset]) -> None:
    """Raise ConfigError if a field has a default but no file of these datasets has a column for the field. Formats that
    do not list their columns are not checked. All datasets must have the same fields.
    """
    asked = {
        tuple(getattr(spec.unpadded, "parts", ()) or (name,)): name
        for name, spec in datasets[0].specs
        if getattr(spec.unpadded, "default", None) is not None
    }
    left = [parts for parts in asked if not any(parts in dataset.known_columns for dataset in datasets)]
    for dataset in datasets:
        if left:
            left = [left[at] for at in dataset.source.unknown_columns(left, dict(env.read()))]
    if left:
        url = datasets[0].source.url
        others = f" and of {len(datasets) - 1} other datasets" if len(datasets) > 1 else ""
        raise ConfigError(
            f"fields: {asked[left[0]]} is read from `{'`, `'.join(left[0])}`, but no file of {url}{others} has this column",
            where="fields",
            hint="compare the name with schema()",
        )
    for dataset in datasets:
        dataset.known_columns.update(asked)

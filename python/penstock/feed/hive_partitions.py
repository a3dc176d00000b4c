# SPDX-License-Identifier: Apache-2.0
"""Hive partitions (`year=2024/part-0.parquet`): finds columns that exist only in folder names, so that no field can
read them.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from penstock.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from penstock import _native
    from penstock.feed.fields import FieldSpec

__all__ = ["columns", "refuse"]

_MAX_SHOWN = 3


def columns(source: _native.Source) -> dict[str, str]:
    """Return the partition columns of a Parquet dataset, each with the reason why no field can read it."""
    if json.loads(source.format)["name"] != "parquet" or "=" not in source.key(0).rpartition("/")[0]:
        return {}
    found: dict[str, set[str]] = {}
    for folder in {source.key(number).rpartition("/")[0] for number in range(source.objects)}:
        for part in folder.split("/"):
            name, mark, value = part.partition("=")
            if name and mark:
                found.setdefault(name, set()).add(value)
    return {name: _reason(name, sorted(values)) for name, values in found.items()}


def refuse(
    source: _native.Source, requested: Iterable[tuple[str, FieldSpec]], held: Callable[[], Iterable[str]]
) -> None:
    """Raise ConfigError if a field requires a partition column that the files lack. `held` returns the columns of the
    files.
    """
    partitions = columns(source)
    for name, spec in requested:
        parts: tuple[str, ...] = getattr(spec, "parts", ()) or (name,)
        column = next((part for part in parts if part in partitions), None)
        if column is not None and not set(parts) & set(held()):
            raise ConfigError(
                f"fields: {name} cannot be read from `{column}`, which is {partitions[column]}",
                where="fields",
                hint=f"open the folders of each value (`{column}=VALUE/**`), and combine them with penstock.mix",
            )


def _reason(name: str, values: list[str]) -> str:
    shown = ", ".join(f"`{name}={value}`" for value in values[:_MAX_SHOWN]) + (
        ", …" if len(values) > _MAX_SHOWN else ""
    )
    return f"a Hive partition of {len(values):,} values ({shown}), stored in the folder names and not in the files"

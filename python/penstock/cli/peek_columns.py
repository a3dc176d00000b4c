# SPDX-License-Identifier: Apache-2.0
"""Compares the columns of some objects of a dataset, for `penstock peek`, because schemas can differ between files."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from penstock.errors import BudgetExceeded, ConfigError, Corrupt, Unsupported

if TYPE_CHECKING:
    from penstock.feed.dataset import Dataset, Schema
    from penstock.feed.fields import FieldSpec

__all__ = ["compare", "of_object", "partitions"]

_FORMATS = ("arrow", "csv", "jsonl", "parquet")
_TABLES = ("arrow", "parquet")

_MAX_OBJECTS = 8

_MAX_BYTES = 64 << 20
"""Maximum number of stored bytes to read from objects after the first."""

_START_BYTES = 16 << 20
"""Number of stored bytes that are read to find the schema of a text object, if the first record is not longer (`STEP`
in the core).
"""

_MISSING = "missing"

_TIME = re.compile(r"((?:timestamp|date|time|duration)\[[^\]]*\]), ")
"""Start of the description of a column whose numbers are times."""

_SOME_NULLS = "; a value in "
"""Text between the type of a column and the number of records that have a value, if some records have none."""

_PARTITION = "a Hive partition in the folder names"
"""Text after the type of a column whose values come from folder names."""


def of_object(dataset: Dataset, number: int) -> Dataset:
    """Return the dataset of one object."""
    return replace(dataset, source=dataset.source.subset([number]), _counts=type(dataset._counts)())  # noqa: SLF001


def partitions(key: str, schema: Schema) -> dict[str, str]:
    """Return the value of each partition column for an object, as text from its folder names; `missing` if no folder
    has the column. The type of a partition column, and whether all objects have the column, are known only for the
    whole dataset.
    """
    named = (folder.split("=", 1) for folder in key.split("/")[:-1] if "=" in folder)
    folders = {unquote(name): unquote(value) for name, value in named}
    found = zip(schema.specs, schema.holds, strict=True)
    return {name: folders.get(name, _MISSING) for (name, _), holds in found if holds.endswith(_PARTITION)}


def compare(dataset: Dataset) -> dict[str, Any] | None:
    """Compare the columns of the first object, the last and some between; None for formats without columns.

    Returns:
        `objects` is the number of compared objects. `differing` lists the columns whose types differ, that some
        objects lack, or that have nulls in some objects only, with the number of objects by type, the number of
        objects with nulls, and the key of an object that differs from the first. `only_nulls` lists the objects that
        have no value. `unreadable` lists the objects whose columns cannot be read, with the reason. `too_large` is the
        number of objects that were left out because of their size.
    """
    source = dataset.source
    if dataset.format not in _FORMATS or source.fields is not None:
        return None
    whole = dataset.schema()
    partition_types = {
        name: str(spec)
        for (name, spec), holds in zip(whole.specs, whole.holds, strict=True)
        if holds.endswith(_PARTITION)
    }
    kinds: dict[str, dict[str, str]] = {}
    nulls: dict[str, set[str]] = {}
    unreadable, only_nulls = _without_bytes(dataset), []
    chosen, too_large = _chosen(dataset)
    for number in chosen:
        key = source.key(number)
        try:
            schema = of_object(dataset, number).schema()
        except ConfigError:  # the object has no record
            continue
        except (BudgetExceeded, Corrupt, Unsupported) as error:
            if "no value has a known type" in str(error):
                only_nulls.append(key)
            else:
                unreadable.append({"object": key, "reason": str(error)})
            continue
        folders = partitions(key, schema)
        kinds[key] = _kinds(schema) | {
            name: partition_types.get(name, str(spec))
            for name, spec in schema.specs
            if folders.get(name, _MISSING) != _MISSING
        }
        found = zip(schema.specs, schema.holds, strict=True)
        nulls[key] = {name for (name, _), holds in found if _SOME_NULLS in holds}
    differing = []
    for name in dict.fromkeys(name for columns in kinds.values() for name in columns):
        types = [columns.get(name, _MISSING) for columns in kinds.values()]
        has_nulls = [name in nulls[key] for key in kinds]
        first, *others = zip(types, has_nulls, kinds, strict=True)
        other = next((key for *facts, key in others if facts != [*first[:2]]), None)
        if other is not None:
            counts = {kind: types.count(kind) for kind in types}
            differing.append({"name": name, "objects": counts, "nulls": sum(has_nulls), "first_other": other})
    return {
        "objects": len(kinds),
        "differing": differing,
        "only_nulls": only_nulls,
        "unreadable": unreadable,
        "too_large": too_large,
    }


def _without_bytes(dataset: Dataset) -> list[dict[str, str]]:
    """Return the first object of 0 bytes, and why it cannot be read. (In text formats, an object of 0 bytes is valid
    and has no records.)
    """
    source = dataset.source
    empty = [number for number in range(source.objects) if not source.object_bytes(number)]
    if dataset.format not in _TABLES or not empty:
        return []
    others = f" (the first of {len(empty):,} such objects)" if len(empty) > 1 else ""
    return [{"object": source.key(empty[0]), "reason": f"it has 0 bytes{others}"}]


def _chosen(dataset: Dataset) -> tuple[list[int], int]:
    """Return the numbers of the objects to compare: the first, the last and some at equal distances, in this order of
    preference. Objects are left out if the bytes to read after the first object would exceed the limit. Also return the
    number of objects that are left out.
    """
    source, is_table = dataset.source, dataset.format in _TABLES
    filled = [number for number in range(source.objects) if source.object_bytes(number)]
    last, left, chosen = len(filled) - 1, _MAX_BYTES, filled[:1]
    spread = {round(at * last / (_MAX_OBJECTS - 1)) for at in range(1, _MAX_OBJECTS)} - {0}
    for at in (*sorted(spread)[-1:], *sorted(spread)[:-1]):
        size = source.object_bytes(filled[at])
        left -= size if is_table else min(size, _START_BYTES)
        if left < 0:
            break
        chosen.append(filled[at])
    return sorted(chosen), len(spread) + 1 - len(chosen)


def _kinds(schema: Schema) -> dict[str, str]:
    """Return the type of each column of a file; Hive partitions are not columns of a file."""
    found = zip(schema.specs, schema.holds, strict=True)
    kinds = {name: _kind(spec, holds) for (name, spec), holds in found if not holds.endswith(_PARTITION)}
    return kinds | {
        name: "only nulls" if reason.startswith("null or empty") else "without a type"
        for name, reason in schema.left_out
    }


def _kind(spec: FieldSpec, holds: str) -> str:
    """Return the stored type of a column, without its nullability. (The kind of the proposed field also depends on
    nullability.)
    """
    from penstock.feed.fields import RaggedSpec

    holds = holds.partition(_SOME_NULLS)[0]
    time = _TIME.match(holds)
    if time is not None:
        holds = holds[time.end() :]
    kind = str(spec).partition(", default ")[0]
    if isinstance(spec, RaggedSpec) and holds == f"{spec.dtype} {list(spec.shape)}":
        kind = holds  # a list of at most one value, because the column has nulls
    elif kind == "bytes" and (text := re.match(r"a (text|JSON text) of ", holds)):
        kind = text[1]
    if time is None:
        return kind
    return f"{kind} of {time[1]}" if kind.startswith("ragged") else time[1]

# SPDX-License-Identifier: Apache-2.0
"""Raw fields that contain the whole record: finds such fields in a dataset, and rejects them for formats whose records
consist of separate parts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError, Corrupt
from penstock.feed.fields import RawSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.feed.dataset import Dataset

__all__ = ["resolve", "sole_name"]

_NAME = "record"

_OF_PARTS = ("tar", "arrow", "parquet", "zarr", "hdf5")
"""Formats whose records consist of separate parts. A whole record is not stored as one sequence of bytes."""

_MAX_SHOWN = 12


def resolve(dataset: Dataset) -> dict[str, Any]:
    """Return the fields that were set for the dataset. If no part has the name `record`, `record=raw()` is replaced by
    `record=raw(record=True)`.

    Raises:
        ConfigError: A field is the whole record, but records of this format consist of separate parts.
    """
    fields: dict[str, Any] = dict(dataset.specs)
    is_of_parts = dataset.format in _OF_PARTS
    for name, spec in fields.items():
        if is_of_parts and isinstance(spec, RawSpec) and (spec.record or (name == _NAME and not spec.parts)):
            schema = dataset.schema()
            parts = [part for part, _ in (*schema.specs, *schema.left_out)]
            if not spec.record and (_NAME in parts or spec.default is not None):
                continue
            shown = ", ".join(f"`{part}`" for part in parts[:_MAX_SHOWN]) + (", …" if len(parts) > _MAX_SHOWN else "")
            raise ConfigError(
                f"fields: {name} is the whole record, but records of {dataset.format} consist of separate parts: {shown}",
                where="fields",
                hint=f'name a part: {name}=penstock.raw().of("{(schema.specs or schema.left_out)[-1][0]}")',
            )
    if fields.get(_NAME) == RawSpec() and not is_of_parts:
        try:
            schema = dataset.schema()
        except Corrupt:  # the whole record is delivered even if its content is damaged
            return {**fields, _NAME: RawSpec(record=True)}
        of_part = dict(schema.specs).get(_NAME)
        is_whole = of_part is None or getattr(of_part, "record", False) or dataset.format == "files"
        if is_whole and _NAME not in dict(schema.left_out):
            fields[_NAME] = RawSpec(record=True)
    return fields


def sole_name(fields: Mapping[str, Any]) -> str | None:
    """Return the name of the only field if this field is the whole record, otherwise None."""
    ((name, spec),) = fields.items() if len(fields) == 1 else (("", None),)
    return name if getattr(spec, "record", False) else None

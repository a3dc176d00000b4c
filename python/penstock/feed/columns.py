# SPDX-License-Identifier: Apache-2.0
"""Converts the columns of a batch to a framework's types: arrays for fixed fields, `Ragged` and lists of `bytes` for
others.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from penstock import _native

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["Ragged", "adapt", "byte_rows", "rows"]


class Ragged(NamedTuple):
    """A field whose samples differ in length: sample i is `values[offsets[i]:offsets[i + 1]]`."""

    values: Any
    offsets: Any


def adapt(columns: Mapping[str, Any], array: Callable[[_native.Tensor], Any]) -> dict[str, Any]:
    """Convert native tensors with `array`, without a copy. Only raw fields are copied, to lists of `bytes`."""
    return {name: _column(column, array) for name, column in columns.items()}


def _column(column: Any, array: Callable[[_native.Tensor], Any]) -> Any:
    if isinstance(column, list):  # the result of a `map` function
        return column
    if not isinstance(column, _native.RaggedTensor):
        return array(column)
    if not column.is_bytes:
        return Ragged(array(column.values), array(column.offsets))
    return byte_rows(column)


def byte_rows(column: _native.RaggedTensor) -> list[Any]:
    """Return the `bytes` of each row of a raw field; for a list of byte strings, return a list for each row."""
    # Tensors support the buffer protocol, but type checkers know this protocol only from Python 3.12 on.
    values = memoryview(cast("Any", column.values))
    offsets = memoryview(cast("Any", column.offsets)).tolist()
    if column.strings is None:
        return [values[start:end].tobytes() for start, end in pairwise(offsets)]
    bounds = memoryview(cast("Any", column.strings)).tolist()
    strings = [values[start:end].tobytes() for start, end in pairwise(bounds)]
    return [strings[start:end] for start, end in pairwise(offsets)]


def rows(batch: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
    """Convert a batch that `adapt` returned to one dict per sample."""

    def row(column: Any, at: int) -> Any:
        if isinstance(column, Ragged):
            return column.values[int(column.offsets[at]) : int(column.offsets[at + 1])]
        return column[at]

    return [{name: row(column, at) for name, column in batch.items()} for at in range(count)]

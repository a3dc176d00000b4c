# SPDX-License-Identifier: Apache-2.0
"""Converts the columns of a batch to a framework's types. Fields of fixed shape become arrays; other fields become
`Ragged`, or lists of `bytes` or `str`.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from penstock import _native

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["Ragged", "adapt", "byte_rows", "ragged", "rows", "string_rows"]


class Ragged(NamedTuple):
    """Column whose samples differ in length: sample i is `values[offsets[i]:offsets[i + 1]]`.

    `len(field)` is the number of samples, and `field[i]` is sample i. `field[i:j]` is a `Ragged` of these samples, and
    `field[index]`, for a boolean mask or integers, is a `Ragged` of the chosen samples. Slices of step 1 are views; all
    other results are copies. Iteration and unpacking give `values` and `offsets`.

    For lists of lists, `values` is a `Ragged` of the inner lists. Sample i consists of the inner lists `offsets[i]` to
    `offsets[i + 1] - 1`.
    """

    values: Any
    offsets: Any

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.offsets) - 1

    def __getitem__(self, index: Any) -> Any:
        """Return one sample, as `row` does. For a slice, a boolean mask or integers, return a `Ragged` of these
        samples.

        Raises:
            IndexError: There are fewer samples, or the mask has another length.
        """
        if isinstance(index, slice):
            rows = range(len(self))[index]
            if rows.step == 1:
                return _between(self, rows.start, max(rows.start, rows.stop))
        elif not isinstance(index, list) and not getattr(index, "ndim", 0):
            return self.row(index)
        return _chosen(self, index)

    @property
    def flat_values(self) -> Any:
        """Items of the innermost lists, concatenated."""
        return self.values.flat_values if isinstance(self.values, Ragged) else self.values

    @property
    def nested_offsets(self) -> tuple[Any, ...]:
        """Offsets of each level of lists, the outermost level first."""
        return (self.offsets, *(self.values.nested_offsets if isinstance(self.values, Ragged) else ()))

    def row(self, index: int) -> Any:
        """Return one sample: an array of its items or, for lists of lists, a `Ragged` of its lists. -1 is the last
        sample.

        Raises:
            IndexError: There are fewer samples.
        """
        index = range(len(self))[index]
        return _between(self.values, int(self.offsets[index]), int(self.offsets[index + 1]))

    def to_list(self) -> list[Any]:
        """Return the samples as Python lists."""
        values = self.values.to_list() if isinstance(self.values, Ragged) else self.values.tolist()
        return [values[start:end] for start, end in pairwise(self.offsets.tolist())]


# Needed for `_replace`: the default `_make` requires that `len` returns the number of fields of the tuple.
Ragged._make = classmethod(lambda cls, parts: cls(*parts))  # type: ignore[method-assign, assignment]


def _between(values: Any, start: int, end: int) -> Any:
    if not isinstance(values, Ragged):
        return values[start:end]
    offsets = values.offsets[start : end + 1]
    return Ragged(_between(values.values, int(offsets[0]), int(offsets[-1])), offsets - offsets[0])


def _chosen(field: Ragged, index: Any) -> Ragged:
    """Return a copy of the samples that an index of NumPy or torch chooses."""
    import numpy as np

    # torch's tensors can be on a device.
    index, offsets = (each.cpu().numpy() if hasattr(each, "cpu") else each for each in (index, field.offsets))
    rows = np.arange(len(field))[index]
    lengths = np.diff(offsets)[rows]
    ends = np.concatenate([[0], np.cumsum(lengths)])
    items = np.repeat(offsets[rows] - ends[:-1], lengths) + np.arange(ends[-1])
    if hasattr(field.offsets, "new_tensor"):
        items, ends = field.offsets.new_tensor(items), field.offsets.new_tensor(ends)
    return Ragged(field.values[items], ends)


def adapt(columns: Mapping[str, Any], array: Callable[[_native.Tensor], Any]) -> dict[str, Any]:
    """Convert native tensors with `array`, without a copy. Raw and text fields are copied to lists."""
    return {name: _column(column, array) for name, column in columns.items()}


def _column(column: Any, array: Callable[[_native.Tensor], Any]) -> Any:
    if isinstance(column, list):  # the result of a `map` function
        return column
    if isinstance(column, Ragged):  # the result of `tokenize`
        return Ragged(array(column.values), array(column.offsets))
    if not isinstance(column, _native.RaggedTensor):
        return array(column)
    return string_rows(column) if column.is_bytes else ragged(column, array)


def string_rows(column: _native.RaggedTensor) -> list[Any]:
    """Return the `str` of each row of a text field, or the `bytes` of each row of a raw field. If the field contains
    lists of texts or bytes, return nested lists.
    """
    if not column.is_text:
        return byte_rows(column)
    return _grouped(column.texts(), column)


def ragged(column: _native.RaggedTensor, array: Callable[[_native.Tensor], Any]) -> Ragged:
    """Convert a native ragged column of numbers with `array`, without a copy."""
    inner, *outer = reversed(column.offsets)
    made = Ragged(array(column.values), array(inner))
    for offsets in outer:
        made = Ragged(made, array(offsets))
    return made


def byte_rows(column: _native.RaggedTensor) -> list[Any]:
    """Return the `bytes` of each row of a raw field. For a field of lists of byte strings, return one nested list per
    row.
    """
    # Tensors support the buffer protocol, but type checkers know this protocol only from Python 3.12 on.
    values = memoryview(cast("Any", column.values))
    ends = memoryview(cast("Any", column.offsets[-1])).tolist()
    return _grouped([values[start:end].tobytes() for start, end in pairwise(ends)], column)


def _grouped(strings: list[Any], column: _native.RaggedTensor) -> list[Any]:
    """Group the strings of a column into the lists of each row."""
    for offsets in reversed(column.offsets[:-1]):
        strings = [strings[start:end] for start, end in pairwise(memoryview(cast("Any", offsets)).tolist())]
    return strings


def rows(batch: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Convert a batch that `adapt` returned to one dict per sample."""
    count = len(next(iter(batch.values()), ()))
    return [{name: column[at] for name, column in batch.items()} for at in range(count)]

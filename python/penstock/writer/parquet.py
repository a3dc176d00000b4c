# SPDX-License-Identifier: Apache-2.0
"""Encoder of Parquet, with pyarrow. Samples are collected in columns, and a worker thread encodes the file of a shard.

An array is stored as a list of its elements in C order. If the schema contains the shape, the list has a fixed size.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock import _native
from penstock.errors import BudgetExceeded, Corrupt
from penstock.extras import require
from penstock.feed.fields import FieldSpec, NestedSpec, TensorSpec

require('penstock.write(format="parquet")', "parquet")

import pyarrow as pa  # noqa: E402 - pyarrow is there now
import pyarrow.parquet as pq  # noqa: E402 - as above

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Literal

    from penstock.writer.settings import Statistics
    from penstock.writer.values import Field, Fields

__all__ = ["ParquetEncoder"]

_GROUP_BYTES = 16 << 20
"""Target size in bytes of the values in a row group. A reader always decodes whole columns of a row group."""

_LARGE = 1024
"""Minimum mean size in bytes of a column's values at which the column is written without a dictionary."""

_MAX_LIST = 2**31 - 1
"""Maximum number of elements of a column in one shard, because Arrow's offsets have 32 bits."""


class _Column:
    """Values of one field in a shard. Array elements are copied into one buffer."""

    def __init__(self, field: Field) -> None:
        self.field = field
        self.values: list[Any] = []
        self.elements = bytearray()
        self.sizes: list[int] = []
        self.nbytes = 0

    def add(self, value: Any) -> None:
        if value is None:
            size = 0
            self.values.append(None)
        elif self.field.kind == "array":
            size = value.nbytes
            self.values.append(value.size)
            self.elements += value.reshape(-1).view("u1").data
        else:
            size = _size(value)
            self.values.append(value)
        self.sizes.append(size)
        self.nbytes += size

    def arrays(self, rows: int) -> Iterator[pa.Array]:
        """Yield the column as Arrow arrays of `rows` values each. Values are copied for one array at a time, because
        allocating memory for the whole column takes longer than the copy.
        """
        starts = range(0, len(self.values), rows)
        if self.field.kind == "array":
            whole = self._elements()
            yield from (whole.slice(start, rows) for start in starts)
            return
        for start in starts:
            values = self.values[start : start + rows]
            if self.field.dtype == "bool" and self.field.kind == "int":
                values = [None if value is None else bool(value) for value in values]
            if self.field.kind == "nested":
                values = [_split(value) for value in values]
            made = pa.array(values, type=_read_type(self.field), memory_pool=pa.system_memory_pool())
            yield made if self.field.element is None else self._cast(made, _type(self.field))

    def _cast(self, made: pa.Array, to: pa.DataType) -> pa.Array:
        try:
            return made.cast(to)
        except pa.ArrowInvalid as error:
            raise Corrupt(f"write: `{self.field.name}` has a value that is not {to}: {error}") from None

    def _elements(self) -> pa.Array:
        """Return a column of arrays as one Arrow array."""
        values = self.values
        flat = pa.array(np.frombuffer(self.elements, self.field.dtype))
        if self.field.element is not None:
            flat = self._cast(flat, self.field.element)
        if len(flat) > _MAX_LIST:
            raise BudgetExceeded(
                f"write: `{self.field.name}` has {len(flat):,} elements in one shard, more than {_MAX_LIST:,}",
                hint="lower shard_bytes",
            )
        if self.field.shape == () and not self.field.is_ragged:
            is_there = np.array([value is not None for value in values])
            return flat if is_there.all() else flat.take(pa.array(np.cumsum(is_there) - 1, mask=~is_there))
        is_null = np.array([value is None for value in values])
        counts = np.array([value or 0 for value in values], np.int64)
        if pa.types.is_fixed_size_list(_type(self.field)) and not is_null.any():
            return pa.FixedSizeListArray.from_arrays(flat, type=_type(self.field))
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        mask = pa.array(is_null) if is_null.any() else None
        lists = pa.ListArray.from_arrays(pa.array(offsets), flat, type=_list(self.field), mask=mask)
        return lists.cast(_type(self.field))

    def last(self) -> Any:
        """Return the last value. If it is an array, return its elements."""
        if self.field.kind == "nested":
            return _plain(self.values[-1])
        if self.field.kind == "array" and self.values[-1] is not None:
            return bytes(self.elements[len(self.elements) - self.sizes[-1] :])
        return self.values[-1]

    def statistics(self) -> tuple[tuple[int, int, float, float, float], tuple[int, int, float, float, float]]:
        numbers: Any = ()
        if self.field.kind == "array":
            numbers = np.frombuffer(self.elements, self.field.dtype)
        elif self.field.kind in ("int", "float"):
            numbers = np.array([value for value in self.values if value is not None], self.field.dtype)
        return _stats(np.array(self.sizes)), _stats(np.asarray(numbers))


class _Shard:
    def __init__(self, fields: list[Field]) -> None:
        self.columns = [_Column(field) for field in fields]
        self.records = 0
        self._statistics: Statistics | None = None

    @property
    def nbytes(self) -> int:
        return sum(column.nbytes for column in self.columns)

    def last_crc32c(self) -> int:
        """Return the CRC-32C of the `repr` of the last row's values, because Parquet does not store a row as contiguous
        bytes.
        """
        return _native.crc32c(ascii([column.last() for column in self.columns]).encode())

    def statistics(self) -> Statistics:
        if self._statistics is None:
            self._statistics = [column.statistics() for column in self.columns]
        return self._statistics

    def finish(self, codec: Literal["none", "gzip", "zstd"], level: int | None) -> tuple[Any, int]:
        self.statistics()
        rows = max(1, self.records * _GROUP_BYTES // max(self.nbytes, 1))
        fields = [pa.field(column.field.name, _type(column.field)) for column in self.columns]
        schema = pa.schema(fields)
        # Large values soon fill a dictionary (at most 1 MB), so a dictionary would only cost time.
        small = [column.field.name for column in self.columns if column.nbytes < _LARGE * self.records]
        small += [f"{name}.list.element" for name in small]
        # Do not use the default pool of pyarrow: its first large allocation in each thread takes 0.3 s.
        out = pa.BufferOutputStream(pa.system_memory_pool())
        level = level if codec != "none" else None
        with pq.ParquetWriter(out, schema, use_dictionary=small, compression=codec, compression_level=level) as writer:
            for group in zip(*(column.arrays(rows) for column in self.columns), strict=True):
                writer.write_table(pa.table(list(group), schema=schema), row_group_size=max(len(group[0]), 1))
        self.columns = []
        stored = out.getvalue()
        return stored, _native.crc32c(np.frombuffer(stored, np.uint8))


class ParquetEncoder:
    """Encoder of rows in Parquet files. The column chunks are compressed, not the file, so the name of the file has no
    compression suffix.
    """

    suffix = ".parquet"

    def __init__(self, fields: Fields) -> None:
        self.fields = fields.fields

    def begin(self) -> _Shard:
        return _Shard(self.fields)

    def add(self, shard: _Shard, values: list[Any], sample: int) -> None:  # noqa: ARG002 - as other encoders
        """Append a sample."""
        for column, value in zip(shard.columns, values, strict=True):
            column.add(value)
        shard.records += 1

    def specs(self) -> list[tuple[str, FieldSpec]]:
        """Fields with which a loader reads the samples."""
        return [(field.name, spec) for field in self.fields if (spec := field.loader_spec()) is not None]


def _size(value: Any) -> int:
    """Return the number of bytes of a value that is not an array. Each item of a list adds 4 bytes for its offset."""
    if isinstance(value, list):
        return sum(map(_size, value)) + 4 * len(value)
    if isinstance(value, np.ndarray):
        return value.nbytes
    return len(value) if isinstance(value, (bytes, str)) else 8


def _split(value: Any) -> Any:
    """Convert lists of lists to the form that pyarrow accepts: the innermost lists are one-dimensional arrays."""
    if isinstance(value, list) or (isinstance(value, np.ndarray) and value.ndim > 1):
        return list(map(_split, value))
    return value


def _plain(value: Any) -> Any:
    """Return lists of lists with Python numbers."""
    return list(map(_plain, value)) if isinstance(value, list) else getattr(value, "tolist", lambda: value)()


def _list(field: Field) -> pa.DataType:
    return pa.list_(field.element or pa.from_numpy_dtype(np.dtype(field.dtype)))


def _type(field: Field) -> pa.DataType:
    """Return the Arrow type of the column."""
    read = _read_type(field)
    return read if field.element is None else _of_elements(read, field.element)


def _of_elements(made: pa.DataType, element: pa.DataType) -> pa.DataType:
    if pa.types.is_fixed_size_list(made):
        return pa.list_(element, made.list_size)
    return pa.list_(_of_elements(made.value_type, element)) if pa.types.is_list(made) else element


def _read_type(field: Field) -> pa.DataType:
    """Return the Arrow type of the column with the elements that a loader reads: numbers, text or bytes."""
    match field.kind:
        case "bytes":
            return pa.binary()
        case "str" | "json":
            return pa.string()
        case "bytes_list":
            return pa.list_(pa.binary())
        case "str_list":
            return pa.list_(pa.string())
        case "nested":
            assert isinstance(field.spec, NestedSpec)
            string = pa.binary() if field.spec.errors is None else pa.string()
            made = pa.from_numpy_dtype(np.dtype(field.dtype)) if field.dtype else string
            for _ in range(field.spec.depth + len(field.spec.shape)):
                made = pa.list_(made)
            return made
    element = pa.from_numpy_dtype(np.dtype(field.dtype))
    if field.kind in ("int", "float") or (field.shape == () and not field.is_ragged):
        return element
    size = math.prod(field.spec.shape) if isinstance(field.spec, TensorSpec) else 0
    return pa.list_(element, size) if size else pa.list_(element)


def _stats(values: Any) -> tuple[int, int, float, float, float]:
    if values.dtype.kind == "f":
        count = int(np.isnan(values).sum())
        values = values[~np.isnan(values)] if count else values
    else:
        count = 0
    if values.size == 0:
        return 0, count, math.inf, -math.inf, 0.0
    return values.size, count, float(values.min()), float(values.max()), float(values.sum(dtype=np.float64))

# SPDX-License-Identifier: Apache-2.0
"""Types of the columns of Parquet and Arrow files. A loader reads times as integers, booleans as bytes, and texts in
lists as byte strings. The Parquet writer restores the original types.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from penstock import _native, env
from penstock.errors import Unsupported
from penstock.feed.fields import FieldSpec, NestedSpec, RaggedSpec, RawListSpec, RawSpec, TensorSpec
from penstock.feed.ranged_file import RangedFile

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from penstock.feed import Dataset

__all__ = ["ColumnType", "Columns", "columns_of"]

_TEXTS = ("string", "large_string", "string_view")
_DTYPES = {"bool": "bool", "halffloat": "float16", "float": "float32", "double": "float64"} | {
    name: name for name in ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
}
"""NumPy's name of each numeric Arrow type."""

_READERS = 16
"""Number of schemas that are read concurrently. The time of such a read is mostly latency."""


@dataclass(frozen=True)
class ColumnType:
    """Type of a column.

    Attributes:
        element: Arrow type of the innermost elements.
        depth: Number of levels of lists.
    """

    element: Any
    depth: int

    @property
    def is_time(self) -> bool:
        """Whether the elements are times, which a loader reads as integers."""
        import pyarrow as pa

        return bool(pa.types.is_temporal(self.element))

    @property
    def kept(self) -> Any:
        """Type of the elements in the written Parquet files; None if it is the type that a loader reads."""
        import pyarrow as pa

        kind, types = self.element, pa.types
        # Parquet stores times of these types in another unit, so the integers would change.
        if types.is_date64(kind) or kind in (pa.timestamp("s", getattr(kind, "tz", None)), pa.time32("s")):
            return None
        if self.is_time or types.is_boolean(kind):
            return kind
        if not (self.depth and self.is_text):
            return None
        return pa.string() if str(kind) == "string_view" else kind

    @property
    def is_text(self) -> bool:
        """Whether the elements are texts."""
        return str(self.element) in _TEXTS

    @property
    def is_null(self) -> bool:
        """Whether the column contains only nulls, so that its type is unknown."""
        return str(self.element) == "null"

    @property
    def is_bytes(self) -> bool:
        """Whether the elements are byte strings."""
        return "binary" in str(self.element)

    @property
    def spec(self) -> FieldSpec | None:
        """Default field of the column if the first records contain no value; None if no field can read the column."""
        kind = self.element
        if self.is_text or self.is_bytes:
            return (
                RawSpec() if not self.depth else NestedSpec(None, (), self.depth) if self.depth > 1 else RawListSpec()
            )
        is_time = self.is_time and kind.bit_width <= 64  # an interval has 128 bits, and is not a time
        dtype = f"int{kind.bit_width}" if is_time else _DTYPES.get(str(kind))
        if dtype is None:
            return None
        if self.depth > 1:
            return NestedSpec(dtype, (), self.depth)
        return RaggedSpec(dtype) if self.depth else TensorSpec(dtype, ())


@dataclass(frozen=True)
class Columns:
    """Columns of all objects of a dataset.

    Attributes:
        objects: Key and columns of each object. The list is empty for formats other than Parquet and Arrow, and without
            pyarrow.
    """

    objects: list[tuple[str, dict[str, ColumnType]]]

    @cached_property
    def types(self) -> dict[str, ColumnType]:
        """Type of each column in the first object in which the column is not null. If a column has texts in one object
        and bytes in another, its type is binary.
        """
        merged: dict[str, ColumnType] = {}
        for _key, found in self.objects:
            for name, column in found.items():
                have = merged.get(name)
                if have is None or have.is_null or (have.is_text and column.is_bytes):
                    merged[name] = column
        return merged

    def later(self) -> dict[str, str]:
        """Return the columns that the first object lacks, each with the key of an object that has the column."""
        if not self.objects:
            return {}
        first = self.objects[0][1]
        return {name: key for key, found in reversed(self.objects) for name in found if first and name not in first}

    def check_equal(self, names: Iterable[str]) -> None:
        """Check columns that contain times or booleans in at least one object: their types must be the same in all
        objects.

        Raises:
            Unsupported: A column has another type in one of the objects.
        """
        for name in names:
            have = [(key, found[name]) for key, found in self.objects if name in found and not found[name].is_null]
            if not any(column.is_time or str(column.element) == "bool" for _key, column in have):
                continue
            for key, column in have:
                if column != have[0][1]:
                    raise Unsupported(
                        f"fields: `{name}` is {have[0][1].element} in {have[0][0]}, but {column.element} in {key}",
                        where="fields",
                        hint="convert the files of each type to a separate folder, or select the other parts with "
                        "fields=",
                    )


def columns_of(dataset: Dataset) -> Columns:
    """Read the columns of all objects, with the names that `schema()` uses. Compressed objects are listed without
    columns.
    """
    if dataset.format not in ("parquet", "arrow"):
        return Columns([])
    entries = [entry for entry in json.loads(dataset.source.manifest())["objects"] if entry["size"]]
    keys = [entry.get("key") or entry["key_hex"] for entry in entries]
    return Columns(list(zip(keys, _of_objects(dataset, entries), strict=False)))


def _of_objects(dataset: Dataset, objects: list[dict[str, Any]]) -> Iterator[dict[str, ColumnType]]:
    try:
        import pyarrow as pa
        import pyarrow.ipc
        import pyarrow.parquet as pq
    except ImportError:
        return
    files = _native.Files(dataset.url, dict(env.read()))

    def read(entry: dict[str, Any]) -> dict[str, ColumnType]:
        key = entry["key"].encode() if "key" in entry else bytes.fromhex(entry["key_hex"])
        file = _File(files, key, entry["size"], entry.get("version"))
        try:
            if dataset.format == "parquet":
                schema = pq.read_schema(file)
            elif file.read(6) == b"ARROW1":
                schema = pa.ipc.open_file(file).schema
            else:
                file.seek(0)
                schema = pa.ipc.open_stream(file).schema
        except pa.ArrowInvalid:  # a compressed object
            return {}
        return {name: kind for field in schema for name, kind in _columns(field.name, field.type)}

    with ThreadPoolExecutor(_READERS, thread_name_prefix="penstock-schema") as pool:
        yield from pool.map(read, objects)


class _File(RangedFile):
    """File object for pyarrow."""

    closed = False

    def close(self) -> None:
        """Do nothing, because no file is open."""


def _columns(name: str, kind: Any, *, depth: int = 0) -> Iterator[tuple[str, ColumnType]]:
    """Yield the columns of a field, with the same paths as in the core."""
    import pyarrow as pa

    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if types.is_dictionary(kind):
        kind = kind.value_type
    if types.is_struct(kind):
        for field in kind:
            yield from _columns(f"{name}.{field.name}", field.type, depth=depth)
    elif types.is_map(kind):
        yield from _columns(f"{name}.key", kind.key_type, depth=depth + 1)
        yield from _columns(f"{name}.value", kind.item_type, depth=depth + 1)
    elif types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        yield from _columns(name, kind.value_type, depth=depth + 1)
    else:
        yield name, ColumnType(kind, depth)

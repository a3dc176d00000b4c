# SPDX-License-Identifier: Apache-2.0
"""Types of the columns of Parquet and Arrow files. A loader reads times as integers, booleans as bytes and texts in lists
as byte strings; the writer of Parquet restores their types.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock import _native, env
from penstock.errors import Unsupported
from penstock.feed.ranged_file import RangedFile

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from penstock.feed import Dataset

__all__ = ["ColumnType", "check_equal", "column_types"]

_READERS = 16
"""Number of objects whose schema is read at the same time, because reading it is mostly latency."""


@dataclass(frozen=True)
class ColumnType:
    """Type of a column.

    Attributes:
        element: Arrow type of the innermost elements.
        is_list: Whether the column consists of lists.
    """

    element: Any
    is_list: bool

    @property
    def is_time(self) -> bool:
        """Whether the elements are times, which a loader reads as integers."""
        import pyarrow as pa

        return bool(pa.types.is_temporal(self.element))

    @property
    def kept(self) -> Any:
        """Type of the elements in written Parquet; None if it is that of the values that a loader reads."""
        import pyarrow as pa

        kind, types = self.element, pa.types
        # Parquet stores these in another unit, so that the integers would change.
        if types.is_date64(kind) or kind in (pa.timestamp("s", getattr(kind, "tz", None)), pa.time32("s")):
            return None
        if self.is_time or types.is_boolean(kind):
            return kind
        return kind if self.is_list and (types.is_string(kind) or types.is_large_string(kind)) else None


def column_types(dataset: Dataset) -> dict[str, ColumnType]:
    """Return the types of the columns in the first object, by the names of `schema()`. Empty for other formats than
    Parquet and Arrow, for compressed objects, and without pyarrow.
    """
    if dataset.format not in ("parquet", "arrow"):
        return {}
    return next(_of_objects(dataset, [_objects(dataset)[0]]))


def check_equal(dataset: Dataset, names: Iterable[str], types: dict[str, ColumnType]) -> None:
    """Check that the times and booleans among these columns have one type in all objects. Sends a request for each.

    Raises:
        Unsupported: A column has another type in one of them.
    """
    names = [name for name in names if types[name].is_time or str(types[name].element) == "bool"]
    objects = _objects(dataset)
    if not names or len(objects) == 1:
        return
    for entry, found in zip(objects, _of_objects(dataset, objects), strict=True):
        for name in names:
            if name in found and found[name] != types[name]:
                raise Unsupported(
                    f"fields: `{name}` is {types[name].element} in {objects[0]['key']}, but {found[name].element} in "
                    f"{entry['key']}",
                    where="fields",
                    hint="convert the files of each type to a folder of their own, or leave the part out by fields=",
                )


def _objects(dataset: Dataset) -> list[dict[str, Any]]:
    return [entry for entry in json.loads(dataset.source.manifest())["objects"] if entry["size"]]


def _of_objects(dataset: Dataset, objects: list[dict[str, Any]]) -> Iterator[dict[str, ColumnType]]:
    try:
        import pyarrow as pa
        import pyarrow.ipc
        import pyarrow.parquet as pq
    except ImportError:
        yield from ({} for _ in objects)
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
    """File for pyarrow."""

    closed = False

    def close(self) -> None:
        """Do nothing: nothing is open."""


def _columns(name: str, kind: Any, *, is_list: bool = False) -> Iterator[tuple[str, ColumnType]]:
    """Yield the columns of a field, with their paths as in the core."""
    import pyarrow as pa

    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if types.is_dictionary(kind):
        kind = kind.value_type
    if types.is_struct(kind):
        for field in kind:
            yield from _columns(f"{name}.{field.name}", field.type, is_list=is_list)
    elif types.is_map(kind):
        for path in (name, f"{name}.key_value"):  # in Arrow and in Parquet
            yield from _columns(f"{path}.key", kind.key_type, is_list=True)
            yield from _columns(f"{path}.value", kind.item_type, is_list=True)
    elif types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        yield from _columns(name, kind.value_type, is_list=True)
    else:
        yield name, ColumnType(kind, is_list)

# SPDX-License-Identifier: Apache-2.0
"""`penstock peek`: look at a dataset before it is used: format, fields, sizes, counts, the cost of an epoch, and the code
that reads it.
"""

from __future__ import annotations

import codecs
import json
import re
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from penstock.cli import peek_columns, peek_output
from penstock.errors import ConfigError, Corrupt, Mismatch, Unsupported

if TYPE_CHECKING:
    from penstock.feed.dataset import Dataset

__all__ = ["command"]

_BATCH = 32
"""Batch size in the printed code."""

_SHOWN = 60
"""Maximum number of characters of a printed value."""

_SHOWN_ITEMS = 16
"""Maximum number of printed items of an array."""

_KINDS = {b"\xff\xd8\xff": "JPEG", b"\x89PNG": "PNG", b"\x93NUMPY": "npy"}
"""Kinds of binary data by their first bytes."""

_MAX_COUNTED = 64
"""Maximum number of objects from which `peek` reads the record count."""

_IN_BLOCKS = ("hdf5", "zarr")
"""Formats whose data are arrays in blocks instead of objects of records."""

_COUNTED_BY_OBJECT = {
    "arrow": "a few requests per object, which read its footer or the headers of its batches",
    "parquet": "one request per object, which reads its footer",
    "npy": "one request per object, which reads its header",
}
"""Formats whose objects contain their record count, with the requests that read the counts."""

_COUNTED_BY = {
    "existing": "indexes of other programs",
    "format": "the format",
    "index": "an index in the cache",
    "manifest": "the manifest",
    "sizes": "the sizes of the objects",
}
"""Sources of record counts that are known without reading objects, by name."""

_MAX_FIRST_READS = 3
"""Maximum number of times that the first shuffled epoch reads each byte, if it must count the records and no node cache
contains the dataset. The scan reads each byte once. The epoch runs in parts, and each part repeats the last window of
the previous part.
"""


@click.command("peek")
@click.argument("url", metavar="URL")
@click.option("-n", "--records", type=click.IntRange(0, 1000), default=1, show_default=True, help="Records to show.")
@click.option("--format", "named", metavar="NAME", help="Format of the objects.  [default: detected]")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON line.")
def command(url: str, records: int, named: str | None, as_json: bool) -> int:
    """Show what the dataset at URL contains and what an epoch of it costs, and print the Python code that reads it.

    URL is a folder, an object, a pattern or a dataset of the Hugging Face Hub (hf://datasets/ORG/NAME). The dataset is
    listed, and the beginning of one object is read (a table is read in full). For Parquet,
    Arrow IPC, JSON lines and CSV, the columns of up to 8 objects are compared, for which at most 64 MiB more are read.
    Nothing is written.
    """
    dataset = _open(url, named)
    found = _facts(dataset, url, named)
    found["first_records"], found["records_error"] = [], None
    try:
        if records:
            found["first_records"] = _first(dataset, records)
    except Mismatch as error:  # records of different shapes, such as in npz files
        found["records_error"] = error.message
    click.echo(json.dumps(found) if as_json else peek_output.readable(found))
    return 0


def _open(url: str, named: str | None) -> Dataset:
    """Open the dataset. Hints of errors are for the command line, not for Python."""
    import penstock

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # about ignored objects, whose number is printed anyway
            return penstock.open(url, format=named)
    except (ConfigError, Unsupported) as error:
        where = error.where or ""
        if error.message.startswith("SEG-Y") or "HDF5 files" in error.message or named == "hdf5":
            hint = "describe a volume with penstock array info FILE"
        elif where.startswith("penstock.open"):
            hint = "set --format NAME, such as --format megatron for .bin files with .idx files"
        elif where == "format":
            hint = "give formats with arguments in Python: penstock.open(url, format=penstock.formats.NAME(...))"
        else:
            raise
        raise type(error)(error.message, where=error.where, hint=hint) from None


def _facts(dataset: Dataset, url: str, named: str | None) -> dict[str, Any]:
    from penstock.price.estimates import estimate_epochs

    source, schema = dataset.source, dataset.schema()
    sizes = sorted(source.object_bytes(number) for number in range(source.objects))
    count, how = _counts(dataset)
    cost = estimate_epochs(
        dataset.url, objects=source.objects, size_bytes=source.size_bytes, requests=source.requests, epochs=1
    )
    first_reads = _MAX_FIRST_READS if dataset.awaits_scan() else 1
    return {
        "schema_version": 1,
        "url": dataset.url,
        "format": dataset.format,
        "objects": source.objects,
        "first_object": None if dataset.format in _IN_BLOCKS else source.key(_first_object(dataset)),
        "ignored": source.ignored,
        "bytes": source.size_bytes,
        "object_bytes": {"min": sizes[0], "median": sizes[len(sizes) // 2], "max": sizes[-1]},
        "fields": [
            {"name": name, "field": str(spec), "holds": holds}
            for (name, spec), holds in zip(schema.specs, schema.holds, strict=True)
        ],
        "left_out": [{"name": name, "reason": reason} for name, reason in schema.left_out],
        "columns_compared": peek_columns.compare(dataset),
        "records": count,
        "counts": how,
        "epoch_cost": cost,
        "epoch_cost_note": _cost_note(dataset.url, first_reads, is_priced=cost is not None),
        "first_epoch_max_reads": first_reads,
        "python": _code(url, named),
    }


def _cost_note(url: str, first_reads: int, *, is_priced: bool) -> str | None:
    """Return a note on why the cost of an epoch is unknown, or on why the first epoch costs more."""
    scheme = url.partition("://")[0] if "://" in url else "file"
    if scheme == "file":
        return "none: reads of local files are not billed"
    if not is_priced:
        return f"not known: the price book has no prices of {scheme}:// stores"
    if first_reads == 1:
        return None
    return (
        f"The first epoch also counts the records. Shuffled and without the node's cache, it costs up to {first_reads} "
        "times this. After `penstock index URL --records`, which reads each object once, it does not."
    )


def _counts(dataset: Dataset) -> tuple[int | None, str]:
    """Return the number of records, or None if a few requests are not enough to find it. Also return how the records
    are counted.
    """
    how = _COUNTED_BY_OBJECT.get(dataset.format)
    if how is not None:
        counted = None
        if dataset.source.objects <= _MAX_COUNTED:
            with suppress(Corrupt):  # the comparison of columns reports a damaged object
                counted = dataset.counted_without_scan()
        return (None, how) if counted is None else (counted.samples, "the objects")
    if dataset.scan() is None:
        return dataset.samples, _COUNTED_BY.get(dataset.rung, dataset.rung)
    return (
        None,
        "a scan, which reads every object once while the first epoch runs, or before it: penstock index URL --records",
    )


def _first(dataset: Dataset, records: int) -> list[dict[str, str]]:
    """Return the first records as text, by field."""
    import penstock
    from penstock.feed.batch_columns import rows

    schema = dataset.schema()
    partitions: dict[str, str] = {}
    if dataset.format in _COUNTED_BY_OBJECT or dataset.scan() is not None:
        chosen = _first_object(dataset)  # all other objects are only counted
        partitions = peek_columns.partitions(dataset.source.key(chosen), schema)
        dataset = peek_columns.of_object(dataset, chosen)
        scan = dataset.scan()
        if scan is not None:
            # Do not request more records from a loader, because it would scan the object and store an index.
            records = min(records, scan.counts.scan_start(0, records))
            if records == 0:
                return []
    # Set the fields explicitly. Otherwise, the loader would log the parts that it leaves out, which this command prints
    # already.
    dataset = dataset.fields(**{name: spec for name, spec in schema.specs if name not in partitions})
    loader = penstock.Loader(
        dataset.take(records).cache(False), batch_size=records, rank=0, world=1, prefetch_next_epoch=False
    )
    holds = dict(zip((name for name, _ in schema.specs), schema.holds, strict=True))
    for batch in loader:
        return [
            {**{name: _value(value, holds.get(name, "")) for name, value in row.items()}, **partitions}
            for row in rows(batch)
        ]
    return []


def _first_object(dataset: Dataset) -> int:
    """Return the number of the first object that has a record."""
    source = dataset.source
    for number in range(source.objects):
        if source.object_bytes(number) == 0:
            continue
        if dataset.format not in _COUNTED_BY_OBJECT:
            return number
        with suppress(ConfigError):  # a table without rows
            peek_columns.of_object(dataset, number).counted_without_scan()
            return number
    return 0


def _value(value: Any, holds: str) -> str:
    """Return the value as text of about `_SHOWN` characters. `holds` describes the value's field."""
    from penstock.feed.batch_columns import Ragged

    if isinstance(value, bytes):
        return _bytes(value)
    if isinstance(value, Ragged):
        return _shortened(repr(value.to_list()))
    dtype = getattr(value, "dtype", None)
    if dtype is None:
        return _shortened(repr(value))
    if not value.shape:
        return f"{value} ({dtype}{_time(value, holds)})"
    text = f"{dtype} {list(value.shape)}"
    if len(value.shape) > 1:
        return text
    return _shortened(f"{text}: {_items(value)}")


def _time(value: Any, holds: str) -> str:
    """If a number is a time, return a separator and the time as ISO 8601 text or as a duration. Otherwise, return an
    empty text.
    """
    import numpy as np

    found = re.match(r"(timestamp|date|time|duration)\[(day|ms|us|ns|s)\b", holds)
    if found is None or value.dtype.kind not in "iu":
        return ""
    unit: Any = "D" if found[2] == "day" else found[2]
    if found[1] in ("timestamp", "date"):
        return f"; {np.datetime64(int(value), unit)}"
    return f"; {np.timedelta64(int(value), unit)}"


def _bytes(data: bytes) -> str:
    """Return the first characters of text. For other data, return the size and, if known, the kind."""
    size = f"{len(data):,} bytes"
    try:
        head = codecs.getincrementaldecoder("utf-8")().decode(data[:_SHOWN])  # the last character can be incomplete
    except UnicodeDecodeError:
        kind = next((kind for start, kind in _KINDS.items() if data.startswith(start)), None)
        return size if kind is None else f"{kind}, {size}"
    if not all(character.isprintable() or character in "\n\r\t" for character in head):
        return size
    return repr(head) + ("…" if len(data) > _SHOWN else "")


def _items(values: Any) -> str:
    shown = [str(item) for item in values[:_SHOWN_ITEMS]]
    return ", ".join([*shown, "…"] if len(values) > _SHOWN_ITEMS else shown)


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


def _code(url: str, named: str | None) -> list[str]:
    """Return three lines of Python that read the dataset."""
    chosen = "" if named is None else f", format={named!r}"
    return [
        "import penstock",
        f"dataset = penstock.open({url!r}{chosen}).shuffle(seed=1)",
        f"for batch in penstock.Loader(dataset, batch_size={_BATCH}): print(batch.keys())",
    ]

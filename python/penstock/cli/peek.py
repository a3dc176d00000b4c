# SPDX-License-Identifier: Apache-2.0
"""`penstock peek`: look at a dataset before it is used: format, fields, sizes, counts, the cost of an epoch, and the code
that reads it.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from penstock.feed.dataset import Dataset

__all__ = ["command"]

_BATCH = 32
"""Batch size in the printed code."""

_SHOWN = 60
"""Maximum number of characters of a printed value."""

_COUNTED_BY_OBJECT = {
    "arrow": "a few requests per object, which read its footer or the headers of its batches",
    "parquet": "one request per object, which reads its footer",
    "npy": "one request per object, which reads its header",
}
"""How the records of a format are counted if each object states its own count."""


@click.command("peek")
@click.argument("url", metavar="URL")
@click.option("-n", "--records", type=click.IntRange(0, 1000), default=1, show_default=True, help="Records to show.")
@click.option("--format", "named", metavar="NAME", help="Format of the objects.  [default: detected]")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON line.")
def command(url: str, records: int, named: str | None, as_json: bool) -> int:
    """Show what the dataset at URL contains and what an epoch of it costs, and print the Python code that reads it.

    URL is a folder, an object, a pattern or a dataset of the Hugging Face Hub (hf://datasets/ORG/NAME). The dataset is
    listed, and the beginning of one object is read (a table is read in full). Nothing is written.
    """
    import penstock

    dataset = penstock.open(url, format=named)
    found = _facts(dataset, url, named)
    found["first_records"] = _first(dataset, records) if records else []
    click.echo(json.dumps(found) if as_json else _readable(found))
    return 0


def _facts(dataset: Dataset, url: str, named: str | None) -> dict[str, Any]:
    from penstock.price.estimates import estimate_epochs

    source, schema = dataset.source, dataset.schema()
    sizes = sorted(source.object_bytes(number) for number in range(source.objects))
    count, how = _counts(dataset)
    return {
        "schema_version": 1,
        "url": dataset.url,
        "format": dataset.format,
        "objects": source.objects,
        "ignored": source.ignored,
        "bytes": source.size_bytes,
        "object_bytes": {"min": sizes[0], "median": sizes[len(sizes) // 2], "max": sizes[-1]},
        "fields": [
            {"name": name, "field": str(spec), "holds": holds}
            for (name, spec), holds in zip(schema.specs, schema.holds, strict=True)
        ],
        "left_out": [{"name": name, "reason": reason} for name, reason in schema.left_out],
        "records": count,
        "counts": how,
        "epoch_cost": estimate_epochs(
            dataset.url, objects=source.objects, size_bytes=source.size_bytes, requests=source.requests, epochs=1
        ),
        "python": _code(url, named),
    }


def _counts(dataset: Dataset) -> tuple[int | None, str]:
    """Return the number of records, if it is known without reading objects, and how records are counted."""
    how = _COUNTED_BY_OBJECT.get(dataset.format)
    if how is not None:
        return None, how
    if dataset.scan() is None:
        return dataset.samples, {"index": "an index in the cache", "format": "the format"}.get(
            dataset.rung, dataset.rung
        )
    return (
        None,
        "a scan, which reads every object once while the first epoch runs (`penstock index --records` beforehand)",
    )


def _first(dataset: Dataset, records: int) -> list[dict[str, str]]:
    """Return the first records as text, by field."""
    import penstock
    from penstock.feed.columns import rows

    dataset = dataset.fields(**dict(dataset.schema().specs))  # the parts left out are printed, not logged
    if dataset.format in _COUNTED_BY_OBJECT or dataset.scan() is not None:
        # The other objects would only be counted. An object without bytes has no record.
        source = dataset.source
        chosen = next((number for number in range(source.objects) if source.object_bytes(number)), 0)
        dataset = replace(dataset, source=source.subset([chosen]), _counts=type(dataset._counts)())  # noqa: SLF001
        scan = dataset.scan()
        if scan is not None:
            # A loader that asked for more records would scan the object, and store an index.
            records = min(records, scan.counts.scan_start(0, records))
            if records == 0:
                return []
    loader = penstock.Loader(dataset.take(records).cache(False), batch_size=records, prefetch_next_epoch=False)
    for batch in loader:
        return [{name: _value(value) for name, value in row.items()} for row in rows(batch)]
    return []


def _value(value: Any) -> str:
    if isinstance(value, (bytes, memoryview)):
        data = bytes(value)
        head = data[:_SHOWN].decode("utf-8", "replace")
        return f"{len(data):,} bytes" if not head.isprintable() else repr(head) + ("…" if len(data) > _SHOWN else "")
    dtype = getattr(value, "dtype", None)
    if dtype is None:
        text = repr(value)
    elif not value.shape:
        text = f"{value} ({dtype})"
    else:
        text = f"{dtype} {list(value.shape)}"
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


def _code(url: str, named: str | None) -> list[str]:
    """Return three lines of Python that read the dataset."""
    chosen = "" if named is None else f", format={named!r}"
    return [
        "import penstock",
        f"dataset = penstock.open({url!r}{chosen}).shuffle(seed=1)",
        f"for batch in penstock.Loader(dataset, batch_size={_BATCH}): print({{name: rows.shape if hasattr(rows, 'shape') else len(rows.to_list() if hasattr(rows, 'to_list') else rows) for name, rows in batch.items()}})",
    ]


def _readable(found: dict[str, Any]) -> str:
    from penstock.cli.epoch_cost import money_text
    from penstock.units import format_bytes

    sizes = found["object_bytes"]
    lines = [
        f"{found['url']}: {found['objects']:,} objects of {found['format']}, {format_bytes(found['bytes'])}",
        f"  objects  {format_bytes(sizes['min'])} to {format_bytes(sizes['max'])}, median {format_bytes(sizes['median'])}",
    ]
    if found["ignored"]:
        lines.append(f"  ignored  {found['ignored']:,} objects with other names")
    records = "unknown until counted" if found["records"] is None else f"{found['records']:,}"
    lines += [f"  records  {records}, by {found['counts']}", "  fields"]
    width = max((len(each["name"]) for each in (*found["fields"], *found["left_out"])), default=0)
    lines += [f"    {each['name']:<{width}}  {each['field']}  ({each['holds']})" for each in found["fields"]]
    lines += [f"    {each['name']:<{width}}  left out: {each['reason']}" for each in found["left_out"]]
    for number, record in enumerate(found["first_records"]):
        lines.append(f"  record {number}")
        lines += [f"    {name:<{width}}  {value}" for name, value in record.items()]
    if found["epoch_cost"] is None:
        lines.append("  cost     nothing is billed for this store, or its prices are not known")
    else:
        lines.append("  cost of an epoch")
        lines += [f"    {line}" for line in money_text(found["epoch_cost"]).splitlines()]
    return "\n".join([*lines, "", *found["python"]])

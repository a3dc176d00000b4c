# SPDX-License-Identifier: Apache-2.0
"""Reads a label file for images once, when the dataset is opened: CSV with a header, or columns of a Parquet file."""

from __future__ import annotations

import csv
import io
import math
from typing import TYPE_CHECKING, Any

from penstock import _native
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.feed.dataset import Dataset
    from penstock.feed.formats import LabelFile

__all__ = ["read"]

_MAX_BYTES = 256 << 20  # enough for ImageNet-21k, with about 100 bytes per label


def read(
    requested: LabelFile, folder: str, env: Mapping[str, str], open_table: Callable[[str], Dataset]
) -> dict[str, Any]:
    """Read the labels that `requested` describes, and return them as properties of the image format. A relative path is
    below `folder`. `open_table` opens a Parquet file.
    """
    place = requested.place if "://" in requested.place or requested.place.startswith("/") else folder + requested.place
    parent, _, name = place.rpartition("/")
    store = _native.Files(parent + "/", env)
    _, size, version, _ = store.head(name.encode())
    if size > _MAX_BYTES:
        raise ConfigError(
            f"labels: {place} is too large for a list of labels ({size:,} bytes, limit {_MAX_BYTES:,})", where=place
        )
    content = store.read(name.encode(), [(0, size)], version=version)[0] if size else b""
    files, values = (
        _parquet(open_table(place), place, requested)
        if content.startswith(b"PAR1")
        else _csv(content, requested, place)
    )
    return {"place": place, "files": [file.removeprefix("./") for file in files], "values": values}


def _column(requested: str, there: list[str], place: str) -> str:
    if requested not in there:
        shown = ", ".join(f"`{name}`" for name in there[:12])
        raise ConfigError(
            f"labels: {place} contains no column `{requested}` (columns: {shown or 'none'})",
            where=place,
            hint='name the columns: formats.images(labels=..., key="column of files", label="column of labels")',
        )
    return requested


def _csv(content: bytes, requested: LabelFile, place: str) -> tuple[list[str], dict[str, Any]]:
    try:
        rows = csv.DictReader(io.StringIO(content.decode("utf-8-sig"), newline=""), strict=True)
        there = list(rows.fieldnames or [])
        key, label = _column(requested.key, there, place), _column(requested.label, there, place)
        pairs = []
        for row in rows:
            if row[key] is None or row[label] is None:
                raise ConfigError(f"labels: {place} ends inside line {rows.line_num}", where=place)
            pairs.append((row[key], row[label]))
    except (csv.Error, UnicodeDecodeError) as error:
        raise ConfigError(f"labels: {place} cannot be read as CSV: {error}", where=place) from None
    return [file for file, _ in pairs], _typed([text for _, text in pairs])


def _typed(texts: list[str]) -> dict[str, Any]:
    """Convert all texts to integers or, if that is impossible, to floats. If some are not numbers, return the texts."""
    try:
        ints = [int(text) for text in texts]
        if all(-(2**63) <= value < 2**63 for value in ints):
            return {"int": ints}
    except ValueError:
        pass
    try:
        floats = [float(text) for text in texts]
        if all(math.isfinite(value) for value in floats):
            return {"float": floats}
    except ValueError:
        pass
    return {"text": texts}


def _parquet(table: Dataset, place: str, requested: LabelFile) -> tuple[list[str], dict[str, Any]]:
    from penstock.feed import fields, loader

    specs = dict(table.schema().specs)
    key, label = (_column(name, list(specs), place) for name in (requested.key, requested.label))
    spec, kind = specs[label], "text"
    if isinstance(spec, fields.TensorSpec | fields.RaggedSpec):  # ragged: the column has nulls, so the read fails
        kind = "float" if spec.dtype.startswith("float") else "int"
    label_spec = fields.raw() if kind == "text" else fields.tensor(f"{kind}64", ())
    files: list[str] = []
    values: list[Any] = []
    for batch in loader.Loader(
        table.fields(file=fields.raw().of(key), label=label_spec.of(label)), batch_size=4096, rank=0, world=1
    ):
        files += [one.decode() for one in batch["file"]]
        values += [one.decode() for one in batch["label"]] if kind == "text" else batch["label"].tolist()
    return files, {kind: values}

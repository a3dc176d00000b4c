# SPDX-License-Identifier: Apache-2.0
"""Samples for the tests of the writer, and functions that read what was written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import penstock
from penstock.feed.batch_columns import rows

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FORMATS = ("tfrecord", "tar", "parquet")
DTYPES = (
    "bool",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float16",
    "float32",
    "float64",
)


def some(count: int, start: int = 0) -> Iterator[dict[str, Any]]:
    """Samples that identify themselves."""
    for at in range(start, count):
        yield {
            "x": np.arange(6, dtype=np.int16).reshape(2, 3) + at,
            "ids": np.arange(at % 4, dtype=np.int64),
            "label": at,
            "weight": np.float32(at / 2),
            "text": f"sample é {at}",
            "jpg": b"\xff\xd8" + bytes([at % 256]) * (at % 7),
        }


def read(url: object, **options: Any) -> list[dict[str, Any]]:
    dataset = penstock.open(str(url), **options)
    loader = penstock.Loader(dataset, batch_size=5)
    found = []
    for batch in loader:
        found += rows(batch)
    return found


def same(read_back: list[dict[str, Any]], written: list[dict[str, Any]]) -> None:
    assert len(read_back) == len(written)
    for got, want in zip(read_back, written, strict=True):
        assert set(got) == set(want)
        for name, value in want.items():
            expected = value.encode() if isinstance(value, str) else value
            if isinstance(expected, (bytes, list)):
                assert got[name] == expected, name
            else:
                np.testing.assert_array_equal(got[name], expected, name)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}

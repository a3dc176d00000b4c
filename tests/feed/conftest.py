# SPDX-License-Identifier: Apache-2.0
"""Small datasets whose samples identify themselves: every element of x and y in sample i is i."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING

import numpy as np
import pytest

import penstock
from penstock import _native

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

SHAPE = (3, 2)


def record(sample: int) -> bytes:
    x = np.full(SHAPE, sample, "<i2").tobytes()
    return _native.encode_tfrecord({"x": x, "y": [float(sample)] * 4})


def write(folder: Path, counts: Sequence[int], codec: str = "gzip") -> Path:
    """Writes one object per count, with `count` records each; sample numbers continue from object to object."""
    folder.mkdir(parents=True, exist_ok=True)
    sample = 0
    for number, count in enumerate(counts):
        content = b"".join(record(sample + at) for at in range(count))
        sample += count
        if codec == "gzip":
            (folder / f"part-{number:04d}.tfrecord.gz").write_bytes(gzip.compress(content, 1, mtime=0))
        else:
            (folder / f"part-{number:04d}.tfrecord").write_bytes(content)
    return folder


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the test's own."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("PENSTOCK_CACHE", str(folder))
    return folder


@pytest.fixture
def made(tmp_path: Path) -> Callable[..., Path]:
    """`made([1, 1, 3], codec="none")` writes a dataset and returns its folder."""
    return lambda counts, codec="gzip", name="data": write(tmp_path / name, counts, codec)


def dataset(url: object, **arguments: object) -> penstock.Dataset:
    opened = penstock.open(str(url), **arguments)
    return opened.fields(x=penstock.tensor("int16", SHAPE), y=penstock.tensor("float32", (4,)))


def samples(batch: dict[str, np.ndarray]) -> list[int]:
    """Sample numbers of a batch; both fields must give the same numbers."""
    x, y = batch["x"], batch["y"]
    assert x.shape == (len(y), *SHAPE)
    assert (x == x[:, :1, :1]).all()
    assert (y == y[:, :1]).all()
    assert (x[:, 0, 0] == y[:, 0]).all()
    return [int(value) for value in y[:, 0]]


def batches(loader: penstock.Loader) -> list[list[int]]:
    return [samples(batch) for batch in loader]

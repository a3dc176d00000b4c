# SPDX-License-Identifier: Apache-2.0
"""Tests shards without records, as Beam, Spark and TFX write them: they count as 0 samples, and cause a notice."""

from __future__ import annotations

import gzip
import io
import tarfile
from itertools import chain

import numpy as np
import pytest

import penstock
from penstock.errors import ConfigError

from .conftest import SHAPE, record
from .parquet import parquet_bytes

INT = penstock.tensor("int16", SHAPE)


def tar_bytes(members):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


def npy_bytes(array):
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def array(sample):
    return np.full(SHAPE, sample, "<i2")


def tar_of(samples):
    return tar_bytes([(f"{at}.x.npy", npy_bytes(array(at))) for at in samples])


def tfrecord_of(samples):
    return b"".join(record(at) for at in samples)


# Format name: suffix, writer of a shard, an empty shard, the `format` argument, the field's part name.
SHARDS = {
    "tfrecord": ("tfrecord", tfrecord_of, b"", None, "x"),
    "tfrecord-gzip": ("tfrecord.gz", lambda ids: gzip.compress(tfrecord_of(ids)), gzip.compress(b""), None, "x"),
    "tfrecord-gzip-0-bytes": ("tfrecord.gz", lambda ids: gzip.compress(tfrecord_of(ids)), b"", None, "x"),
    "tar": ("tar", tar_of, tar_bytes([]), None, "x.npy"),
    "tar-0-bytes": ("tar", tar_of, b"", None, "x.npy"),
    "tar-without-extensions": ("tar", tar_of, tar_bytes([("README", b"text"), ("d/0001", b"x")]), None, "x.npy"),
    "npy-rows": (
        "npy",
        lambda ids: npy_bytes(np.stack([array(at) for at in ids])),
        npy_bytes(np.zeros((0, *SHAPE), "<i2")),
        penstock.formats.npy(rows=True),
        "array",
    ),
    "parquet": (
        "parquet",
        lambda ids: parquet_bytes(x=[array(at).tobytes() for at in ids]),
        parquet_bytes(x=[]),
        None,
        "x",
    ),
    "fixed": (
        "bin",
        lambda ids: b"".join(array(at).tobytes() for at in ids),
        b"",
        penstock.formats.fixed(x=INT),
        "x",
    ),
}


def write(folder, kind, empty):
    """Writes four shards, with 3 samples in total or none."""
    suffix, shard, without, _, _ = SHARDS[kind]
    folder.mkdir()
    for number, samples in enumerate([[], [0, 1], [], [2]]):
        (folder / f"{number}.{suffix}").write_bytes(without if empty or not samples else shard(samples))


def opened(folder, kind, **arguments):
    _, _, _, output, part = SHARDS[kind]
    return penstock.open(folder, format=output, **arguments).fields(x=INT.of(part))


@pytest.mark.parametrize("kind", SHARDS)
def test_empty_shards_hold_no_samples_and_stop_nothing(tmp_path, kind, caplog):
    # Regression: one empty shard made the dataset unreadable, or only its schema if it came first by name.
    write(tmp_path / "d", kind, empty=False)
    assert len(penstock.open(tmp_path / "d", format=SHARDS[kind][3]).schema().specs) > 0
    dataset = opened(tmp_path / "d", kind)
    assert dataset.samples == 3
    assert "2 of 4 objects contain no record; the first is 0." in caplog.text
    for order in (dataset, dataset.shuffle(seed=1, window=4)):
        for world in (1, 2):
            loaders = [penstock.Loader(order, global_batch=2, rank=rank, world=world) for rank in range(world)]
            found = [batch["x"][:, 0, 0].tolist() for loader in loaders for batch in loader]
            assert sorted(chain(*found)) == [0, 1, 2]
    dataset.index()
    (batch,) = penstock.Loader(opened(tmp_path / "d", kind), batch_size=3)
    assert batch["x"][:, 0, 0].tolist() == [0, 1, 2]


@pytest.mark.parametrize("kind", SHARDS)
def test_dataset_of_empty_shards_alone_is_one_error(tmp_path, kind):
    write(tmp_path / "d", kind, empty=True)
    for ask in (lambda dataset: dataset.samples, lambda dataset: dataset.schema()):
        with pytest.raises(ConfigError, match=r"none of the 4 objects of .*/d/ contains a record") as caught:
            ask(opened(tmp_path / "d", kind))
        assert ("KEY.EXTENSION" in str(caught.value)) == kind.startswith("tar")


@pytest.mark.parametrize("kind", ["tfrecord", "tfrecord-gzip", "tfrecord-gzip-0-bytes", "tar", "tar-0-bytes"])
def test_empty_shards_are_passed_over_unindexed(tmp_path, kind):
    write(tmp_path / "d", kind, empty=False)
    loader = penstock.Loader(opened(tmp_path / "d", kind, indexed=False), batch_size=2, rank=0, world=1)
    assert [batch["x"][:, 0, 0].tolist() for batch in loader] == [[0, 1], [2]]

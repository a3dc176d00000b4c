# SPDX-License-Identifier: Apache-2.0
"""Tests Zarr arrays and HDF5 datasets as samples: in every layout, rows and order match zarr-python or h5py."""

from __future__ import annotations

import json
import pickle
from itertools import chain

import h5py
import numcodecs
import numpy as np
import pytest
import zarr
from zarr import codecs

import penstock
from penstock.errors import BudgetExceeded, ConfigError, Corrupt, NotFound, PenstockError, Unsupported

SAMPLES = 22
ROWS = np.arange(SAMPLES, dtype="<i2")[:, None, None] * np.ones((5, 3), "<i2")
ZARR = {
    "v3": {"chunks": (4, 5, 3)},
    "v3-cut": {"chunks": (4, 2, 2)},
    "v3-gzip-big": {
        "chunks": (4, 5, 3),
        "serializer": codecs.BytesCodec(endian="big"),
        "compressors": codecs.GzipCodec(level=1),
    },
    "v3-shards": {"chunks": (2, 5, 2), "shards": (8, 5, 4)},
    "v3-shards-start": {"chunks": (2, 5, 3), "shards": {"shape": (4, 5, 3), "index_location": "start"}},
    "v3-v2-keys": {"chunks": (3, 5, 3), "chunk_key_encoding": {"name": "v2", "separator": "."}},
    "v2-blosc": {"chunks": (4, 3, 3), "zarr_format": 2, "compressors": numcodecs.Blosc()},
    "v2-plain": {"chunks": (7, 5, 3), "zarr_format": 2, "compressors": None},
    "one-chunk": {"chunks": (40, 5, 3)},
}
HDF5 = {
    "contiguous": {},
    "chunked": {"chunks": (4, 2, 3)},
    "gzip-shuffle": {"chunks": (4, 5, 3), "compression": "gzip", "shuffle": True},
    "fletcher": {"chunks": (3, 5, 2), "fletcher32": True},
    "big": {"chunks": (4, 5, 3), "dtype": ">i2"},
    "big-contiguous": {"dtype": ">i2"},
}


def sequence(dataset, world, part="array"):
    dataset = dataset.fields(x=penstock.tensor("int16", (5, 3)).of(part)).shuffle(seed=11, window=3)
    steps = {}
    for rank in range(world):
        for number, batch in enumerate(penstock.Loader(dataset, global_batch=4, rank=rank, world=world)):
            flat = batch["x"].reshape(len(batch["x"]), 15)
            assert (flat == flat[:, :1]).all()
            steps.setdefault(number, []).extend(flat[:, 0].tolist())
    return [steps[number] for number in sorted(steps)]


def check(dataset, part="array"):
    alone = sequence(dataset, 1, part)
    assert sorted(chain(*alone)) == list(range(SAMPLES))
    assert sequence(dataset, 3, part) == alone
    assert sequence(pickle.loads(pickle.dumps(dataset)), 2, part) == alone
    plain = dataset.fields(x=penstock.tensor("int16", (5, 3)).of(part))
    rows = np.concatenate([batch["x"] for batch in penstock.Loader(plain, batch_size=5)])
    assert (rows == ROWS).all()


@pytest.mark.parametrize("kind", ZARR)
def test_zarr_gives_the_rows(tmp_path, kind):
    folder = tmp_path / "train.zarr"
    zarr.create_array(folder, shape=ROWS.shape, dtype="<i2", **ZARR[kind])[:] = ROWS
    dataset = penstock.open(folder)
    assert (dataset.format, dataset.rung, dataset.counted().samples) == ("zarr", "format", SAMPLES)
    assert dataset.schema()["array"] == penstock.tensor("int16", (5, 3))
    check(dataset)


@pytest.mark.parametrize("kind", HDF5)
def test_hdf5_gives_the_rows_of_all_files(tmp_path, kind):
    for name, rows in {"a.h5": ROWS[:13], "b.h5": ROWS[13:]}.items():
        with h5py.File(tmp_path / name, "w") as file:
            file.create_dataset("deep/x", data=rows, **HDF5[kind])
    dataset = penstock.open(tmp_path / "*.h5", format=penstock.formats.hdf5("/deep/x"))
    assert dataset.counted().samples == SAMPLES
    check(dataset, "deep/x")


@pytest.mark.parametrize("kind", ["zarr", "hdf5"])
def test_several_arrays_of_other_chunks_side_by_side(tmp_path, kind):
    labels = np.arange(SAMPLES, dtype="<i8") * 7
    if kind == "zarr":
        group = zarr.create_group(tmp_path / "d")
        group.create_array("x", shape=ROWS.shape, chunks=(4, 5, 3), dtype="<i2")[:] = ROWS
        group.create_array("y", shape=(SAMPLES,), chunks=(9,), dtype="<i8")[:] = labels
        group.create_array("other", shape=(3,), chunks=(3,), dtype="<i8")
        with pytest.raises(ConfigError, match="has 22 rows, but `other` has 3"):
            penstock.open(tmp_path / "d")
        dataset = penstock.open(tmp_path / "d", format=penstock.formats.zarr("x", "y"))
    else:
        with h5py.File(tmp_path / "d.h5", "w") as file:
            file.create_dataset("x", data=ROWS, chunks=(4, 5, 3))
            file["y"] = labels
        dataset = penstock.open(tmp_path / "d.h5", format=penstock.formats.hdf5("x", "y"))
    for batch in penstock.Loader(dataset.shuffle(seed=3), batch_size=4):
        assert (batch["x"][:, 0, 0] * 7 == batch["y"]).all()


def test_what_was_never_written_is_the_fill_value(tmp_path):
    array = zarr.create_array(tmp_path / "z", shape=(12, 2), chunks=(3, 1), dtype="<f4", fill_value=2.5)
    array[3:6, 0] = 1
    with h5py.File(tmp_path / "d.h5", "w") as file:
        stored = file.create_dataset("x", shape=(12, 2), chunks=(3, 1), dtype="<f4", fillvalue=2.5)
        stored[3:6, 0] = 1
        file.create_dataset("none", shape=(12, 2), dtype="<f4", fillvalue=2.5)
    output = penstock.formats.hdf5("x", "none")
    want = np.full((12, 2), 2.5, "<f4")
    (missing,) = penstock.Loader(penstock.open(tmp_path / "d.h5", format=output), batch_size=12)
    assert (missing["none"] == want).all()
    want[3:6, 0] = 1
    (batch,) = penstock.Loader(penstock.open(tmp_path / "z"), batch_size=12)
    assert (batch["array"] == want).all()
    assert (missing["x"] == want).all()


def test_ranks_and_windows_read_chunks_and_not_the_file(tmp_path):
    with h5py.File(tmp_path / "d.h5", "w") as file:
        file["x"] = np.arange(64, dtype="<i4").repeat(64 << 10).reshape(64, -1)  # 256 KiB each
    dataset = penstock.open(tmp_path / "d.h5", format=penstock.formats.hdf5("x"))
    assert dataset.source.objects == 16
    loader = penstock.Loader(dataset.take(4), batch_size=4)
    (batch,) = loader
    assert batch["x"][:, -1].tolist() == [0, 1, 2, 3]


def zarr_with(folder, change):
    zarr.create_array(folder, shape=(8, 2), chunks=(4, 2), dtype="<i4", compressors=None)[:] = 1
    text = json.loads((folder / "zarr.json").read_text())
    change(text)
    (folder / "zarr.json").write_text(json.dumps(text))


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda text: text.update(shape=[2**60, 2]), Unsupported),
        (lambda text: text.update(shape=[8, 2**61]), PenstockError),
        (lambda text: text.update(shape=[]), PenstockError),
        (lambda text: text.update(shape=[8, 0]), ConfigError),
        (lambda text: text.update(codecs=[{"name": "bz2"}]), Unsupported),
        (lambda text: text.pop("data_type"), PenstockError),
    ],
)
def test_metadata_that_cannot_be_are_refused(tmp_path, change, error):
    zarr_with(tmp_path / "z", change)
    with pytest.raises(error):
        penstock.open(tmp_path / "z")


def test_damage_is_named(tmp_path):
    zarr_with(tmp_path / "z", lambda _: None)
    chunk = tmp_path / "z" / "c" / "1" / "0"
    chunk.write_bytes(chunk.read_bytes()[:-1])
    dataset = penstock.open(tmp_path / "z")
    with pytest.raises(Corrupt, match=r"z/c/1/0 chunk \[1, 0\].* 31 bytes \(want 32\)"):
        list(penstock.Loader(dataset, batch_size=8))
    (batch,) = penstock.Loader(dataset, batch_size=8, on_error="skip")
    assert len(batch["array"]) == 4
    # Deleted after the listing.
    chunk.unlink()
    with pytest.raises(NotFound):
        list(penstock.Loader(dataset, batch_size=8))


def test_what_does_not_fit_says_so(tmp_path):
    zarr.create_array(tmp_path / "z", shape=(8, 2), chunks=(4, 2), dtype="<i4")[:] = 1
    output = penstock.formats.zarr("gone")
    with pytest.raises(ConfigError, match="no array `gone`"):
        penstock.open(tmp_path / "z", format=output)
    (tmp_path / "e").mkdir()
    (tmp_path / "e" / "a").write_bytes(b"a")
    with pytest.raises(NotFound, match=r"zarr\.json or \.zarray"):
        penstock.open(tmp_path / "e", format="zarr")
    with pytest.raises(BudgetExceeded):
        list(penstock.Loader(penstock.open(tmp_path / "z"), batch_size=1, memory_bytes=100))
    with pytest.raises(ConfigError, match="records_per_object"):
        penstock.open(tmp_path / "z", records_per_object=3).counted()
    with h5py.File(tmp_path / "d.h5", "w") as file:
        file.create_dataset("lzf", data=ROWS, chunks=(4, 5, 3), compression="lzf")
        file["text"] = ["a", "b"]
    with pytest.raises(ConfigError, match=r"formats\.hdf5"):
        penstock.open(tmp_path / "d.h5")
    for name, error in {"lzf": Unsupported, "text": Unsupported, "gone": ConfigError}.items():
        with pytest.raises(error):
            penstock.open(tmp_path / "d.h5", format=penstock.formats.hdf5(name))
    (tmp_path / "bad.h5").write_bytes(b"no hdf5 at all")
    with pytest.raises(Corrupt, match="cannot be read as HDF5"):
        penstock.open(tmp_path / "bad.h5", format=penstock.formats.hdf5("x"))

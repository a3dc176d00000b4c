# SPDX-License-Identifier: Apache-2.0
"""Tests Zarr and HDF5 in a bucket: rows and order match the local folder, and each range takes one request.

Also tests the node's cache.
"""

from __future__ import annotations

import h5py
import numpy as np
import pytest
import zarr

import penstock

SAMPLES = 22
ROWS = np.arange(SAMPLES, dtype="<i2")[:, None, None] * np.ones((5, 3), "<i2")
LABELS = np.arange(SAMPLES, dtype="<i8") * 7


def zarr_flat(folder):
    zarr.create_array(folder / "train", shape=ROWS.shape, chunks=(4, 2, 2), dtype="<i2")[:] = ROWS


def zarr_sharded(folder):
    zarr.create_array(folder / "train", shape=ROWS.shape, chunks=(2, 5, 2), shards=(8, 5, 4), dtype="<i2")[:] = ROWS


def zarr_group(folder):
    """Each chunk of labels belongs to several blocks of images."""
    group = zarr.create_group(folder / "train")
    group.create_array("x", shape=ROWS.shape, chunks=(4, 5, 3), dtype="<i2")[:] = ROWS
    group.create_array("y", shape=LABELS.shape, chunks=(9,), dtype="<i8")[:] = LABELS
    return penstock.formats.zarr("x", "y")


def hdf5(folder):
    (folder / "train").mkdir(parents=True)
    for name, part in {"a.h5": slice(0, 13), "b.h5": slice(13, None)}.items():
        with h5py.File(folder / "train" / name, "w") as file:
            file.create_dataset("x", data=ROWS[part], chunks=(4, 2, 3), compression="gzip")
            file.create_dataset("y", data=LABELS[part], chunks=(9,))
    return penstock.formats.hdf5("x", "y")


KINDS = {made.__name__: made for made in (zarr_flat, zarr_sharded, zarr_group, hdf5)}


@pytest.fixture(params=KINDS)
def both(request, tmp_path, emulator, monkeypatch):
    """The same arrays in a folder and in a bucket, and the bucket's server."""
    folder = tmp_path / "arrays"
    output = KINDS[request.param](folder)
    server = emulator(folder=folder)
    for name, value in server.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("PENSTOCK_SCRATCH", raising=False)
    here = penstock.open(folder / "train", format=output)
    there = penstock.open(f"{server.url.rstrip('/')}/train", format=output)
    return here.shuffle(seed=5, window=2), there.shuffle(seed=5, window=2), server


def epochs(loader, count=1):
    """Sample numbers of every batch; each row identifies its sample."""
    seen = []
    for _ in range(count):
        for batch in loader:
            x = batch["x"] if "x" in batch else batch["array"]
            assert (x == x[:, :1, :1]).all()
            if "y" in batch:
                assert (x[:, 0, 0] * 7 == batch["y"]).all()
            seen.append(x[:, 0, 0].tolist())
    return seen


def test_arrays_in_a_bucket_give_the_batches_of_the_folder(both):
    here, there, _ = both
    assert epochs(penstock.Loader(there.cache(False), batch_size=4)) == epochs(penstock.Loader(here, batch_size=4))
    halves = [epochs(penstock.Loader(there.cache(False), global_batch=4, rank=rank, world=2)) for rank in range(2)]
    assert [a + b for a, b in zip(*halves, strict=True)] == epochs(penstock.Loader(here, batch_size=4))


def test_arrays_in_the_nodes_cache_leave_the_store_once(both, tmp_path):
    here, there, server = both
    before = server.stats()["gets"]
    alone = epochs(penstock.Loader(there.cache(False), batch_size=4))
    uncached = server.stats()["gets"] - before
    kept = there.cache(tmp_path / "nvme")
    before = server.stats()["gets"]
    loader = penstock.Loader(kept, batch_size=4)
    want = epochs(penstock.Loader(here, batch_size=4), 3)
    assert epochs(loader, 3) == want
    assert want[: len(alone)] == alone
    first = server.stats()["gets"] - before
    # A byte range that two blocks share is also fetched only once.
    assert 0 < first <= uncached
    assert (loader.report()["cache_misses"], loader.report()["bytes_in"]) == (0, 0)
    before = server.stats()["gets"]
    for rank in range(3):  # simulates other processes of the node: other ranks, another batch
        assert epochs(penstock.Loader(kept, global_batch=6, rank=rank, world=3))
    assert server.stats()["gets"] == before


def test_arrays_under_a_limit_keep_it_and_lose_nothing(both, tmp_path):
    here, there, _ = both
    limit = 4096
    loader = penstock.Loader(there.cache(tmp_path / "nvme", limit_bytes=limit), batch_size=4)
    assert epochs(loader, 3) == epochs(penstock.Loader(here, batch_size=4), 3)
    entries = (tmp_path / "nvme/penstock-cache-1/objects").glob("*/*")
    assert sum(entry.stat().st_size for entry in entries) <= limit


def test_chunks_that_lie_together_are_one_request(tmp_path, emulator, monkeypatch):
    rows = np.arange(16, dtype="<i4")[:, None] * np.ones(64, "<i4")
    with h5py.File(tmp_path / "d.h5", "w") as file:
        file.create_dataset("x", data=rows, chunks=(4, 8))
    server = emulator(folder=tmp_path)
    for name, value in server.env.items():
        monkeypatch.setenv(name, value)
    dataset = penstock.open(f"{server.url.rstrip('/')}/d.h5", format=penstock.formats.hdf5("x"))
    before = server.stats()["gets"]
    (batch,) = penstock.Loader(dataset, batch_size=16)
    assert (batch["x"] == rows).all()
    assert server.stats()["gets"] - before == 4  # blocks of 8 chunks each

# SPDX-License-Identifier: Apache-2.0
"""Tests that processes can write one array at once without losing data, and that a box of partial objects is
rejected.
"""

from __future__ import annotations

import subprocess
import sys

import dask.array
import numpy as np
import pytest
import zarr

import penstock.arrays
from penstock.arrays.writer import create_array, open_writer
from penstock.errors import ConfigError, Corrupt, Mismatch, NotFound
from tests.arrays.segy_files import noise


def test_array_is_written_by_regions_and_read_by_zarr_python(tmp_path):
    values = noise((40, 30 * 20)).reshape(40, 30, 20)
    writer = create_array(
        tmp_path / "a", values.shape, "f4", dims=["x", "y", "z"], chunks=(4, 8, 5), shards=(16, 16, 20)
    )
    for rank in range(3):
        for region in writer.regions(rank, 3):
            writer[region] = values[region]
    found = zarr.open_array(str(tmp_path / "a"), mode="r")
    assert np.array_equal(found[:], values)
    assert found.metadata.dimension_names == ("x", "y", "z")
    assert penstock.arrays.open(tmp_path / "a").dims == ("x", "y", "z")


@pytest.mark.parametrize("key", [np.s_[1:16], np.s_[0:15], np.s_[:, 3:], np.s_[0:8]])
def test_box_that_cuts_an_object_is_refused(key, tmp_path):
    writer = create_array(tmp_path / "a", (40, 30), "f4", chunks=(4, 8), shards=(16, 16))
    with pytest.raises(ConfigError, match=r"starts or ends inside an object of length 16"):
        writer[key] = 1
    assert np.array_equal(penstock.arrays.open(tmp_path / "a")[...], np.zeros((40, 30)))


def test_four_processes_lose_nothing(tmp_path):
    create_array(tmp_path / "a", (64, 64, 64), "i4", chunks=(8, 8, 8), shards=(16, 16, 64))
    script = (
        "import sys\nfrom penstock.arrays.writer import open_writer\nw = open_writer(sys.argv[1])\nr = int(sys.argv[2])\n"
        "for box in w.regions(r, 4):\n    w[box] = r + 1\n"
    )
    children = [subprocess.Popen([sys.executable, "-c", script, str(tmp_path / "a"), str(rank)]) for rank in range(4)]
    assert [child.wait() for child in children] == [0] * 4
    got = penstock.arrays.open(tmp_path / "a")[...]
    assert [int((got == rank + 1).sum()) for rank in range(4)] == [64**3 // 4] * 4


def test_dask_stores_whole_objects_and_is_refused_otherwise(tmp_path):
    values = dask.array.ones((32, 32), chunks=(16, 16), dtype="f4")
    dask.array.store(values, create_array(tmp_path / "a", (32, 32), "f4", chunks=(8, 8), shards=(16, 16)), lock=False)
    assert penstock.arrays.open(tmp_path / "a")[...].sum() == 1024
    with pytest.raises(ConfigError, match="starts or ends inside an object"):
        dask.array.store(
            values.rechunk((8, 8)),
            create_array(tmp_path / "b", (32, 32), "f4", chunks=(8, 8), shards=(16, 16)),
            lock=False,
        )


def test_values_that_the_array_cannot_hold_are_refused(tmp_path):
    writer = create_array(tmp_path / "a", (8,), "i2", chunks=(8,))
    for values in (np.ones(8), np.ones(8, dtype="i4"), np.ones(8, dtype="u2"), np.array(["a"] * 8)):
        with pytest.raises(ConfigError, match="without loss"):
            writer[:] = values
    writer[:] = np.arange(8, dtype="i2")
    with pytest.raises(Mismatch, match="exists"):
        create_array(tmp_path / "a", (8,), "i2")
    with pytest.raises(NotFound):
        open_writer(tmp_path / "none")


def test_writer_of_metadata_without_a_key_names_the_key(tmp_path):
    (tmp_path / "zarr.json").write_text('{"zarr_format": 3, "node_type": "array"}')
    with pytest.raises(Corrupt, match=r"zarr\.json: the key 'shape' is missing"):
        open_writer(tmp_path)

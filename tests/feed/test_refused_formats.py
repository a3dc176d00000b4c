# SPDX-License-Identifier: Apache-2.0
"""Tests the formats that docs/guides/formats.md lists as refused: each raises `Unsupported` with the format's name."""

from __future__ import annotations

import bz2
import io
import lzma
import tarfile
import zlib

import h5py
import numpy as np
import pytest

import penstock
from penstock.errors import Corrupt, Unsupported

from .test_unknown_columns import example

ROWS = np.arange(12.0).reshape(4, 3)


def npy_bytes(array):
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


@pytest.mark.parametrize("rows", [False, True])
def test_npy_in_fortran_order_is_refused_with_its_shape(tmp_path, rows):
    np.save(tmp_path / "a.npy", np.asfortranarray(ROWS))
    with pytest.raises(Unsupported, match=r"Fortran order \(.*a\.npy, shape \[4, 3\]; save numpy\.ascontiguousarray"):
        penstock.open(tmp_path, format=penstock.formats.npy(rows=rows)).schema()


def test_npy_in_fortran_order_inside_archives_is_left_out_with_the_reason(tmp_path):
    np.savez(tmp_path / "a.npz", npy=np.asfortranarray(ROWS), other=ROWS)
    content = npy_bytes(np.asfortranarray(ROWS))
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        member = tarfile.TarInfo("0.npy")
        member.size = len(content)
        tar.addfile(member, io.BytesIO(content))
    for name in ("a.npz", "a.tar"):
        ((part, reason),) = penstock.open(tmp_path / name).schema().left_out
        assert (part, "Fortran order" in reason) == ("npy", True)


def hdf5_refusal(path, name="x"):
    with pytest.raises(Unsupported) as caught:
        penstock.open(path, format=penstock.formats.hdf5(name))
    return str(caught.value), caught.value.hint


def test_hdf5_with_a_user_block_is_refused_with_the_tool_that_removes_it(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w", userblock_size=512) as file:
        file["x"] = ROWS
    text, hint = hdf5_refusal(tmp_path / "a.h5")
    assert "a user block of 512 bytes" in text
    assert hint.startswith("remove the user block: h5unjam")


@pytest.mark.parametrize("layout", ["compact", "virtual", "external"])
def test_hdf5_layout_that_is_refused_is_named_with_its_dataset(tmp_path, layout):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        match layout:
            case "compact":
                plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
                plist.set_layout(h5py.h5d.COMPACT)
                space = h5py.h5s.create_simple(ROWS.shape)
                h5py.h5d.create(file.id, b"x", h5py.h5t.NATIVE_DOUBLE, space, plist).write(space, space, ROWS)
            case "virtual":
                file["y"] = ROWS
                virtual = h5py.VirtualLayout(shape=ROWS.shape, dtype=ROWS.dtype)
                virtual[:] = h5py.VirtualSource(file["y"])
                file.create_virtual_dataset("x", virtual)
            case "external":
                stored = [(str(tmp_path / "x.bin"), 0, ROWS.nbytes)]
                file.create_dataset("x", ROWS.shape, ROWS.dtype, external=stored)[:] = ROWS
    with h5py.File(tmp_path / "a.h5") as file:
        assert (file["x"][:] == ROWS).all()
    text, hint = hdf5_refusal(tmp_path / "a.h5")
    assert f"the {layout} layout of `x`" in text
    assert hint.startswith("write the dataset again")


@pytest.mark.parametrize(
    ("number", "name"),
    [(307, "bzip2"), (32000, "LZF"), (32004, "LZ4"), (32008, "bitshuffle"), (32013, "ZFP"), (32026, "Blosc2")],
)
def test_hdf5_filter_that_is_refused_is_named(tmp_path, number, name):
    # Regression: the error gave only the number of a plug-in filter.
    with h5py.File(tmp_path / "a.h5", "w") as file:
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plist.set_chunk((2, 3))
        plist.set_filter(number, h5py.h5z.FLAG_OPTIONAL)
        h5py.h5d.create(file.id, b"x", h5py.h5t.NATIVE_DOUBLE, h5py.h5s.create_simple(ROWS.shape), plist)
    text, _ = hdf5_refusal(tmp_path / "a.h5")
    assert f"the {name} filter ({number}) of " in text


def test_tfrecord_compressed_by_zlib_is_refused_by_name(tmp_path):
    (tmp_path / "a.tfrecord").write_bytes(zlib.compress(example(x=[1])))
    with pytest.raises(Unsupported, match=r"zlib compression \(.*a\.tfrecord; .*ZLIB"):
        penstock.open(tmp_path).schema()


def test_brotli_objects_are_refused_by_suffix(tmp_path):
    (tmp_path / "a.tfrecord.br").write_bytes(bytes.fromhex("0b028068656c6c6f03"))  # `hello`
    with pytest.raises(Unsupported, match=r"\.br"):
        penstock.open(tmp_path)


@pytest.mark.parametrize("module", [bz2, lzma, zlib])
def test_tar_under_a_plain_name_with_an_unread_compression_is_named(tmp_path, module):
    # Regression: such a tar was reported as damaged.
    (tmp_path / "a.tar").write_bytes(module.compress(bytes(10_000)))
    with pytest.raises(Corrupt, match=r"a\.tar is not a tar archive: it looks like (bzip2|xz|zlib)-compressed data"):
        penstock.open(tmp_path).schema()

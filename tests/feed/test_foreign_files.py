# SPDX-License-Identifier: Apache-2.0
"""Tests forms that files of other programs have (docs/reference/foreign.md): what is read, and what each error advises."""

from __future__ import annotations

import io
import json
import tarfile
from decimal import Decimal

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.errors import ConfigError, Unsupported


@pytest.mark.parametrize(
    ("name", "content", "want"),
    [
        ("a.csv", b"x,y\n", r"a\.csv contains no record after its header \(4 bytes\)"),
        ("a.jsonl", b"", r"a\.jsonl contains no record \(0 bytes\)"),
        ("a.tar", bytes(1024), r"a\.tar contains no record \(a tar's samples .*\) \(1,024 bytes\)"),
    ],
)
def test_object_without_records_is_an_error_with_its_name_and_size(tmp_path, name, content, want):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=want) as caught:
        penstock.open(tmp_path).schema()
    assert str(caught.value).endswith(" bytes); check that the object was written completely")
    assert caught.value.hint is None


def arrow_bytes(table):
    out = io.BytesIO()
    with pa.ipc.new_file(out, table.schema) as writer:
        writer.write_table(table)
    return out.getvalue()


def parquet_bytes(table):
    out = io.BytesIO()
    pq.write_table(table, out)
    return out.getvalue()


def npy_bytes(array):
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def sparse_tar():
    member = tarfile.TarInfo("a.txt")
    member.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "9"}
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(member)
    return out.getvalue()


DECIMALS = pa.table({"price": [Decimal("1.5")]})
ZARRAY = {
    "zarr_format": 2,
    "shape": [4],
    "chunks": [4],
    "dtype": "|O",
    "compressor": None,
    "fill_value": 0,
    "order": "C",
    "filters": None,
}


@pytest.mark.parametrize(
    ("name", "content", "advice"),
    [
        ("a.arrow", arrow_bytes(DECIMALS), "read other columns"),
        ("a.parquet", parquet_bytes(DECIMALS), "read other columns"),
        ("a.npy", npy_bytes(np.array(["text"])), "save plain numbers in C order"),
        ("a.tar", sparse_tar(), "write the archive again"),
        ("a.zarr/.zarray", json.dumps(ZARRAY).encode(), "write the numbers again in C order"),
    ],
)
def test_form_that_is_not_read_is_an_error_with_advice(tmp_path, name, content, advice):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(Unsupported) as caught:
        penstock.open((tmp_path / name).parent).schema()
    assert caught.value.hint.startswith(advice)


def test_hdf5_that_is_not_an_array_of_numbers_is_an_error_with_advice(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["scalar"], file["text"], file["none"] = 1.5, np.array([b"ab"]), np.zeros((2, 0))
    for name, want in [
        ("scalar", "`scalar` is a single value, not an array; select arrays with at least one dimension"),
        ("none", "`none` of shape [2, 0] in chunks of [1048576, 0] has no rows to use as samples"),
        ("text", "`text` contains |S2, not plain numbers"),
    ]:
        with pytest.raises((ConfigError, Unsupported)) as caught:
            penstock.open(tmp_path / "a.h5", format=penstock.formats.hdf5(name))
        assert str(caught.value).endswith(want)


def test_field_may_have_the_name_self(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"self": 1}\n')
    dataset = penstock.open(tmp_path)
    (batch,) = penstock.Loader(dataset.fields(**dict(dataset.schema().specs)), batch_size=1, rank=0, world=1)
    assert batch["self"].tolist() == [1]


@pytest.mark.parametrize(
    ("content", "kind"), [(b"BM\x36\0\0\0\0\0\0\0", "a BMP image"), (b"Rar!\x1a\x07\0", "a RAR archive")]
)
def test_unsupported_format_is_named(tmp_path, content, kind):
    (tmp_path / "a.bmp").write_bytes(content + bytes(99))
    with pytest.raises(Unsupported, match=kind):
        penstock.open(tmp_path)

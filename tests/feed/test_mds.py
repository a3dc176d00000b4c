# SPDX-License-Identifier: Apache-2.0
"""Tests MosaicML's MDS: columns are read in their declared encodings, and folders as their index describes them.

Also tests that errors name the cause.
"""

from __future__ import annotations

import json
import pickle
import struct

import numpy as np
import pytest

import penstock
from penstock.errors import Mismatch, NotFound, Unsupported

SIZES = {"int": 8, "uint32": 4, "uint64": 8, "ndarray:uint32:3": 12}
"""Bytes of each value, for the encodings of fixed size that are used here."""


def write(folder, columns, shards, compression=None):
    """Writes MDS shards (version 2) and their index; the values of the samples are already encoded."""
    listed = []
    for number, samples in enumerate(shards):
        rows = []
        for sample in samples:
            values = [sample[name] for name in columns]
            sizes = [len(v) for v, kind in zip(values, columns.values(), strict=True) if kind not in SIZES]
            rows.append(struct.pack(f"<{len(sizes)}I", *sizes) + b"".join(values))
        ends = np.cumsum([4 * (len(rows) + 2), *map(len, rows)]).tolist()
        content = struct.pack(f"<{len(rows) + 2}I", len(rows), *ends) + b"".join(rows)
        name = f"shard.{number:05d}.mds"
        raw = {"basename": name, "bytes": len(content), "hashes": {}}
        packed = compression and {**raw, "basename": f"{name}.{compression}"}
        (folder / (packed or raw)["basename"]).write_bytes(content)
        listed.append(
            {
                "version": 2,
                "format": "mds",
                "samples": len(samples),
                "compression": compression,
                "column_names": list(columns),
                "column_encodings": list(columns.values()),
                "column_sizes": [SIZES.get(kind) for kind in columns.values()],
                "raw_data": raw,
                "zip_data": packed,
                "hashes": [],
                "size_limit": 1 << 26,
            }
        )
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": listed}))


def first(dataset, size):
    (batch,) = penstock.Loader(dataset, batch_size=size)
    return batch


def test_mds_shards_are_read_by_their_index(tmp_path):
    samples = [{"label": struct.pack("<q", at), "text": b"t" * at} for at in range(5)]
    write(tmp_path, {"label": "int", "text": "str"}, [samples[:3], samples[3:]])
    dataset = penstock.open(tmp_path)
    assert (dataset.format, dataset.samples, dataset.counted().rung) == ("mds", 5, "format")
    batch = first(dataset, 5)
    assert batch["label"].tolist() == [0, 1, 2, 3, 4]
    assert [bytes(text) for text in batch["text"]] == [b"t" * at for at in range(5)]
    batch = first(pickle.loads(pickle.dumps(dataset.shuffle(1))), 5)
    assert sorted(batch["label"].tolist()) == [0, 1, 2, 3, 4]


def test_mds_columns_default_to_their_declared_types(tmp_path):
    # Regression: a text column was taken for numbers if its first value was digits; one bad column failed
    # all.
    columns = {
        "zip": ("str", [b"00501", b"a cat"]),
        "digits": ("str_int", [b"00501", b"-7"]),
        "ratio": ("str_float", [b"0.0", b"1e-3"]),
        "price": ("str_decimal", [b"0.10", b"12345678901234567890.01"]),
        "u32": ("uint32", [struct.pack("<I", 2**32 - 1), bytes(4)]),
        "u64": ("uint64", [struct.pack("<Q", 2**64 - 1), bytes(8)]),
        "ids": ("ndarray:uint32:3", [struct.pack("<3I", 1, 2, 2**31), bytes(12)]),
        # The shape precedes the values: one dimension, stored in one byte.
        "free": ("ndarray:uint64", [b"\x04\x01" + struct.pack("<Q", 2**63), b"\x04\x01" + bytes(8)]),
        "any": ("ndarray", [b"\x20\x04\x01" + struct.pack("<I", 2**31), b"\x20\x04\x01" + bytes(4)]),
        "info": ("json", [b'{"a": 1}', b"{}"]),
        "object": ("pkl", [pickle.dumps({"a": 1}), pickle.dumps(None)]),
        "own": ("quaternion", [b"qqqq", b""]),
    }
    samples = [{name: values[at] for name, (_, values) in columns.items()} for at in range(2)]
    write(tmp_path, {name: kind for name, (kind, _) in columns.items()}, [samples])
    dataset = penstock.open(tmp_path)
    specs = dict(dataset.schema().specs)
    text = {"zip", "price", "info", "object", "own"}
    assert {name for name, spec in specs.items() if spec == penstock.raw()} == text
    assert {name: str(spec) for name, spec in specs.items() if name not in text} == {
        "digits": "int64 []",
        "ratio": "float64 []",
        "u32": "uint32 []",
        "u64": "uint64 []",
        "ids": "uint32 [3]",
        "free": "uint64 [1]",
        "any": "uint32 [1]",
    }
    batch = first(dataset, 2)
    for name in text:
        assert [bytes(value) for value in batch[name]] == columns[name][1]
    assert (batch["digits"].tolist(), batch["ratio"].tolist()) == ([501, -7], [0.0, 1e-3])
    assert (batch["u32"].tolist(), batch["u64"].tolist()) == ([2**32 - 1, 0], [2**64 - 1, 0])
    assert batch["ids"].tolist() == [[1, 2, 2**31], [0, 0, 0]]
    assert (batch["free"].tolist(), batch["any"].tolist()) == ([[2**63], [0]], [[2**31], [0]])
    with pytest.raises(Mismatch, match=r"`zip` expects int64 .* contains the text `a cat`"):
        first(dataset.fields(zip=penstock.tensor("int64", ())), 2)


def test_mds_column_that_no_field_reads_is_left_out_of_the_default_fields(tmp_path, caplog):
    bits = struct.pack("<III", 8, 1, 1) + b"1" + b"\xff"  # Pillow's mode `1`
    write(tmp_path, {"id": "int", "mask": "pil"}, [[{"id": bytes(8), "mask": bits}]])
    dataset = penstock.open(tmp_path)
    assert [name for name, _ in dataset.schema().specs] == ["id"]
    ((name, reason),) = dataset.schema().left_out
    assert name == "mask"
    assert "Pillow's mode `1`" in reason
    assert "left out" in str(dataset.schema())
    assert first(dataset, 1)["id"].tolist() == [0]
    assert caplog.text.count("do not include `mask`") == 1
    assert "are ignored" not in caplog.text
    write(tmp_path, {"mask": "pil"}, [[{"mask": bits}]])
    with pytest.raises(Unsupported, match="Pillow's mode `1`"):
        penstock.open(tmp_path).schema()


@pytest.mark.parametrize(("suffix", "name"), [("br", "Brotli"), ("bz2", "bzip2"), ("snappy", "Snappy")])
def test_mds_of_a_compression_that_is_not_read_says_which(tmp_path, suffix, name):
    write(tmp_path, {"text": "str"}, [[{"text": b"a"}]], compression=suffix)
    with pytest.raises(Unsupported, match=rf"MDS shards compressed by {name} \(`{suffix}`.*index\.json"):
        penstock.open(tmp_path)


def test_mds_of_which_a_shard_is_missing_says_which(tmp_path):
    write(tmp_path, {"text": "str"}, [[{"text": b"a"}], [{"text": b"b"}], [{"text": b"c"}]])
    (tmp_path / "shard.00001.mds").unlink()
    with pytest.raises(NotFound, match=r"shard\.00001\.mds \(1 of the 3 shards that index\.json lists are missing\)"):
        penstock.open(tmp_path)
    assert penstock.open(f"{tmp_path}/shard.00000.mds").samples == 1

# SPDX-License-Identifier: Apache-2.0
"""Tests record parts that may be missing: tensors and bytes get defaults, and ragged fields get no items.

Also tests how `schema()` reports them.
"""

from __future__ import annotations

import io
import math
import pickle
import struct
import tarfile

import numpy as np
import pytest

import penstock
from penstock import _native
from penstock.errors import ConfigError, Mismatch

from .test_formats import png


def field(number, payload):
    length, head = len(payload), bytes([number << 3 | 2])
    while length >= 0x80:
        head += bytes([length & 0x7F | 0x80])
        length >>= 7
    return head + bytes([length]) + payload


def feature(value):
    """A Feature message of the kind of the list's elements; None gives an empty one, () an empty int64_list."""
    if value is None:
        return b""
    if value == ():
        return field(3, b"")
    if value == []:
        return field(1, b"")
    if isinstance(value[0], bytes):
        return field(1, b"".join(field(1, one) for one in value))
    if isinstance(value[0], float):
        return field(2, field(1, np.array(value, "<f4").tobytes()))
    return field(3, field(1, bytes(value)))  # varints below 128


def example(**features):
    entries = b"".join(field(1, field(1, name.encode()) + field(2, feature(value))) for name, value in features.items())
    return framed(field(1, entries))


def framed(payload):
    def masked(data):
        crc = _native.crc32c(data)
        return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)

    length = struct.pack("<Q", len(payload))
    return length + masked(length) + payload + masked(payload)


RECORDS = [
    {"id": [0], "fare": [1.5], "company": [b"cab"], "tokens": [1, 2], "pair": [1, 2]},
    {"id": [1], "fare": None, "company": None},
    {"id": [2], "fare": [2.5], "company": [], "tokens": (), "pair": ()},
    {"id": [3]},
    {"id": [4], "fare": [3.5], "company": [b"bus"], "tokens": [3], "pair": [3, 4]},
]


@pytest.fixture
def taxi(tmp_path):
    (tmp_path / "a.tfrecord").write_bytes(b"".join(example(**record) for record in RECORDS))
    return penstock.open(tmp_path)


def whole(dataset, **arguments):
    (batch,) = penstock.Loader(dataset, batch_size=8, rank=0, world=1, **arguments)
    return batch


def test_optional_features_have_defaults_or_no_items(taxi):
    # Regression: no spec could read a feature that some records lack (TFX's taxi shards).
    asked = taxi.fields(
        fare=penstock.tensor("float32", (), default=-1),
        pair=penstock.tensor("int16", (2,), default=7),
        company=penstock.raw(default=b"none"),
        tokens=penstock.ragged("int64"),
    )
    for dataset in (asked, pickle.loads(pickle.dumps(asked)), asked.shuffle(seed=1)):
        batch = whole(dataset.fields(id=penstock.tensor("int64", ()), **dict(dataset.specs)))
        order = np.argsort(batch["id"])
        assert batch["fare"][order].tolist() == [1.5, -1, 2.5, -1, 3.5]
        assert batch["pair"][order].tolist() == [[1, 2], [7, 7], [7, 7], [7, 7], [3, 4]]
        assert [batch["company"][at] for at in order] == [b"cab", b"none", b"none", b"none", b"bus"]
        values, offsets = batch["tokens"]
        assert [values[offsets[at] : offsets[at + 1]].tolist() for at in order] == [[1, 2], [], [], [], [3]]
    unindexed = penstock.open(taxi.url, indexed=False).fields(**dict(asked.specs))
    assert whole(unindexed)["fare"].tolist() == [1.5, -1, 2.5, -1, 3.5]


def test_optional_features_are_read_from_the_first_part_with_a_value(taxi):
    spec = penstock.tensor("float32", (), default=math.nan).of("missing;fare")
    assert np.array_equal(whole(taxi.fields(x=spec))["x"], [1.5, math.nan, 2.5, math.nan, 3.5], equal_nan=True)


def test_feature_that_is_missing_is_an_error_without_a_default(taxi):
    for name, spec in {"fare": penstock.tensor("float32", ()), "company": penstock.raw()}.items():
        with pytest.raises(Mismatch, match=rf"record 1.*field `{name}`"):
            whole(taxi.fields(**{name: spec}))
    # A default does not apply to a value that does not fit.
    with pytest.raises(Mismatch, match=r"record 0.*field `pair`"):
        whole(taxi.fields(pair=penstock.tensor("int64", (3,), default=0)))


def test_schema_marks_optional_features_and_reads_them_by_default(taxi):
    schema = taxi.schema()
    assert {name: str(spec) for name, spec in schema.specs} == {
        "id": "int64 []",
        "fare": "ragged float32 []",
        "company": "bytes, default b''",
        "tokens": "ragged int64 []",
        "pair": "ragged int64 []",
    }
    assert "a value in 3 of 5 records" in str(schema)
    batch = whole(taxi)
    assert batch["fare"].offsets.tolist() == [0, 1, 1, 2, 2, 3]
    assert batch["company"] == [b"cab", b"", b"", b"", b"bus"]


def test_schema_of_lists_that_differ_in_length_is_ragged(tmp_path):
    rows = [{"tokens": [1] * length, "same": [1, 2]} for length in (2, 3, 1)]
    (tmp_path / "a.tfrecord").write_bytes(b"".join(example(**row) for row in rows))
    specs = dict(penstock.open(tmp_path).schema().specs)
    assert (str(specs["tokens"]), str(specs["same"])) == ("ragged int64 []", "int64 [2]")


def test_schema_of_records_without_features_is_the_whole_record(tmp_path):
    for records in (example() * 2, framed(b"\x08\x01") * 2):  # without features; another protobuf message
        (tmp_path / "a.tfrecord").write_bytes(records)
        assert str(penstock.open(tmp_path).schema()) == f"record  bytes  {(len(records) - 32) // 2} bytes"


def test_members_that_a_tar_sample_lacks_have_defaults(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for name, content in {"0.txt": b"zero", "0.cls": b"5", "1.txt": b"one", "2.txt": b"two", "2.cls": b"7"}.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    dataset = penstock.open(tmp_path)
    batch = whole(dataset.fields(cls=penstock.tensor("int64", (), default=-1)))
    assert batch["cls"].tolist() == [5, -1, 7]
    assert whole(dataset)["cls"].offsets.tolist() == [0, 1, 1, 2]
    with pytest.raises(Mismatch, match=r"record 1.*field `cls`"):
        whole(dataset.fields(cls=penstock.tensor("int64", ())))


@pytest.mark.parametrize(
    ("dtype", "default"),
    [("int8", 200), ("uint8", -1), ("int64", 0.5), ("bool", 2), ("float16", 1e6), ("complex64", 0)],
)
def test_default_that_its_dtype_does_not_hold_is_refused(dtype, default):
    with pytest.raises(ConfigError, match=rf"is not a value of type {dtype}"):
        penstock.tensor(dtype, (), default=default)


def test_default_of_bytes_that_is_text_is_refused():
    with pytest.raises(ConfigError, match="must be bytes"):
        penstock.raw(default="none")
    with pytest.raises(ConfigError, match="cannot have a default"):
        penstock.formats.fixed(x=penstock.tensor("int8", (), default=1))


def test_texts_that_samples_lack_have_a_mask(taxi, tmp_path):
    batch = whole(taxi.fields(company=penstock.text(mask="has_company")))
    assert (batch["company"], batch["has_company"].tolist()) == (["cab", "", "", "", "bus"], [True, *[False] * 3, True])
    batch = whole(taxi.fields(company=penstock.text(default="none", mask="has_company")))
    assert batch["company"] == ["cab", "none", "none", "none", "bus"]
    (tmp_path / "b").mkdir()
    (tmp_path / "b/a.jsonl").write_text('{"t":"x"}\n{"t":null}\n{}\n{"t":""}\n')
    batch = whole(penstock.open(tmp_path / "b").fields(t=penstock.text(mask="has_t")))
    assert (batch["t"], batch["has_t"].tolist()) == (["x", "", "", ""], [True, False, False, True])
    with pytest.raises(ConfigError, match="two fields have the name n; one of them is the mask or rate of t"):
        penstock.open(tmp_path / "b").fields(t=penstock.text(mask="n"), n=penstock.text().of("t"))


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_images_that_samples_lack_have_defaults_and_masks(tmp_path, dtype):
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for name, content in {"0.cls": b"5", "1.cls": b"6", "1.png": png((9, 9, 9))}.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    dataset = penstock.open(tmp_path)
    for spec, fill in {
        penstock.image(4, dtype=dtype, crop="none", default=2, mask="has_image"): 2,
        penstock.image(4, dtype=dtype, crop="none", mask="has_image"): 0,
    }.items():
        for asked in (dataset, dataset.shuffle(seed=4)):
            batch = whole(asked.fields(image=spec.of("png"), cls=penstock.tensor("int64", ())))
            order = np.argsort(batch["cls"])
            assert batch["has_image"][order].tolist() == [False, True]
            assert (batch["image"][order[0]] == fill).all()
            assert np.allclose(batch["image"][order[1]], 9 if dtype == "uint8" else 9 / 255)
    with pytest.raises(Mismatch, match=r"record 0.*field `image`"):
        whole(dataset.fields(image=penstock.image(4).of("png")))
    with pytest.raises(ConfigError, match="300 is not a value of type uint8"):
        whole(dataset.fields(image=penstock.image(4, default=300).of("png")))


def test_masks_of_a_padded_tail_are_those_of_the_repeated_samples(taxi):
    loader = penstock.Loader(
        taxi.fields(fare=penstock.tensor("float32", (), mask="paid")), global_batch=8, rank=0, world=1, tail="pad"
    )
    (batch,) = loader
    assert batch["paid"].tolist() == [True, False, True, False, True, True, False, True]
    assert batch["weight"].tolist() == [1.0] * 5 + [0.0] * 3


def test_masks_are_seen_by_map_and_by_map_datasets(taxi):
    dataset = taxi.fields(tokens=penstock.ragged("int64", mask="has_tokens"))
    assert whole(dataset.map(lambda sample: {"is": bool(sample["has_tokens"])}))["is"].tolist() == [
        *(True, False, False, False, True)
    ]
    sample = penstock.torch.MapDataset(dataset)[4]
    assert (sample["tokens"].tolist(), bool(sample["has_tokens"])) == ([3], True)

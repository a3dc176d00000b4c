# SPDX-License-Identifier: Apache-2.0
"""Tests TFRecords that Penstock writes, that TensorFlow writes, and that are malformed."""

from __future__ import annotations

import gzip
import io
import math
import struct
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock._native import crc32c, decode_tfrecord, encode_tfrecord
from penstock.errors import ConfigError, Corrupt

GOLDEN = Path(__file__).parent / "golden"
CODECS = ("none", "gzip", "zstd", "lz4")

# x: 4 x 4 x 4 x 4 counts, int16; y: four floats; ids: three integers. golden/write.py writes the same values with
# TensorFlow.
X = b"".join(struct.pack("<h", n * n % 23) for n in range(256))
Y = [0.3089, 0.8159, 0.9667, 67.74]
IDS = [0, -1, 2**63 - 1]

values = st.one_of(
    st.binary(max_size=200),
    st.lists(st.binary(max_size=20), min_size=2, max_size=4),
    st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=20),
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20),
)
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@settings(deadline=None)
@given(features=st.dictionaries(names, values, max_size=6), codec=st.sampled_from(CODECS))
def test_tfrecord_round_trips_every_kind(features: dict, codec: str) -> None:
    stored = encode_tfrecord(features, codec=codec)
    assert decode_tfrecord(stored) == [features]
    assert decode_tfrecord(stored, codec=codec) == [features]
    assert encode_tfrecord(features, codec=codec) == stored


# A skippable frame of zstd or LZ4 (bytes 1 to 3 of its magic number) is a valid file without a record.
noise = st.binary(min_size=1, max_size=300).filter(lambda data: data[1:4] != b"\x2a\x4d\x18")


@settings(deadline=None)
@given(data=noise, codec=st.sampled_from([*CODECS, None]))
def test_tfrecord_of_noise_is_corrupt(data: bytes, codec: str | None) -> None:
    with pytest.raises(Corrupt, match=r"^the data ") as caught:
        decode_tfrecord(data, codec=codec)
    assert caught.value.where == "the data"


@pytest.mark.parametrize("codec", ["none", None])
def test_tfrecord_of_zero_bytes_has_zero_records(codec: str | None) -> None:
    assert decode_tfrecord(b"", codec=codec) == []


@pytest.mark.parametrize("codec", ["gzip", "zstd", "lz4"])
def test_tfrecord_of_zero_compressed_bytes_is_corrupt(codec: str) -> None:
    with pytest.raises(Corrupt, match="ends inside"):
        decode_tfrecord(b"", codec=codec)


@settings(deadline=None)
@given(cut=st.integers(0, 10_000), codec=st.sampled_from(CODECS))
def test_tfrecord_truncated_is_corrupt(cut: int, codec: str) -> None:
    stored = encode_tfrecord({"x": X, "y": Y}, codec=codec)
    with pytest.raises(Corrupt, match="ends inside"):
        decode_tfrecord(stored[: 1 + cut % (len(stored) - 1)], codec=codec)


@settings(deadline=None)
@given(at=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_tfrecord_with_a_flipped_bit_is_corrupt(at: int, bit: int) -> None:
    stored = bytearray(encode_tfrecord({"x": X, "y": Y}))
    stored[at % len(stored)] ^= 1 << bit
    with pytest.raises(Corrupt):
        decode_tfrecord(bytes(stored), codec="none")


def test_tfrecord_several_records_are_read_in_order() -> None:
    stored = b"".join(encode_tfrecord({"n": [n]}, codec="gzip") for n in range(20))
    assert [record["n"] for record in decode_tfrecord(stored)] == [[n] for n in range(20)]


def test_tfrecord_other_bytes_are_named_as_such() -> None:
    with pytest.raises(Corrupt, match="is not a TFRecord: it looks like a PNG image") as caught:
        decode_tfrecord(b"\x89PNG\r\n\x1a\n and the rest of it")
    assert caught.value.where == "the data"
    with pytest.raises(Corrupt, match="is not a TFRecord: length checksum of record 0 is 0x"):
        decode_tfrecord(bytes(range(128, 192)))


def test_tfrecord_absurd_length_is_refused_with_numbers() -> None:
    length = struct.pack("<Q", 2**60)
    masked = ((crc32c(length) >> 15 | crc32c(length) << 17) + 0xA282EAD8) & 0xFFFFFFFF
    with pytest.raises(Corrupt, match=r"ends inside record 0 \(want 1,152,921,504,606,846,992 bytes, have 22\)"):
        decode_tfrecord(length + struct.pack("<I", masked) + b"0123456789")


def test_tfrecord_raw_payload_is_no_example() -> None:
    stored = bytearray(encode_tfrecord({}))
    stored[12:-4] = b"\x0a\x7f"
    payload = bytes(stored[12:-4])
    masked = ((crc32c(payload) >> 15 | crc32c(payload) << 17) + 0xA282EAD8) & 0xFFFFFFFF
    stored[-4:] = struct.pack("<I", masked)
    with pytest.raises(Corrupt, match=r"record 0 of the data is not a tf\.Example: it ends inside a field"):
        decode_tfrecord(bytes(stored))


def test_encode_floats_of_a_buffer_are_those_of_the_list() -> None:
    buffer = memoryview(struct.pack("<4f", *Y)).cast("f")
    assert encode_tfrecord({"y": buffer}) == encode_tfrecord({"y": Y})
    assert decode_tfrecord(encode_tfrecord({"y": buffer[:0]})) == [{"y": []}]


def test_encode_gzip_is_read_by_pythons_own() -> None:
    plain = encode_tfrecord({"x": X}, codec="none")
    stored = encode_tfrecord({"x": X}, codec="gzip", level=9)
    assert gzip.decompress(stored) == plain
    assert stored[4:8] == bytes(4), "no time in the header: the same input gives the same bytes"


def test_tfrecord_in_members_of_pythons_gzip_is_read() -> None:
    stored = io.BytesIO()
    for n in range(3):
        # Each header has a file name and a time, as gzip(1) writes them.
        with gzip.GzipFile(filename=f"part-{n}", mode="wb", fileobj=stored, mtime=1_700_000_000) as member:
            member.write(encode_tfrecord({"n": [n], "x": X}))
    padded = stored.getvalue() + bytes(512)
    assert [record["n"] for record in decode_tfrecord(padded)] == [[0], [1], [2]]
    with pytest.raises(Corrupt, match="has bytes after gzip member 3"):
        decode_tfrecord(stored.getvalue() + b"garbage")


@pytest.mark.parametrize(
    ("features", "text"),
    [
        ({"a": []}, "feature `a`: the type of an empty list is unknown"),
        ({"a": [1, 2.0]}, "feature `a`: mixes integers with other values"),
        ({"a": [1.0, 2]}, "feature `a`: mixes floats with other values"),
        ({"a": [b"", 2]}, "feature `a`: mixes bytes with other values"),
        ({"a": [2**63]}, "beyond 64 bits"),
        ({"a": [1e300]}, "beyond 32 bits"),
        ({"a": [None]}, "feature `a`: must be a list of bytes"),
        ({"a": "text"}, "feature `a`: must be bytes, a list or a buffer of float32"),
    ],
)
def test_encode_value_that_cannot_be_says_so(features: dict, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        encode_tfrecord(features)
    assert text in str(caught.value)


def test_encode_unknown_codec_or_level_says_so() -> None:
    with pytest.raises(ConfigError, match="`bzip2` is not one of none, gzip, zstd, lz4"):
        encode_tfrecord({}, codec="bzip2")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="must be 0 to 12 for gzip"):
        encode_tfrecord({}, codec="gzip", level=99)


def test_encode_from_threads_gives_the_same_bytes() -> None:
    want = encode_tfrecord({"x": X * 500}, codec="gzip")
    got: list[bytes] = []
    threads = [
        threading.Thread(target=lambda: got.append(encode_tfrecord({"x": X * 500}, codec="gzip"))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == [want] * 4


def test_crc32c_has_the_published_check_value() -> None:
    assert crc32c(b"123456789") == 0xE3069283


@pytest.mark.parametrize("name", ["tensorflow.tfrecord", "tensorflow.tfrecord.gz"])
def test_tfrecord_of_tensorflow_is_read(name: str) -> None:
    records = decode_tfrecord((GOLDEN / name).read_bytes())
    assert len(records) == 2
    for at, record in enumerate(records):
        assert set(record) == {"x", "y", "ids", "names"}
        assert record["x"] == X
        assert all(math.isclose(a, b + at, rel_tol=1e-6) for a, b in zip(record["y"], Y, strict=True))
        assert record["ids"] == IDS
        assert record["names"] == [b"one", b"", b"three"]


def test_frame_of_tensorflow_is_ours_byte_for_byte() -> None:
    # TensorFlow writes map entries in any order, so each record here has a single feature.
    golden = (GOLDEN / "tensorflow-single.tfrecord").read_bytes()
    assert golden == encode_tfrecord({"y": Y}) + encode_tfrecord({"ids": IDS}) + encode_tfrecord({"x": X})


@pytest.mark.needs_tf
def test_tfrecord_of_ours_is_read_by_tensorflow(tmp_path: Path) -> None:
    import tensorflow as tf

    for codec, suffix, kind in (("none", "", ""), ("gzip", ".gz", "GZIP")):
        path = tmp_path / f"ours.tfrecord{suffix}"
        path.write_bytes(b"".join(encode_tfrecord({"x": X, "y": Y, "ids": IDS}, codec=codec) for _ in range(3)))
        spec = {
            "x": tf.io.FixedLenFeature([], tf.string),
            "y": tf.io.FixedLenFeature([4], tf.float32),
            "ids": tf.io.FixedLenFeature([3], tf.int64),
        }
        seen = 0
        for record in tf.data.TFRecordDataset(str(path), compression_type=kind):
            parsed = tf.io.parse_single_example(record, spec)
            counts = tf.reshape(tf.io.decode_raw(parsed["x"], tf.int16), (4, 4, 4, 4))
            assert counts.numpy().tobytes() == X
            assert parsed["y"].numpy().tobytes() == struct.pack("<4f", *Y)
            assert parsed["ids"].numpy().tolist() == IDS
            seen += 1
        assert seen == 3

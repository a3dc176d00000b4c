# SPDX-License-Identifier: Apache-2.0
"""Tests objects whose names show no format: detection by content, and errors that name an unsupported format."""

from __future__ import annotations

import gzip
import io
import json
import logging
import pickle
import struct
import tarfile
import zipfile
import zlib

import numpy as np
import pytest
from PIL import Image

import penstock
from penstock.errors import ConfigError, Corrupt, Unsupported

from .conftest import SHAPE, record
from .parquet import parquet_bytes

RECORDS = b"".join(record(at) for at in range(3))
JSONL = b'{"a": 1}\n' * 9


def zipped(name):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr(name, b"content")
    return out.getvalue()


def pillow(kind, **arguments):
    out = io.BytesIO()
    Image.new("RGB", (8, 8)).save(out, kind, **arguments)
    return out.getvalue()


def npy_bytes():
    out = io.BytesIO()
    np.save(out, np.zeros(3))
    return out.getvalue()


def samples(dataset):
    x = penstock.tensor("int16", SHAPE)
    (batch,) = penstock.Loader(dataset.fields(x=x), batch_size=8)
    return batch["x"][:, 0, 0].tolist()


FOREIGN = {
    "a.json": (b"[1, 2]", r"JSON text \(.*/a\.json, the first of 1 objects with the suffix `\.json`\)"),
    "a.json.gz": (gzip.compress(b"[1, 2]"), r"JSON text \(.*`\.json`"),
    "a.txt": ("naïve text".encode(), r"text \(.*`\.txt`"),
    "notes.md": (b"# Notes", r"text \(.*`\.md`"),
    "a.avro": (b"Obj\x01" + bytes(99), r"an Avro file \("),
    "a.orc": (b"ORC" + bytes(99), r"an ORC file \("),
    "a.gif": (pillow("GIF"), r"a GIF image \("),
    "a.mp4": (b"\0\0\0\x20ftypisom" + bytes(99), r"an MP4 video \(penstock\.video\.open reads its clips\) \("),
    "a.nc": (b"CDF\x01" + bytes(99), r"a NetCDF file \("),
    "a.mat": (b"MATLAB 5.0 MAT-file" + bytes(99), r"a MATLAB file \("),
    "a.zip": (zipped("a.txt"), r"a zip archive \("),
    "a.pt": (zipped("archive/data.pkl"), r"a PyTorch file \("),
    "a.safetensors": (struct.pack("<Q", 12) + b'{"a": [1, 2]}', r"a safetensors file \("),
    "a.pkl": (pickle.dumps([1]), r"a pickle \("),
    "a.bz2": (b"BZh91AY&SY" + bytes(99), r"bzip2-compressed data \("),
    "a.bin": (bytes(99), r"an unknown format \(.*`\.bin`"),
    "noise": (b"\x01\x02\x03", r"an unknown format \(.* with no known suffix\)"),
    "README": (b"read me", r"a folder without data \(.*/README, the first of 1 objects\)"),
    ".DS_Store": (b"\0\0\0\1Bud1" + bytes(99), r"a folder without data \(.*/\.DS_Store"),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_format_that_is_not_read_is_named_and_not_called_damaged(tmp_path, name):
    # Regression: all of these were reported as damaged TFRecords that should be fetched again.
    content, output = FOREIGN[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(
        Unsupported, match=output + r".* is not supported by penstock\.open, which reads TFRecord"
    ) as caught:
        penstock.open(tmp_path)
    assert "set format=" in caught.value.hint
    assert "fetch" not in caught.value.hint


def test_jsonl_of_mosaicml_streaming_is_named(tmp_path):
    shard = {"version": 2, "format": "json", "samples": 9, "compression": None, "columns": {"a": "int"}}
    raw = {"basename": "shard.00000.json", "bytes": len(JSONL), "hashes": {}}
    (tmp_path / "shard.00000.json").write_bytes(JSONL)
    (tmp_path / "shard.00000.json.meta").write_bytes(bytes(40))
    (tmp_path / "index.json").write_text(json.dumps({"version": 2, "shards": [{**shard, "raw_data": raw}]}))
    with pytest.raises(Unsupported, match="MosaicML Streaming's JSON Lines shards"):
        penstock.open(tmp_path)


def tar_bytes():
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        info = tarfile.TarInfo("0.txt")
        info.size = 1
        archive.addfile(info, io.BytesIO(b"x"))
    return out.getvalue()


@pytest.mark.parametrize(
    ("format", "content"),
    [
        ("tfrecord", RECORDS),
        ("tar", tar_bytes()),
        ("npy", npy_bytes()),
        ("parquet", parquet_bytes(a=[1, 2])),
        ("images", pillow("PNG")),
    ],
)
def test_format_that_content_alone_shows_is_read(tmp_path, format, content):  # noqa: A002 - what open() calls it
    (tmp_path / "0f3a9c").write_bytes(content)
    assert penstock.open(tmp_path).format == format
    assert len(penstock.open(tmp_path).schema().specs) > 0


def test_shards_without_a_suffix_are_read_beside_notes(tmp_path):
    for name in ("README.md", "_SUCCESS", ".part-r-00000.crc", "LICENSE"):
        (tmp_path / name).write_bytes(b"text" * 500)
    (tmp_path / "part-r-00000").write_bytes(b"")
    (tmp_path / "part-r-00001").write_bytes(RECORDS)
    with pytest.warns(UserWarning, match="2 of 6 objects are read as tfrecord; the other 4 are ignored"):
        dataset = penstock.open(tmp_path)
    assert (dataset.format, samples(dataset)) == ("tfrecord", [0, 1, 2])


def test_images_are_read_beside_small_tables_and_arrays(tmp_path, caplog):
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat/0.png").write_bytes(pillow("PNG") + bytes(5000))
    (tmp_path / "mean.npy").write_bytes(npy_bytes())
    (tmp_path / "metadata.parquet").write_bytes(parquet_bytes(a=[1, 2]))
    (tmp_path / ".DS_Store").write_bytes(b"x")
    with pytest.warns(UserWarning, match=r"1 of 4 objects are read as images; the other 3 are ignored\. To avoid this"):
        assert penstock.open(tmp_path).format == "images"
    # If the user gives the format, or most files are images, a log line is enough.
    penstock.open(tmp_path, format="images")
    assert caplog.text.count("3 objects are ignored, because their names are not names of images objects") == 1
    for number in range(1, 4):
        (tmp_path / f"cat/{number}.png").write_bytes(pillow("PNG"))
    penstock.open(tmp_path)
    assert caplog.text.count("3 objects are ignored, because their names are not names of images objects") == 2


def test_gzip_under_plain_name_is_read_with_codec_set(tmp_path):
    # TensorFlow's compression_type="GZIP" adds no suffix.
    (tmp_path / "a.tfrecord").write_bytes(gzip.compress(RECORDS))
    for ask in (lambda opened: opened.samples, lambda opened: opened.schema()):
        with pytest.raises(ConfigError, match=r"a\.tfrecord is compressed by gzip.*tfrecord\(compression=\"gzip\"\)"):
            ask(penstock.open(tmp_path))
    result = penstock.formats.tfrecord(compression="gzip")
    assert samples(penstock.open(tmp_path, format=result)) == [0, 1, 2]
    unindexed = penstock.open(tmp_path, format=result, indexed=False)
    assert samples(pickle.loads(pickle.dumps(unindexed))) == [0, 1, 2]
    # If the name states a compression, it is used.
    (tmp_path / "b.tfrecord.gz").write_bytes(gzip.compress(record(3)))
    assert samples(penstock.open(tmp_path, format=result)) == [0, 1, 2, 3]
    with pytest.raises(ConfigError, match="`zlib` is not one of gzip, zstd, lz4"):
        penstock.formats.tfrecord(compression="zlib")


def test_gzip_without_any_suffix_is_read(tmp_path):
    (tmp_path / "part-00000").write_bytes(gzip.compress(RECORDS))
    dataset = penstock.open(tmp_path)
    assert samples(pickle.loads(pickle.dumps(dataset))) == [0, 1, 2]


def test_suffix_of_a_codec_in_capitals_is_known(tmp_path):
    (tmp_path / "A.TFRECORD.GZ").write_bytes(gzip.compress(RECORDS))
    assert samples(penstock.open(tmp_path)) == [0, 1, 2]


def test_zlib_under_a_tfrecord_name_is_refused_by_name(tmp_path):
    (tmp_path / "a.tfrecord").write_bytes(zlib.compress(RECORDS))
    with pytest.raises(Unsupported, match=r"zlib compression \(.*a\.tfrecord"):
        penstock.open(tmp_path).samples  # noqa: B018


def test_other_content_under_a_tfrecord_name_is_corrupt_and_says_what_it_looks_like(tmp_path, caplog):
    caplog.set_level(logging.ERROR)
    (tmp_path / "a.tfrecord").write_bytes(pillow("JPEG"))
    with pytest.raises(Corrupt, match=r"a\.tfrecord is not a TFRecord: it looks like a JPEG image"):
        penstock.open(tmp_path).samples  # noqa: B018

# SPDX-License-Identifier: Apache-2.0
"""Tests `raw(record=True)` and `record=raw()`: the bytes of whole records, in every format that has such bytes."""

from __future__ import annotations

import gzip
import io
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest

import penstock
from penstock.errors import ConfigError, Corrupt, Mismatch

from . import test_mds
from .parquet import parquet_bytes
from .tfrecords import _message, example, frame

PAYLOADS = [b"", b"\x0a\x03abc", b"not a message", bytes(range(256)) * 40, b"\xff" * 7, _message(2, b"frame")]
"""Payloads that are not tf.Examples: an empty record, other messages, text, and bytes of different lengths."""


def records(dataset, name="record", **arguments):
    arguments = {"batch_size": 4, "rank": 0, "world": 1, **arguments}
    return [record for batch in penstock.Loader(dataset, **arguments) for record in batch[name]]


def write(folder, payloads, suffix=".tfrecord", name="a"):
    content = b"".join(frame(payload) for payload in payloads)
    content = gzip.compress(content, mtime=0) if suffix.endswith(".gz") else content
    (folder / f"{name}{suffix}").write_bytes(content)
    return folder


@pytest.mark.parametrize("suffix", [".tfrecord", ".tfrecord.gz"])
@pytest.mark.parametrize("indexed", [True, False])
def test_raw_record_of_any_tfrecord_is_its_payload(tmp_path, suffix, indexed):
    dataset = penstock.open(write(tmp_path, PAYLOADS, suffix), indexed=indexed)
    assert str(dataset.schema()) == "record  bytes  0 bytes"
    assert records(dataset) == PAYLOADS
    assert records(dataset.fields(record=penstock.raw())) == PAYLOADS
    assert records(dataset.fields(frame=penstock.raw(record=True)), "frame") == PAYLOADS
    assert sorted(records(dataset.shuffle(3))) == sorted(PAYLOADS)


def test_raw_record_beside_a_feature_named_record_is_chosen_by_its_argument(tmp_path):
    payloads = [example(record=[b"inner"], x=[1]), example(record=[b"other"], x=[2])]
    dataset = penstock.open(write(tmp_path, payloads))
    assert [name for name, _ in dataset.schema().specs] == ["record", "x"]
    assert records(dataset.fields(record=penstock.raw())) == [b"inner", b"other"]
    both = dataset.fields(record=penstock.raw(record=True), x=penstock.tensor("int64", ()))
    assert records(both) == payloads
    assert pickle.loads(pickle.dumps(both)).specs == both.specs
    plain = penstock.open(write(tmp_path, [example(x=[1]), example(x=[2])], name="b") / "b.tfrecord")
    assert [name for name, _ in plain.schema().specs] == ["x"]
    assert records(plain.fields(record=penstock.raw())) == [example(x=[1]), example(x=[2])]
    # An optional feature of that name is not the whole record.
    assert records(plain.fields(record=penstock.raw(default=b""))) == [b"", b""]


def test_raw_record_that_is_damaged_is_corrupt_and_can_be_skipped(tmp_path):
    write(tmp_path, PAYLOADS)
    content = bytearray((tmp_path / "a.tfrecord").read_bytes())
    content[-6] ^= 1  # in the payload of the last record
    (tmp_path / "a.tfrecord").write_bytes(content)
    dataset = penstock.open(tmp_path).fields(record=penstock.raw())
    with pytest.raises(Corrupt, match=r"damaged record 5 .*checksum"):
        records(dataset)
    assert records(dataset, on_error="skip") == PAYLOADS[:5]
    (tmp_path / "a.tfrecord").write_bytes(content[:-9])
    with pytest.raises(Corrupt, match=r"a\.tfrecord ends inside record 5"):
        records(penstock.open(tmp_path))


def test_raw_record_is_on_any_ranks_the_one_sequence(tmp_path):
    for name in "abc":
        write(tmp_path, [f"{name}{number}".encode() for number in range(7)], ".tfrecord.gz", name)
    dataset = penstock.open(tmp_path).shuffle(5)
    want = records(dataset, batch_size=21)
    walks = [iter(penstock.Loader(dataset, global_batch=6, rank=rank, world=3)) for rank in range(3)]
    assert [record for batches in zip(*walks, strict=True) for batch in batches for record in batch["record"]] == want


def test_raw_record_of_other_formats_is_what_they_store(tmp_path):
    columns = {"x": "int", "name": "str"}
    sample = {"x": np.int64(5).tobytes(), "name": b"five"}
    folders = {name: tmp_path / name for name in ("mds", "npy", "rows", "fixed", "files", "images")}
    for folder in folders.values():
        folder.mkdir()
    test_mds.write(folders["mds"], columns, [[sample]])
    np.save(folders["npy"] / "a.npy", np.arange(4, dtype="<i2"))
    np.save(folders["rows"] / "a.npy", np.arange(4, dtype="<i2"))
    for name in ("fixed", "files"):
        (folders[name] / "a.bin").write_bytes(bytes(range(8)))
    (folders["images"] / "a.jpg").write_bytes(b"\xff\xd8 no picture, but bytes all the same")
    formats = {"rows": penstock.formats.npy(rows=True), "files": "files", "images": "images"}
    formats["fixed"] = penstock.formats.fixed(v=penstock.tensor("uint8", (4,)))
    want = {
        "mds": [(4).to_bytes(4, "little") + sample["x"] + b"five"],
        "npy": [(folders["npy"] / "a.npy").read_bytes()],
        "rows": [np.int16(i).tobytes() for i in range(4)],
        "fixed": [bytes(range(4)), bytes(range(4, 8))],
        "files": [bytes(range(8))],
        "images": [b"\xff\xd8 no picture, but bytes all the same"],
    }
    for name, folder in folders.items():
        dataset = penstock.open(folder, format=formats.get(name))
        assert records(dataset.fields(record=penstock.raw())) == want[name], name
        assert records(dataset.fields(r=penstock.raw(record=True)), "r") == want[name], name


def test_raw_lines_and_rows_of_any_content_reach_a_decoder(tmp_path):
    lines = [b'{"a": 1, "b": NaN}', b"not json", b'{"a": "\xff"}', b'{"a": 2}']
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    dataset = penstock.open(tmp_path / "a.jsonl")
    assert records(dataset.fields(record=penstock.raw())) == lines
    kept = dataset.fields(record=penstock.raw()).filter(lambda sample: sample["record"].startswith(b"{"))
    assert records(kept) == [lines[0], *lines[2:]]
    repaired = dataset.fields(record=penstock.raw()).decode(
        lambda record: {"n": len(record)} if record.endswith(b"}") else None
    )
    assert sum(records(repaired, "n")) == sum(map(len, lines)) - len(lines[1])
    with pytest.raises(
        Corrupt, match=r"record 0 is not a JSON object .* \(NaN and Infinity are not valid JSON: write null,"
    ):
        records(dataset.fields(a=penstock.tensor("int64", ())), "a")
    with pytest.raises(Corrupt, match="record 0 is not a JSON object"):
        dataset.schema()
    rows = [b"1,2", b"3", b"4,5,6"]
    (tmp_path / "b.csv").write_bytes(b"x,y\n" + b"\n".join(rows) + b"\n")
    dataset = penstock.open(tmp_path / "b.csv")
    assert records(dataset.fields(record=penstock.raw())) == rows
    with pytest.raises(Corrupt, match="record 1 has 1 cells, but there are 2 columns"):
        records(dataset.fields(x=penstock.tensor("int64", ())), "x")


def test_files_may_be_empty_but_images_may_not(tmp_path):
    (tmp_path / "a.txt").touch()
    (tmp_path / "b.txt").write_bytes(b"0 .5 .5 1 1")
    dataset = penstock.open(tmp_path, format="files")
    assert records(dataset) == [b"", b"0 .5 .5 1 1"]
    assert sorted(records(dataset.shuffle(1))) == [b"", b"0 .5 .5 1 1"]
    (tmp_path / "c.jpg").touch()
    with pytest.raises(Corrupt, match=r"c\.jpg is empty \(0 bytes\)"):
        records(penstock.open(tmp_path / "c.jpg", format="images").fields(image=penstock.image(4)), "image")


def test_files_of_any_kind_have_keys_and_labels_of_their_folders(tmp_path):
    for label, name in enumerate(("cat", "dog")):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.pb").write_bytes(name.encode() * (label + 1))
    dataset = penstock.open(tmp_path, format=penstock.formats.files())
    (batch,) = penstock.Loader(dataset, batch_size=2)
    assert batch["record"] == [b"cat", b"dogdog"]
    assert batch["__key__"] == [b"cat/cat.pb", b"dog/dog.pb"]
    assert batch["label"].tolist() == [0, 1]


def test_raw_record_of_a_format_of_parts_is_refused_with_the_parts(tmp_path):
    tars, tables, arrow = tmp_path / "tars", tmp_path / "tables", Path(__file__).parent / "arrow/lz4.feather"
    for folder in (tars, tables):
        folder.mkdir()
    with tarfile.open(tars / "a.tar", "w") as tar:
        for extension in ("cls", "jpg"):
            member = tarfile.TarInfo(f"one.{extension}")
            member.size = 1
            tar.addfile(member, io.BytesIO(b"7"))
    (tables / "a.parquet").write_bytes(parquet_bytes(x=[1, 2]))
    for place, kind, parts in (
        (tars, "tar", "`__key__`, `cls`, `jpg`"),
        (tables, "parquet", "`x`"),
        (arrow, "arrow", "`i8`, `u8`, "),
    ):
        dataset = penstock.open(place)
        for fields in ({"record": penstock.raw()}, {"frame": penstock.raw(record=True)}):
            with pytest.raises(ConfigError, match=rf"records of {kind} consist of separate parts: {parts}") as caught:
                penstock.Loader(dataset.fields(**fields), batch_size=1).__iter__()
            assert ".of(" in caught.value.hint


def test_raw_record_takes_no_part_and_no_default():
    for bad in (lambda: penstock.raw(record=True).of("x"), lambda: penstock.raw(record=True, default=b"")):
        with pytest.raises(ConfigError, match="takes neither"):
            bad()


def test_named_field_of_records_that_are_no_examples_says_so(tmp_path):
    dataset = penstock.open(write(tmp_path, [b"not a message"] * 2)).fields(x=penstock.tensor("int64", ()))
    with pytest.raises((Corrupt, Mismatch), match=r"tf\.Example|contains nothing"):
        list(penstock.Loader(dataset, batch_size=1))

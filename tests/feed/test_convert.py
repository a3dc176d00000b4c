# SPDX-License-Identifier: Apache-2.0
"""Tests `penstock convert` and its function: values pass unchanged between formats, an interrupted conversion goes on,
and errors name the part that a format cannot store.
"""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import penstock
from penstock import _native
from penstock.errors import ConfigError, KeyRefused, Unsupported
from penstock.writer import convert, plan_conversion

from .test_adapters import run
from .test_mds import write as write_mds
from .written import FORMATS, files, read, same, some


@pytest.mark.parametrize("target", FORMATS)
@pytest.mark.parametrize("source", FORMATS)
def test_convert_between_formats_keeps_every_value(tmp_path, source, target):
    penstock.write(some(11), tmp_path / "a", format=source, shard_bytes=600, compress="gzip")
    written = convert(tmp_path / "a", tmp_path / "b", format=target, shard_bytes=900)
    assert written.samples == 11
    same(read(tmp_path / "b"), list(some(11)))
    # Back again, and the same bytes as the first time.
    convert(tmp_path / "b", tmp_path / "c", format=source, shard_bytes=600, compress="gzip")
    same(read(tmp_path / "c"), list(some(11)))


def test_convert_of_foreign_tfrecords_without_counts_reads_them_once(tmp_path, caplog):
    (tmp_path / "a").mkdir()
    for shard in range(3):
        records = [
            _native.encode_tfrecord(
                {
                    "image/encoded": b"J" * at,
                    "image/label": [at],
                    "boxes": [float(b) for b in range(at)] or np.array([], "f4"),
                }
            )
            for at in range(shard, shard + 4)
        ]
        (tmp_path / "a" / f"train-{shard:05d}-of-00003").write_bytes(b"".join(records))
    plan = plan_conversion(tmp_path / "a", "tar")
    assert (plan.samples, list(plan.fields)) == (None, ["image.encoded", "image.label", "boxes"])
    assert convert(plan, tmp_path / "b", format="tar").samples == 12
    found = read(tmp_path / "b")
    assert [row["image.label"] for row in found] == [0, 1, 2, 3, 1, 2, 3, 4, 2, 3, 4, 5]
    assert [len(row["image.encoded"]) for row in found] == [row["image.label"] for row in found]
    assert [row["boxes"].tolist() for row in found[:3]] == [[], [0], [0, 1]]
    assert not caplog.records


def test_convert_renames_and_selects_fields(tmp_path):
    penstock.write(some(5), tmp_path / "a")
    plan = plan_conversion(tmp_path / "a", "tar", fields=["jpg", "cls=label"])
    assert ("x", "not selected") in plan.left_out
    convert(plan, tmp_path / "b", format="tar")
    same(read(tmp_path / "b"), [{"jpg": sample["jpg"], "cls": sample["label"]} for sample in some(5)])
    with pytest.raises(ConfigError, match=r"fields: `nothing` is not a part of .*; it has `x`"):
        plan_conversion(tmp_path / "a", "tar", fields=["nothing"])
    with pytest.raises(ConfigError, match="two parts would be written as `jpg`"):
        plan_conversion(tmp_path / "a", "tar", fields=["jpg", "jpg=text"])


def test_convert_of_class_folders_and_mds(tmp_path):
    for at, name in enumerate(["a/1.b.png", "a/2.png", "c/1.png"]):
        (tmp_path / "pictures" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (2, 2), (at, 0, 0)).save(tmp_path / "pictures" / name)
    convert(tmp_path / "pictures", tmp_path / "b", format="tar")
    found = read(tmp_path / "b")
    assert [(row["__key__"], row["cls"]) for row in found] == [(b"a/1", 0), (b"a/2", 0), (b"c/1", 1)]
    assert found[2]["jpg"] == (tmp_path / "pictures/c/1.png").read_bytes()
    (tmp_path / "mds").mkdir()
    rows = [{"x": at.to_bytes(8, "little"), "t": b"t%d" % at} for at in range(5)]
    write_mds(tmp_path / "mds", {"x": "int", "t": "str"}, [rows[:3], rows[3:]])
    convert(tmp_path / "mds", tmp_path / "d", format="parquet")
    same(read(tmp_path / "d"), [{"x": at, "t": b"t%d" % at} for at in range(5)])


def test_convert_absent_members_stay_absent(tmp_path):
    parts = [("0", {"jpg": b"A", "txt": b"a"}), ("1", {"jpg": b"B"})]
    content = b"".join(_native.tar_member(f"{key}.{part}", data) for key, row in parts for part, data in row.items())
    (tmp_path / "a").mkdir()
    (tmp_path / "a/x.tar").write_bytes(content + bytes(1024))
    convert(tmp_path / "a", tmp_path / "b", format="tfrecord")
    records = _native.decode_tfrecord((tmp_path / "b/shard-000000.tfrecord").read_bytes())
    assert [sorted(record) for record in records] == [["__key__", "jpg", "txt"], ["__key__", "jpg"]]
    convert(tmp_path / "b", tmp_path / "c", format="tar")
    assert (tmp_path / "c/shard-000000.tar").read_bytes() == content + bytes(1024)


@pytest.mark.parametrize("target", FORMATS)
def test_convert_of_json_lines_keeps_text(tmp_path, target):
    texts = ["a", "ü", None, ""]
    (tmp_path / "a.jsonl").write_text(
        "".join(json.dumps({"text": text, "id": f"{at}x"}) + "\n" for at, text in enumerate(texts))
    )
    convert(tmp_path / "a.jsonl", tmp_path / "b", format=target)
    assert read(tmp_path / "b") == [{"text": text or "", "id": f"{at}x"} for at, text in enumerate(texts)]


def test_convert_after_a_complete_conversion_does_nothing(tmp_path):
    penstock.write(some(9), tmp_path / "a")
    first = convert(tmp_path / "a", tmp_path / "b", format="tar")
    stamp = (tmp_path / "b/shard-000000.tar").stat().st_mtime_ns
    again = convert(tmp_path / "a", tmp_path / "b", format="tar")
    assert (first.skipped, again.skipped, again.samples) == (0, 9, 9)
    assert (tmp_path / "b/shard-000000.tar").stat().st_mtime_ns == stamp
    assert again.fields == first.fields
    # A source that has changed is not the same conversion.
    penstock.write(some(8), tmp_path / "a", if_exists="overwrite")
    with pytest.raises(FileExistsError, match="complete dataset"):
        convert(tmp_path / "a", tmp_path / "b", format="tar")


def test_convert_of_a_list_of_texts_to_tar_names_the_fields_that_remain(tmp_path):
    (tmp_path / "a").mkdir()
    pq.write_table(pa.table({"n": [1, 2], "tags": [["x"], ["y", "z"]]}), tmp_path / "a/x.parquet")
    with pytest.raises(Unsupported, match="`tags` is a list of bytes or texts") as found:
        plan_conversion(tmp_path / "a", "tar")
    assert "--fields n," in str(found.value.hint)
    plan = plan_conversion(tmp_path / "a", "tar", fields=["n"])
    assert convert(plan, tmp_path / "b", format="tar").samples == 2


def test_convert_of_parquet_keeps_text_as_text(tmp_path):
    (tmp_path / "a").mkdir()
    rows = {"n": [1, 2, 3], "text": ["é", None, "b"], "raw": [b"\xff", b"", b"a"]}
    pq.write_table(pa.table(rows), tmp_path / "a/x.parquet")
    convert(tmp_path / "a", tmp_path / "b", format="parquet")
    table = pq.read_table(tmp_path / "b/shard-000000.parquet")
    assert (table.schema.field("text").type, table.schema.field("raw").type) == (pa.string(), pa.binary())
    assert table.to_pydict() == rows


def test_convert_leaves_lists_of_lists_out_except_for_parquet(tmp_path):
    (tmp_path / "a").mkdir()
    rows = {"n": [1, 2], "lists": [[[1], [2, 3]], None], "words": [[["a"], []], [["bc", "é"]]]}
    pq.write_table(pa.table(rows), tmp_path / "a/x.parquet")
    plan = plan_conversion(tmp_path / "a", "tfrecord")
    reason = "a list of lists, which only Parquet can store"
    assert plan.left_out == (("lists", reason), ("words", reason))
    convert(plan, tmp_path / "b", format="tfrecord")
    same(read(tmp_path / "b"), [{"n": 1}, {"n": 2}])
    with pytest.raises(Unsupported, match="`lists` is a list of lists, which only Parquet can store") as caught:
        plan_conversion(tmp_path / "a", "tfrecord", fields=["n", "lists"])
    assert caught.value.hint == "use --format parquet"
    with pytest.raises(ConfigError, match=r"no part of .* is selected"):
        plan_conversion(tmp_path / "a", "tfrecord", fields=[])
    convert(tmp_path / "a", tmp_path / "c", format="parquet")
    written = pq.read_table(tmp_path / "c/shard-000000.parquet").to_pydict()
    words = [[[text.decode() for text in each] for each in row] for row in written.pop("words")]
    assert {**written, "words": words} == {**rows, "lists": [[[1], [2, 3]], []]}


def test_convert_into_the_folder_of_the_source_is_refused(tmp_path):
    folder = tmp_path / "parent/a"
    penstock.write(some(9), folder, shard_bytes=500)
    before = files(folder)
    (tmp_path / "link").symlink_to(folder)
    for source in (folder, folder / "*-000000.tfrecord", folder.parent):
        for url in (folder, tmp_path / "link"):
            with pytest.raises(ConfigError, match="contains objects of the source"):
                convert(source, url, format="tar", if_exists="overwrite")
    assert files(folder) == before


def test_convert_equal_keys_in_a_shard_are_refused(tmp_path):
    rows = [{"__key__": "a", "txt": "1"}, {"__key__": "b", "txt": "2"}, {"__key__": "a", "txt": "3"}]
    penstock.write(rows, tmp_path / "a")
    with pytest.raises(KeyRefused, match="sample 2: the key 'a' is the key of two samples"):
        convert(tmp_path / "a", tmp_path / "b", format="tar")


def test_convert_command_prints_plan_result_and_exit_codes(tmp_path, run_cli):
    penstock.write(some(7), tmp_path / "a")
    planned = run_cli("convert", tmp_path / "a", tmp_path / "b", "--format", "tar", "--dry-run", "--json")
    plan = json.loads(planned.out)
    assert (planned.code, plan["schema_version"], plan["samples"], plan["source_format"]) == (0, 1, 7, "tfrecord")
    assert plan["fields"]["x"] == "int16 [2, 3]"
    assert not (tmp_path / "b").exists()
    shown = run_cli("convert", tmp_path / "a", tmp_path / "b", "--format", "tar", "--dry-run")
    assert "field    x: int16 [2, 3]" in shown.out
    done = run_cli("convert", tmp_path / "a", tmp_path / "b", "--format", "tar", "--shard-bytes", "4KB", "--json")
    assert (done.code, json.loads(done.out)["shards"] > 1) == (0, True)
    again = run_cli("convert", tmp_path / "a", tmp_path / "b", "--format", "tar", "--shard-bytes", "4KB")
    assert again.code == 0
    assert "(7 samples were there already)" in again.out
    other = run_cli("convert", tmp_path / "a", tmp_path / "b", "--format", "tar")
    assert (other.code, "contains a complete dataset" in other.err) == (3, True)
    wrong = run_cli("convert", tmp_path / "a", tmp_path / "c", "--format", "tar", "--fields", "nothing")
    assert (wrong.code, "is not a part of" in wrong.err) == (2, True)
    missing = run_cli("convert", tmp_path / "nowhere", tmp_path / "c", "--format", "tar")
    assert missing.code == 3


@pytest.mark.needs_tf
def test_written_tfrecords_are_read_by_tensorflow(tmp_path):
    import tensorflow as tf

    samples = [
        {
            "image": b"J%d" % at,
            "label": at,
            "score": at / 2,
            "x": np.full((2, 3), at, np.float32),
            "v": np.full(4, at, np.int16),
        }
        for at in range(20)
    ]
    penstock.write(samples, tmp_path, compress="gzip", shard_bytes=600)
    spec = {
        "image": tf.io.FixedLenFeature([], tf.string),
        "label": tf.io.FixedLenFeature([], tf.int64),
        "score": tf.io.FixedLenFeature([], tf.float32),
        "x": tf.io.FixedLenFeature([2, 3], tf.float32),
        "v": tf.io.FixedLenFeature([], tf.string),
    }
    shards = sorted(str(path) for path in tmp_path.glob("*.tfrecord.gz"))
    assert len(shards) > 1
    count = 0
    for at, record in enumerate(tf.data.TFRecordDataset(shards, compression_type="GZIP")):
        parsed = tf.io.parse_single_example(record, spec)
        assert (parsed["image"].numpy(), parsed["label"].numpy(), parsed["score"].numpy()) == (b"J%d" % at, at, at / 2)
        assert (parsed["x"].numpy() == at).all()
        assert tf.io.decode_raw(parsed["v"], tf.int16).numpy().tolist() == [at] * 4
        count += 1
    assert count == 20


WEBDATASET = """
import glob, sys
import webdataset

shards = sorted(glob.glob(sys.argv[1] + "/*.tar"))
for at, (x, label, text, key) in enumerate(
    webdataset.WebDataset(shards, shardshuffle=False).decode().to_tuple("x.npy", "label.cls", "text.txt", "__key__")
):
    assert x.dtype == "int16" and x.shape == (2, 3) and x[0, 0] == at
    assert (label, text, key) == (at, f"sample é {at}", f"{at:09d}")
print(at)
"""


@pytest.mark.needs_adapters
def test_written_tar_is_decoded_by_webdataset(tmp_path):
    penstock.write(some(20), tmp_path, format="tar", shard_bytes=10_000)
    assert run(WEBDATASET, tmp_path, tmp_path) == "19\n"

# SPDX-License-Identifier: Apache-2.0
"""Tests `penstock convert` and its function: values pass unchanged between formats, an interrupted conversion goes on,
and errors name the part that a format cannot store.
"""

from __future__ import annotations

import gzip
import json
import sys
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import penstock
from penstock import _native
from penstock.cli.signals import TerminationSignal
from penstock.errors import ConfigError, KeyRefused, Mismatch, Unsupported
from penstock.writer import Conversion, convert, plan_conversion

from .test_adapters import run
from .test_mds import write as write_mds
from .tfrecords import frame
from .written import FORMATS, files, read, same, some


@pytest.mark.parametrize("target", FORMATS)
@pytest.mark.parametrize("source", FORMATS)
def test_convert_between_formats_keeps_every_value(tmp_path, source, target):
    penstock.write(some(11), tmp_path / "a", format=source, shard_bytes=600, compress="gzip")
    written = convert(tmp_path / "a", tmp_path / "b", format=target, shard_bytes=900)
    assert written.samples == 11
    want = list(some(11))
    is_text = source == target == "parquet"

    def check(url):
        same([{**row, "text": row["text"].encode()} if is_text else row for row in read(url)], want)

    check(tmp_path / "b")
    # Back again, and the same bytes as the first time.
    convert(tmp_path / "b", tmp_path / "c", format=source, shard_bytes=600, compress="gzip")
    check(tmp_path / "c")


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


@pytest.mark.parametrize("target", FORMATS)
def test_convert_of_names_with_separators_reads_those_parts(tmp_path, target):
    names = {"a;b": [1, 2], "a": [3, 4], "x,y": [5, 6], "x=y": [7, 8], "": [9, 10]}
    pq.write_table(pa.table(names), tmp_path / "a.parquet")
    fields = ["a;b", "a", "x,y", "x=y", "new=x=y", "index="]
    convert(tmp_path / "a.parquet", tmp_path / "b", format=target, fields=fields)
    want = [{"a;b": at, "a": at + 2, "x,y": at + 4, "x=y": at + 6, "new": at + 6, "index": at + 8} for at in (1, 2)]
    same(read(tmp_path / "b"), want)
    with pytest.raises(ConfigError, match="fields: `` is not a part of"):
        plan_conversion(tmp_path / "b", target, fields=["a="])


def test_convert_of_class_folders_and_mds(tmp_path):
    for at, name in enumerate(["a/1.b.png", "a/2.png", "c/1.png"]):
        (tmp_path / "pictures" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (2, 2), (at, 0, 0)).save(tmp_path / "pictures" / name)
    convert(tmp_path / "pictures", tmp_path / "b", format="tar")
    found = read(tmp_path / "b")
    assert [(row["__key__"], row["cls"]) for row in found] == [(b"a/1_b", 0), (b"a/2", 0), (b"c/1", 1)]
    assert found[2]["jpg"] == (tmp_path / "pictures/c/1.png").read_bytes()
    (tmp_path / "mds").mkdir()
    rows = [{"x": at.to_bytes(8, "little"), "t": b"t%d" % at} for at in range(5)]
    write_mds(tmp_path / "mds", {"x": "int", "t": "str"}, [rows[:3], rows[3:]])
    convert(tmp_path / "mds", tmp_path / "d", format="parquet")
    assert read(tmp_path / "d") == [{"x": at, "t": f"t{at}"} for at in range(5)]


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


def test_convert_after_a_complete_conversion_refuses_a_damaged_shard(tmp_path, call_cli):
    penstock.write(some(20), tmp_path / "a")
    line = ["convert", str(tmp_path / "a"), str(tmp_path / "b"), "--format", "tar", "--shard-bytes", "4KB"]
    assert call_cli(*line).code == 0
    shard = tmp_path / "b/shard-000001.tar"
    before = shard.read_bytes()
    shard.write_bytes(before[:100])
    damaged = call_cli(*line)
    assert f"shard-000001.tar: has 100 bytes, instead of {len(before):,}, although" in damaged.err
    assert "hint: use --overwrite to convert again" in damaged.err
    shard.unlink()
    assert "shard-000001.tar: is missing, although the conversion was complete" in call_cli(*line, "--dry-run").err
    assert call_cli(*line, "--overwrite").code == 0
    assert shard.read_bytes() == before


def test_convert_after_a_failure_before_the_first_shard_starts_over(tmp_path):
    pq.write_table(pa.table({"n": list(range(501)), "list": [[1]] * 500 + [[1, None]]}), tmp_path / "a.parquet")
    with pytest.raises(Mismatch, match="record 500: column `list` contains a null"):
        convert(plan_conversion(tmp_path / "a.parquet", "tar", fields=["n", "list"]), tmp_path / "b", format="tar")
    assert (tmp_path / "b/.penstock/write/settings.json").exists()
    found = convert(tmp_path / "a.parquet", tmp_path / "b", format="parquet", fields=["n"])
    assert (found.samples, list(files(tmp_path / "b"))) == (501, ["shard-000000.parquet"])


def test_convert_leaves_lists_of_texts_out_of_a_tar(tmp_path):
    (tmp_path / "a").mkdir()
    pq.write_table(pa.table({"n": [1, 2], "tags": [["x"], ["y", "z"]]}), tmp_path / "a/x.parquet")
    plan = plan_conversion(tmp_path / "a", "tar")
    assert plan.left_out == (("tags", "a list of bytes or texts, which a tar member cannot store"),)
    assert convert(plan, tmp_path / "b", format="tar").samples == 2
    with pytest.raises(Unsupported, match="`tags` is a list of bytes or texts") as found:
        plan_conversion(tmp_path / "a", "tar", fields=["n", "tags"])
    assert found.value.hint == 'leave it out, or use format="tfrecord" or "parquet"'
    pq.write_table(pa.table({"tags": [["x"], ["y", "z"]]}), tmp_path / "x.parquet")
    with pytest.raises(ConfigError, match=r"no part of .* is selected; `tags` is a list of bytes or texts"):
        plan_conversion(tmp_path / "x.parquet", "tar")


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
    assert caught.value.hint == 'leave it out, or use format="parquet"'
    with pytest.raises(ConfigError, match=r"no part of .* is selected"):
        plan_conversion(tmp_path / "a", "tfrecord", fields=[])
    convert(tmp_path / "a", tmp_path / "c", format="parquet")
    assert pq.read_table(tmp_path / "c/shard-000000.parquet").to_pydict() == rows


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


def test_convert_of_parquet_to_parquet_keeps_types_and_nulls(tmp_path):
    (tmp_path / "a").mkdir()
    table = pa.table(
        {
            "bool": pa.array([True, None, False]),
            "int": pa.array([1, None, 0], pa.int16()),
            "float": pa.array([0.5, None, 0.0], pa.float32()),
            "text": pa.array(["", None, "a"]),
            "bytes": pa.array([b"", None, b"a"]),
            "bools": pa.array([[True, False], None, []], pa.list_(pa.field("element", pa.bool_()))),
            "ints": pa.array([[1], None, []], pa.list_(pa.field("element", pa.int8()))),
            "texts": pa.array([["a", ""], None, []], pa.list_(pa.field("element", pa.string()))),
            "ms": pa.array([1, None, 2], pa.timestamp("ms", "UTC")),
            "us": pa.array([1, 2, 3], pa.timestamp("us")),
            "ns": pa.array([1, None, 2], pa.timestamp("ns")),
            "date": pa.array([1, None, 2], pa.date32()),
            "time": pa.array([1, None, 2], pa.time64("us")),
            "wait": pa.array([1, None, 2], pa.duration("s")),
            "times": pa.array([[1], None, []], pa.list_(pa.field("element", pa.timestamp("us")))),
        }
    )
    pq.write_table(table, tmp_path / "a/x.parquet")
    plan = plan_conversion(tmp_path / "a", "parquet")
    assert (plan.left_out, plan.notes) == ((), ())
    convert(plan, tmp_path / "b", format="parquet")
    assert pq.read_table(tmp_path / "b/shard-000000.parquet").equals(table)
    # `open` reads the copy as the source, except that text is text.
    same([{**row, "text": row["text"].encode()} for row in read(tmp_path / "b")], read(tmp_path / "a"))


@pytest.mark.parametrize("target", FORMATS)
def test_convert_of_columns_that_only_some_files_have_keeps_them(tmp_path, target):
    (tmp_path / "a").mkdir()
    pq.write_table(pa.table({"k": [1, 2], "list": [[1], []]}), tmp_path / "a/a.parquet")
    later = {"k": [3, 4], "n": [5, None], "ok": [True, None], "words": [["a"], None], "x.y": [0.5, None]}
    pq.write_table(pa.table(later), tmp_path / "a/b.parquet")
    pq.write_table(pa.table({"k": [5], "d": pa.array([1], pa.decimal128(5, 2))}), tmp_path / "a/c.parquet")
    plan = plan_conversion(tmp_path / "a", target)
    lists = (("words", "a list of bytes or texts, which a tar member cannot store"),) if target == "tar" else ()
    assert plan.left_out == (("d", "decimal128(5, 2) in c.parquet, which no field reads"), *lists)
    convert(plan, tmp_path / "b", format=target)
    convert(tmp_path / "b", tmp_path / "c", format="parquet")
    found = pq.read_table(tmp_path / "c/shard-000000.parquet").to_pydict()
    assert found["k"] == [1, 2, 3, 4, 5]
    assert (found["n"], found["ok"]) == ([None, None, 5, None, None], [None, None, True, None, None])
    assert found["x.y"] == [None, None, 0.5, None, None]
    none = [] if target == "tfrecord" else None
    assert found["list"] == [[1], [], none, none, none]
    assert found.get("words", "") == ([none, none, [b"a" if none == [] else "a"], none, none] if not lists else "")


def test_convert_of_a_column_of_the_type_null_takes_that_of_another_file(tmp_path):
    (tmp_path / "a").mkdir()
    types = {
        "n": pa.int64(),
        "at": pa.timestamp("us"),
        "ok": pa.bool_(),
        "text": pa.string(),
        "list": pa.list_(pa.int8()),
    }
    values = {"n": 1, "at": 1, "ok": True, "text": "a", "list": [1]}
    for name, empty in (("a", True), ("b", False), ("c", True)):
        columns = {each: pa.nulls(1) if empty else pa.array([values[each]], kind) for each, kind in types.items()}
        pq.write_table(pa.table({"k": [name], **columns}), tmp_path / f"a/{name}.parquet")
    assert plan_conversion(tmp_path / "a", "parquet").left_out == ()
    convert(tmp_path / "a", tmp_path / "b", format="parquet")
    found = pq.read_table(tmp_path / "b/shard-000000.parquet")
    assert {name: found.schema.field(name).type for name in ("n", "at", "ok", "text")} == {
        name: types[name] for name in ("n", "at", "ok", "text")
    }
    for name, value in values.items():
        assert found[name].cast(types[name]).to_pylist() == [None, pa.scalar(value, types[name]).as_py(), None]


def test_convert_of_columns_without_early_values_keeps_their_types(tmp_path):
    nulls = [None] * 120
    table = pa.table(
        {
            "k": list(range(121)),
            "text": pa.array([*nulls, "a"]),
            "int": pa.array([*nulls, 1], pa.int16()),
            "flag": pa.array([*nulls, True]),
            "at": pa.array([*nulls, 1], pa.timestamp("us")),
            "raw": pa.array([*nulls, b"x"]),
            "float": pa.array([*nulls, 0.5], pa.float32()),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    assert plan_conversion(tmp_path / "a.parquet", "parquet").left_out == ()
    convert(tmp_path / "a.parquet", tmp_path / "b", format="parquet")
    found = pq.read_table(tmp_path / "b/shard-000000.parquet")
    assert found.select(table.column_names).equals(table)


@pytest.mark.parametrize("between", ["tfrecord", "tar"])
def test_convert_of_numbers_with_nulls_by_way_of_another_format_keeps_them_single(tmp_path, between):
    table = pa.table({"k": [1, 2], "i": [1, None], "b": [True, None], "f": [None, 0.5]})
    pq.write_table(table, tmp_path / "a.parquet")
    convert(tmp_path / "a.parquet", tmp_path / "b", format=between)
    convert(tmp_path / "b", tmp_path / "c", format="parquet")
    assert pq.read_table(tmp_path / "c/shard-000000.parquet").equals(table)


def test_convert_of_texts_of_other_formats_to_parquet_keeps_them_text(tmp_path):
    (tmp_path / "mds").mkdir()
    rows = [{"s": b"a", "b": b"b"}]
    write_mds(tmp_path / "mds", {"s": "str", "b": "bytes"}, [rows])
    (tmp_path / "hive/lang=en").mkdir(parents=True)
    pq.write_table(pa.table({"n": [1]}), tmp_path / "hive/lang=en/a.parquet")
    (tmp_path / "a.jsonl").write_text('{"words": ["a", "b"]}\n')
    want = {"mds": {"s": ["a"], "b": [b"b"]}, "hive": {"n": [1], "lang": ["en"]}, "a.jsonl": {"words": [["a", "b"]]}}
    for source, columns in want.items():
        convert(tmp_path / source, tmp_path / f"to-{source}", format="parquet")
        assert pq.read_table(tmp_path / f"to-{source}/shard-000000.parquet").to_pydict() == columns


def test_convert_of_compressed_parquet_notes_the_types_that_it_loses(tmp_path):
    table = pa.table({"at": pa.array([1], pa.timestamp("us"))})
    pq.write_table(table, tmp_path / "a.parquet")
    (tmp_path / "a").mkdir()
    (tmp_path / "a/a.parquet.gz").write_bytes(gzip.compress((tmp_path / "a.parquet").read_bytes()))
    plan = plan_conversion(tmp_path / "a", "parquet")
    assert [name for name, note in plan.notes if "a compressed file, whose column types are not read" in note] == [
        "a.parquet.gz"
    ]


@pytest.mark.parametrize("target", FORMATS)
def test_convert_of_a_null_after_the_inspected_records_keeps_it(tmp_path, target):
    (tmp_path / "a").mkdir()
    columns = {"key": [f"{at}" for at in range(300)], "n": [1] * 300, "f": [0.5] * 300, "text": ["a"] * 300}
    for name in ("n", "f", "text"):
        columns[name][250] = None
    pq.write_table(pa.table(columns), tmp_path / "a/x.parquet")
    written = convert(tmp_path / "a", tmp_path / "b", format=target)
    assert (str(written.fields["n"]), str(written.fields["f"])) == ("ragged int64 []", "ragged float64 []")
    found = read(tmp_path / "b")
    assert [len(row["n"]) for row in found] == [len(row["f"]) for row in found] == [1] * 250 + [0] + [1] * 49
    assert [len(row["text"]) for row in found] == [1] * 250 + [0] + [1] * 49
    # Without a null, the fields are those of the source.
    assert str(convert(tmp_path / "a", tmp_path / "c", format=target, fields=["key"]).fields["key"])[:5] in (
        "bytes",
        "text",
    )
    if target == "parquet":
        assert pq.read_table(tmp_path / "b/shard-000000.parquet").to_pydict() == columns


def test_convert_continues_after_a_shard_with_a_null(tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    pq.write_table(pa.table({"n": [None if at == 150 else at for at in range(400)]}), tmp_path / "a/x.parquet")
    plan = plan_conversion(tmp_path / "a", "parquet")
    convert(plan, tmp_path / "whole", format="parquet", shard_bytes=800)

    with_null = tmp_path / "b/.penstock/write/shard-000001.json"

    def failing(self, start, read=Conversion.read):
        for number, row in enumerate(read(self, start), start):
            if number == 300:
                for _ in range(1000):  # other threads store the shards
                    if with_null.exists():
                        break
                    time.sleep(0.01)
                raise RuntimeError("the source broke")
            yield row

    with monkeypatch.context() as patch:
        patch.setattr(Conversion, "read", failing)
        with pytest.raises(RuntimeError, match="the source broke"):
            convert(plan, tmp_path / "b", format="parquet", shard_bytes=800)
    assert with_null.exists()
    written = convert(plan, tmp_path / "b", format="parquet", shard_bytes=800)
    assert written.skipped > 100
    assert str(written.fields["n"]) == "ragged int64 []"
    assert files(tmp_path / "b") == files(tmp_path / "whole")


@pytest.mark.parametrize("target", ["tfrecord", "tar"])
def test_convert_notes_times_whose_unit_is_not_stored(tmp_path, target, caplog):
    (tmp_path / "a").mkdir()
    table = pa.table({"at": pa.array([1, 2], pa.timestamp("us")), "n": [1, 2]})
    pq.write_table(table, tmp_path / "a/x.parquet")
    plan = plan_conversion(tmp_path / "a", target)
    assert plan.notes == (("at", "timestamp[us] is stored as integers, without its unit"),)
    convert(tmp_path / "a", tmp_path / "b", format=target)
    assert "`at`: timestamp[us] is stored as integers" in caplog.text
    same(read(tmp_path / "b"), [{"at": 1, "n": 1}, {"at": 2, "n": 2}])
    # Parquet has no seconds.
    with pa.ipc.new_file(tmp_path / "x.arrow", pa.schema({"s": pa.timestamp("s")})) as writer:
        writer.write_table(pa.table({"s": pa.array([1], pa.timestamp("s"))}))
    plan = plan_conversion(tmp_path / "x.arrow", "parquet")
    assert plan.notes == (("s", "timestamp[s] is stored as integers, without its unit"),)


@pytest.mark.parametrize("target", ["tfrecord", "tar"])
def test_convert_of_parquet_without_pyarrow_reads_no_types(tmp_path, target, monkeypatch):
    (tmp_path / "a").mkdir()
    for name in "ab":
        pq.write_table(
            pa.table({"at": pa.array([1, None], pa.timestamp("us")), "n": [1, 2]}), tmp_path / f"a/{name}.parquet"
        )
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    plan = plan_conversion(tmp_path / "a", target)
    assert plan.notes == ()
    assert convert(plan, tmp_path / "b", format=target).samples == 4


@pytest.mark.parametrize("target", FORMATS)
def test_convert_of_times_in_two_units_is_refused(tmp_path, target):
    (tmp_path / "a").mkdir()
    for unit in ("us", "ms"):
        pq.write_table(pa.table({"n": [1], "at": pa.array([1], pa.timestamp(unit))}), tmp_path / f"a/{unit}.parquet")
    with pytest.raises(Unsupported, match=r"`at` is timestamp\[ms\] in ms.parquet, but timestamp\[us\] in us.parquet"):
        plan_conversion(tmp_path / "a", target)
    assert convert(tmp_path / "a", tmp_path / "b", format=target, fields=["n"]).samples == 2


@pytest.mark.parametrize("target", FORMATS)
def test_convert_of_a_list_with_a_null_is_left_out_or_fails(tmp_path, target):
    lists = [[1]] * 299
    for at, name in ((0, "early"), (250, "late")):
        column = [*lists[:at], [1, None], *lists[at:]]
        pq.write_table(pa.table({"n": list(range(300)), "list": column}), tmp_path / f"{name}.parquet")
    plan = plan_conversion(tmp_path / "early.parquet", target)
    assert [name for name, _ in plan.left_out] == ["list"]
    with pytest.raises(Mismatch, match="record 250: column `list` contains a null") as found:
        convert(tmp_path / "late.parquet", tmp_path / "b", format=target)
    assert found.value.hint == "leave out the part: select the others with fields="
    with pytest.raises(Mismatch, match="record 250: column `list` contains a null") as found:
        convert(tmp_path / "late.parquet", tmp_path / "c", format=target, fields=["list"])
    assert found.value.hint == "correct this record in the source, because no other part is converted"


@pytest.mark.parametrize("target", FORMATS)
def test_convert_of_an_empty_text_is_not_a_missing_one(tmp_path, target):
    rows = [{"n": 1, "text": ""}, {"n": 2, "text": None}, {"n": 3}, {"n": 4, "text": "a"}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    convert(tmp_path / "a.jsonl", tmp_path / "b", format=target)
    opened = penstock.open(str(tmp_path / "b")).fields(text=penstock.text(mask="has"))
    (batch,) = penstock.Loader(opened, batch_size=4)
    assert batch["has"].tolist() == [True, False, False, True]
    assert list(batch["text"]) == ["", "", "", "a"]


def test_convert_of_optional_numbers_keeps_them_single(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"n": 1, "b": true, "f": 0.5}\n{"n": null, "b": null}\n')
    convert(tmp_path / "a.jsonl", tmp_path / "b", format="parquet")
    found = pq.read_table(tmp_path / "b/shard-000000.parquet")
    assert found.to_pydict() == {"n": [1, None], "b": [True, None], "f": [0.5, None]}
    parts = [("0", {"cls": b"7"}), ("1", {"txt": b""})]
    content = b"".join(_native.tar_member(f"{key}.{part}", data) for key, row in parts for part, data in row.items())
    (tmp_path / "x.tar").write_bytes(content + bytes(1024))
    convert(tmp_path / "x.tar", tmp_path / "c", format="tar")
    assert (tmp_path / "c/shard-000000.tar").read_bytes() == content + bytes(1024)


def test_convert_of_whole_records_keeps_them(tmp_path):
    records = [b"\xffone", b"\xfftwo"]
    (tmp_path / "a").mkdir()
    rows = [{"x": record} for record in records]
    write_mds(tmp_path / "a", {"x": "bytes"}, [rows])
    convert(tmp_path / "a", tmp_path / "b", format="tfrecord")
    same(read(tmp_path / "b"), rows)
    framed = b"".join(map(frame, records))
    (tmp_path / "c.tfrecord").write_bytes(framed)
    convert(tmp_path / "c.tfrecord", tmp_path / "d", format="parquet")
    assert pq.read_table(tmp_path / "d/shard-000000.parquet").to_pydict() == {"record": records}


def test_convert_into_a_folder_inside_the_source_is_refused(tmp_path):
    folder = tmp_path / "data"
    (folder / "sub").mkdir(parents=True)
    for name in ("a.parquet", "sub/b.parquet"):
        pq.write_table(pa.table({"n": [1, 2]}), folder / name)
    (tmp_path / "link").symlink_to(folder)
    for source in (folder, tmp_path / "link", folder / "**", folder / "{a.parquet,new/*}"):
        with pytest.raises(
            ConfigError, match=r"is inside the source .*, so the source would contain the new shards, too"
        ):
            convert(source, folder / "new", format="tar")
    assert not (folder / "new").exists()
    # Neither an object nor a pattern that does not match the new shards would contain them.
    assert convert(folder / "a.parquet", folder / "new", format="tar").samples == 2
    assert convert(folder / "*.parquet", folder / "other", format="parquet").samples == 2
    assert convert(folder / "sub", folder / "third", format="parquet").samples == 2


def test_convert_into_a_folder_inside_a_written_dataset_is_refused(tmp_path):
    penstock.write(some(3), tmp_path / "data/big")
    (tmp_path / "data/other.jsonl").write_text('{"n": 1}\n')
    for source in ("data/big/*.tfrecord", "data/big/shard-000000.tfrecord", "data/*.jsonl"):
        with pytest.raises(ConfigError, match=r"is inside .*data/big/, which contains a dataset with a manifest"):
            convert(tmp_path / source, tmp_path / "data/big/sub/tars", format="tar")
    assert not (tmp_path / "data/big/sub").exists()
    assert convert(tmp_path / "data/*.jsonl", tmp_path / "data/tars", format="tar").samples == 1


def test_convert_inside_the_source_in_a_store_is_refused(tmp_path, emulator, monkeypatch):
    store = emulator()
    for name, value in store.env.items():
        monkeypatch.setenv(name, value)
    penstock.write([{"n": 1}], f"{store.url}/data")
    with pytest.raises(ConfigError, match="is inside the source"):
        convert(f"{store.url}/data", f"{store.url}/data/tars", format="tar")
    assert convert(f"{store.url}/data", f"{store.url}/data-tars", format="tar").samples == 1


def test_convert_of_text_in_one_file_and_bytes_in_another_keeps_bytes(tmp_path):
    (tmp_path / "a").mkdir()
    pq.write_table(pa.table({"x": ["é"], "list": [["a"]]}), tmp_path / "a/a.parquet")
    pq.write_table(pa.table({"x": [b"\xff"], "list": [[b"\xfe"]]}), tmp_path / "a/b.parquet")
    convert(tmp_path / "a", tmp_path / "b", format="parquet")
    found = pq.read_table(tmp_path / "b/shard-000000.parquet").to_pydict()
    assert found == {"x": ["é".encode(), b"\xff"], "list": [[b"a"], [b"\xfe"]]}


def test_convert_of_a_list_of_urls_and_of_other_sources(tmp_path):
    for name in "abc":
        penstock.write([{"name": name}], tmp_path / name)
    urls = [str(tmp_path / "c"), tmp_path / "a"]
    assert convert(urls, tmp_path / "d", format="parquet").samples == 2
    assert [row["name"] for row in read(tmp_path / "d")] == [b"a", b"c"]
    with pytest.raises(ConfigError, match="contains objects of the source"):
        convert(urls, tmp_path / "c", format="parquet", if_exists="overwrite")
    with pytest.raises(ConfigError, match=r"source: must be a URL, .* \(got Dataset\)"):
        convert(penstock.open(tmp_path / "a"), tmp_path / "e", format="tar")


def test_convert_to_a_store_that_is_read_only_is_refused_before_reading(tmp_path):
    with pytest.raises(Unsupported, match="Hugging Face Hub, to which Penstock does not write") as found:
        convert(tmp_path / "nowhere", "hf://datasets/org/name", format="parquet")
    assert "huggingface-cli upload" in str(found.value.hint)
    with pytest.raises(Unsupported, match="is on a web server"):
        penstock.write([{"n": 1}], "https://example.com/x")


def test_convert_to_tar_accepts_keys_of_text_and_refuses_numbers(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"__key__": "x/a.b", "n": 1}\n{"__key__": "x/é", "n": 2}\n')
    convert(tmp_path / "a.jsonl", tmp_path / "b", format="tar")
    assert read(tmp_path / "b") == [{"__key__": "x/a_b", "n": 1}, {"__key__": "x/é", "n": 2}]
    with pytest.raises(ConfigError, match="`__key__` is int64, instead of bytes or text"):
        penstock.write([{"__key__": 1, "n": 1}], tmp_path / "c", format="tar")


def test_convert_to_tar_of_a_sample_without_any_value_is_refused(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"n": 1}\n{"n": null}\n')
    with pytest.raises(KeyRefused, match="sample 1 has no values, but a tar cannot store a sample without members"):
        convert(tmp_path / "a.jsonl", tmp_path / "b", format="tar")
    assert convert(tmp_path / "a.jsonl", tmp_path / "c", format="tfrecord").samples == 2


def test_convert_equal_keys_in_a_shard_are_refused(tmp_path):
    rows = [{"__key__": "a", "txt": "1"}, {"__key__": "b", "txt": "2"}, {"__key__": "a", "txt": "3"}]
    penstock.write(rows, tmp_path / "a")
    with pytest.raises(KeyRefused, match="sample 2: the key 'a' is the key of two samples") as refused:
        convert(tmp_path / "a", tmp_path / "b", format="tar")
    assert (
        refused.value.hint == "leave out `__key__`: select the other parts with fields=, so that samples are numbered"
    )
    assert convert(tmp_path / "a", tmp_path / "b", format="tar", fields=["txt"]).samples == 3


def test_convert_to_tar_keeps_the_keys_of_images_apart(tmp_path, monkeypatch):
    names = [".hidden.jpg", "0-1.jpg", "0.jpg", "0.png", "a.b.jpg", "a.c.jpg", "a_b.jpg", "b..c.jpg"]
    (tmp_path / "a/cat").mkdir(parents=True)
    for at, name in enumerate(names):
        Image.new("RGB", (2, 2), (at, 0, 0)).save(tmp_path / "a/cat" / name, "PNG")
    keys = ["_hidden", "0-1", "0", "0-2", "a_b", "a_c", "a_b-1", "b__c"]

    def stopped(self, start, read=Conversion.read):
        for number, row in enumerate(read(self, start), start):
            if number == 5:
                raise RuntimeError("the source broke")
            yield row

    with monkeypatch.context() as patch:
        patch.setattr(Conversion, "read", stopped)
        with pytest.raises(RuntimeError, match="the source broke"):
            convert(tmp_path / "a", tmp_path / "b", format="tar", shard_bytes=3000)
    # The keys are the same after an interruption.
    assert convert(tmp_path / "a", tmp_path / "b", format="tar", shard_bytes=3000).skipped > 0
    found = {row["__key__"].decode(): row["jpg"] for row in read(tmp_path / "b")}
    assert {path.name: path.read_bytes() for path in (tmp_path / "a/cat").iterdir()} == {
        name: found[f"cat/{key}"] for name, key in zip(names, keys, strict=True)
    }


def test_convert_to_tar_of_a_tar_of_a_folder_drops_the_dot_folder(tmp_path):
    members = [("./0.cls", b"1"), ("./x.y/1.cls", b"2")]
    content = b"".join(_native.tar_member(name, data) for name, data in members)
    (tmp_path / "a.tar").write_bytes(content + bytes(1024))
    convert(tmp_path / "a.tar", tmp_path / "b", format="tar")
    assert [row["__key__"] for row in read(tmp_path / "b")] == [b"0", b"x.y/1"]


def test_convert_command_prints_plan_result_and_exit_codes(tmp_path, run_cli):
    penstock.write(some(7), tmp_path / "a")
    planned = run_cli("convert", tmp_path / "a", tmp_path / "b", "--format", "tar", "--dry-run", "--json")
    plan = json.loads(planned.out)
    assert (planned.code, plan["schema_version"], plan["samples"], plan["source_format"]) == (0, 1, 7, "tfrecord")
    assert plan["fields"]["x"] == "int16 [2, 3]"
    assert not (tmp_path / "b").exists()
    shown = run_cli("convert", tmp_path / "a", tmp_path / "b", "--format", "tar", "--dry-run")
    assert "field    x: int16 [2, 3]" in shown.out
    assert "records after the first 100" not in shown.out
    (tmp_path / "x.jsonl").write_text('{"n": 1}\n')
    rule = run_cli("convert", tmp_path / "x.jsonl", tmp_path / "b", "--format", "tar", "--dry-run")
    assert "parts that only records after the first 100 have are left out" in rule.out
    done = run_cli("convert", tmp_path / "a", tmp_path / "b", "--format", "tar", "--shard-bytes", "4KB", "--json")
    assert (done.code, json.loads(done.out)["shards"] > 1) == (0, True)
    again = run_cli("convert", tmp_path / "a", tmp_path / "b", "--format", "tar", "--shard-bytes", "4KB")
    assert again.code == 0
    assert "(7 samples were there already)" in again.out
    other = run_cli("convert", tmp_path / "a", tmp_path / "b", "--format", "tar")
    assert (other.code, "contains a complete dataset" in other.err) == (3, True)
    assert "use --overwrite to replace it" in other.err
    wrong = run_cli("convert", tmp_path / "a", tmp_path / "c", "--format", "tar", "--fields", "nothing")
    assert (wrong.code, "is not a part of" in wrong.err) == (2, True)
    missing = run_cli("convert", tmp_path / "nowhere", tmp_path / "c", "--format", "tar")
    assert missing.code == 3


def test_convert_command_dry_run_states_what_the_destination_contains(tmp_path, call_cli, monkeypatch):
    penstock.write(some(40), tmp_path / "a")
    line = ["convert", str(tmp_path / "a"), str(tmp_path / "b"), "--format", "tar", "--shard-bytes", "4KB"]
    plan = plan_conversion(tmp_path / "a", "tar")

    def state(*flags):
        return json.loads(call_cli(*line, "--dry-run", "--json", *flags).out)

    assert state()["destination_state"] == "empty"

    def failing(self, start, read=Conversion.read):
        for number, row in enumerate(read(self, start), start):
            if number == 30:
                raise RuntimeError("the source broke")
            yield row

    with monkeypatch.context() as patch:
        patch.setattr(Conversion, "read", failing)
        with pytest.raises(RuntimeError, match="the source broke"):
            convert(plan, tmp_path / "b", format="tar", shard_bytes=4000)
    before = files(tmp_path / "b/.penstock/write")
    found = state()
    assert (found["destination_state"], 0 < found["samples_stored"] <= 30) == ("unfinished", True)
    assert f"it continues after {found['samples_stored']:,} samples" in call_cli(*line, "--dry-run").out
    assert files(tmp_path / "b/.penstock/write") == before
    assert convert(plan, tmp_path / "b", format="tar", shard_bytes=4000).skipped == found["samples_stored"]
    assert state()["destination_state"] == "complete"
    assert "is complete (40 samples): nothing to do" in call_cli(*line, "--dry-run").out
    assert state("--overwrite")["destination_state"] == "replaced"
    # A problem of the real run is also the error of the dry run, after the plan.
    other = call_cli(*line, "--dry-run", "--name", "train")
    assert (other.code, "field    x: int16 [2, 3]" in other.out) == (3, True)
    assert 'contains a complete dataset with name="shard", but this write has name="train"' in other.err
    assert "use --overwrite" in other.err
    (tmp_path / "c").mkdir()
    (tmp_path / "c/x").touch()
    line[2] = str(tmp_path / "c")
    assert (other := call_cli(*line, "--dry-run")).code == 2
    assert "contains 1 other objects" in other.err
    line[2] = str(tmp_path / "a/tars")
    assert "is inside the source" in call_cli(*line, "--dry-run").err
    key = call_cli(
        "convert", str(tmp_path / "a"), str(tmp_path / "d"), "--format", "tar", "--dry-run", "--fields", "/=x"
    )
    assert (key.code, "cannot be an extension in a tar" in key.err) == (1, True)


def test_convert_command_accepts_a_name_with_a_comma(tmp_path, call_cli):
    pq.write_table(pa.table({"x,y": [1], "z": [2]}), tmp_path / "a.parquet")
    line = ["convert", str(tmp_path / "a.parquet"), str(tmp_path / "b"), "--format", "tfrecord"]
    assert call_cli(*line, "--fields", r"x\,y, a\,b=z").code == 0
    assert read(tmp_path / "b") == [{"x,y": 1, "a,b": 2}]


def test_convert_command_names_flags_in_hints(tmp_path, call_cli):
    pq.write_table(pa.table({"n": [1], "tags": [["a"]]}), tmp_path / "a.parquet")
    line = ["convert", str(tmp_path / "a.parquet"), str(tmp_path / "b"), "--format", "tar"]
    refused = call_cli(*line, "--fields", "n,tags")
    assert "hint: leave it out, or use --format tfrecord or parquet\n" in refused.err
    assert "`tags` is not converted: a list of bytes or texts" in call_cli(*line).err
    pq.write_table(pa.table({"n": [1], "b/": [2], "m": [3], "o": [4]}), tmp_path / "a.parquet")
    line[2] = str(tmp_path / "c")
    assert call_cli(*line, "--fields", "n,b/").err.startswith("not selected: `m`, `o`\n")
    assert "left out b/, m, o: not selected\n" in call_cli(*line, "--fields", "n", "--dry-run").out
    assert "hint: rename the part with NEW=OLD in --fields\n" in call_cli(*line, "--fields", "n,b/").err
    for name in ("x", "y", "z"):
        (tmp_path / name).touch()
    warned = call_cli("convert", str(tmp_path), str(tmp_path / "c"), "--format", "tar", "--dry-run").err
    assert "objects" in warned
    assert "UserWarning" not in warned


@pytest.mark.parametrize(
    ("error", "code", "word"), [(KeyboardInterrupt, 130, "interrupted"), (TerminationSignal, 143, "terminated")]
)
def test_convert_command_that_is_interrupted_names_the_way_on(tmp_path, call_cli, monkeypatch, error, code, word):
    penstock.write(some(5), tmp_path / "a")

    def stopped(self, start):
        raise error

    monkeypatch.setattr(Conversion, "read", stopped)
    ended = call_cli("convert", str(tmp_path / "a"), str(tmp_path / "b"), "--format", "tar")
    assert ended.code == code
    assert ended.err == f"{word}; complete shards are kept, and the same command continues after them\n"


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

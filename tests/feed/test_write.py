# SPDX-License-Identifier: Apache-2.0
"""Tests that what the writer writes is read back equal and without a scan, by Penstock and by the libraries of the
formats.
"""

from __future__ import annotations

import io
import json
import subprocess
import tarfile
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock
from penstock import _native
from penstock.errors import ConfigError, Corrupt, Unsupported
from penstock.writer import convert, plan_conversion

from .written import DTYPES, FORMATS, files, read, same, some


@pytest.mark.parametrize("compress", [None, "gzip", "zstd"])
@pytest.mark.parametrize("kind", FORMATS)
def test_written_samples_are_read_back_without_a_scan(tmp_path, kind, compress, caplog):
    written = penstock.write(some(23), tmp_path / "d", format=kind, shard_bytes=800, compress=compress, workers=3)
    dataset = penstock.open(tmp_path / "d")
    assert dataset.rung == "manifest"
    assert (written.samples, written.skipped, written.left_out) == (23, 0, ())
    assert written.shards == dataset.source.objects > 1
    assert written.bytes_stored == dataset.source.size_bytes
    same(read(tmp_path / "d"), list(some(23)))
    assert dict(dataset.schema().specs) == written.fields
    x = penstock.tensor("int16", (2, 3))
    assert written.fields["x"] == (x.of("x.npy") if kind == "tar" else x)
    assert not caplog.records


def test_written_dataset_has_a_manifest_with_counts_digests_and_statistics(tmp_path):
    penstock.write(some(10), tmp_path, shard_bytes=500, name="train")
    manifest = json.loads((tmp_path / ".penstock/manifest.json").read_text())
    assert [entry["key"] for entry in manifest["objects"]] == sorted(files(tmp_path))
    assert manifest["objects"][0]["key"] == "train-000000.tfrecord"
    assert sum(entry["records"] for entry in manifest["objects"]) == 10
    for entry in manifest["objects"]:
        assert f"crc32c:{_native.crc32c((tmp_path / entry['key']).read_bytes()):08x}" in entry["digests"]
    found = manifest["statistics"]
    assert found["label"]["values"] == {"count": 10, "nan": 0, "min": 0, "max": 9, "mean": 4.5}
    assert found["x"]["values"] == {"count": 60, "nan": 0, "min": 0, "max": 14, "mean": 7}
    assert found["jpg"]["bytes"] == {"count": 10, "nan": 0, "min": 2, "max": 8, "mean": 4.4}
    assert "values" not in found["text"]
    assert sorted(path.name for path in (tmp_path / ".penstock").iterdir() if path.is_file()) == [
        "manifest.json",
        "records-0-of-1.bin",
    ]


def test_manifest_with_fields_opens_the_dataset_elsewhere(tmp_path):
    penstock.write(some(10), tmp_path / "a", shard_bytes=500)
    subprocess.run(["cp", "-r", tmp_path / "a", tmp_path / "b"], check=True)
    copied = penstock.open(tmp_path / "b")
    assert (copied.rung, dict(copied.schema().specs)["x"]) == ("manifest", penstock.tensor("int16", (2, 3)))
    chosen = penstock.open(tmp_path / "a" / "*-000001.tfrecord")
    assert (chosen.source.objects, chosen.rung) == (1, "manifest")
    # A shard that changed since is refused.
    name = min(files(tmp_path / "a"))
    (tmp_path / "a" / name).write_bytes((tmp_path / "a" / "shard-000001.tfrecord").read_bytes())
    with pytest.raises(Corrupt, match=f"{name} has .* bytes, but the manifest of its dataset states"):
        penstock.open(tmp_path / "a")


@pytest.mark.parametrize("kind", FORMATS)
def test_write_same_samples_give_same_bytes(tmp_path, kind):
    for name, workers in (("a", 1), ("b", 4)):
        penstock.write(some(40), tmp_path / name, format=kind, shard_bytes=700, compress="gzip", workers=workers)
    assert files(tmp_path / "a") == files(tmp_path / "b")


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), kind=st.sampled_from(FORMATS))
def test_prop_arrays_bytes_and_text_round_trip(tmp_path_factory, data, kind):
    """Hypothesis: arrays of every type, fixed or with any first side, bytes, text and lists."""
    forms = data.draw(
        st.lists(st.sampled_from(["fixed", "ragged", "bytes", "text", "texts", "int"]), min_size=1, max_size=4)
    )
    count = data.draw(st.integers(1, 5))
    samples: list[dict[str, Any]] = [{} for _ in range(count)]
    for at, form in enumerate(forms):
        dtype, inner = data.draw(st.sampled_from(DTYPES)), data.draw(st.sampled_from([(), (3,), (2, 1)]))
        for sample in samples:
            side = (2,) if form == "fixed" else (data.draw(st.integers(0, 3)),)
            if form in ("fixed", "ragged"):
                raw = data.draw(st.binary(min_size=96, max_size=96))
                shape = inner if form == "fixed" else (*side, *inner)
                wide = np.frombuffer(raw, np.uint8).astype(np.int64) - (100 if dtype[0] in "if" else 0)
                sample[f"f{at}"] = np.resize(wide, int(np.prod(shape))).astype(dtype).reshape(shape)
            elif form == "bytes":
                sample[f"f{at}"] = data.draw(st.binary(max_size=20))
            elif form == "text":
                sample[f"f{at}"] = data.draw(st.text(max_size=20).filter(lambda text: text.isprintable()))
            elif form == "texts":
                sample[f"f{at}"] = data.draw(st.lists(st.text("abé", max_size=5), min_size=1, max_size=3))
            else:
                sample[f"f{at}"] = data.draw(st.integers(-(2**63), 2**63 - 1))
    folder = tmp_path_factory.mktemp("prop") / "d"
    penstock.write(samples, folder, format=kind, shard_bytes=data.draw(st.integers(1, 400)))
    want = [
        {
            name: [one.encode() for one in value]
            if isinstance(value, list) and kind != "tar"
            else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
            if isinstance(value, list)
            else value
            for name, value in sample.items()
        }
        for sample in samples
    ]
    same(read(folder), want)


def test_write_scalars_follow_the_rules_of_each_format(tmp_path):
    sample = {"flag": True, "score": 0.1, "many": [0.5, 0.25], "exact": np.array(0.1), "big": np.uint64(2**63)}
    for kind, score in (("tfrecord", np.float32(0.1)), ("tar", 0.1), ("parquet", 0.1)):
        one = {name: value for name, value in sample.items() if name != "big" or kind != "tfrecord"}
        penstock.write([one], tmp_path / kind, format=kind)
        (found,) = read(tmp_path / kind)
        assert (found["flag"], found["score"], found["exact"]) == (True, score, 0.1)
        assert found["many"].tolist() == [0.5, 0.25]
    (record,) = _native.decode_tfrecord((tmp_path / "tfrecord/shard-000000.tfrecord").read_bytes())
    assert record == {"flag": [1], "score": [np.float32(0.1)], "many": [0.5, 0.25], "exact": np.float64(0.1).tobytes()}


def test_write_arrays_of_other_byte_order_and_strides_are_stored_as_usual(tmp_path):
    array = np.arange(12, dtype=np.int16).reshape(3, 4)
    samples = [{"x": array}, {"x": array.astype(">i2")}, {"x": np.asfortranarray(array)}, {"x": array[::-1][::-1]}]
    for kind in FORMATS:
        penstock.write(samples, tmp_path / kind, format=kind)
        same(read(tmp_path / kind), [{"x": array}] * 4)


def test_write_schema_sets_types_shapes_and_optional_fields(tmp_path):
    schema = {
        "x": penstock.tensor("float32", (2,)),
        "n": penstock.tensor("int32", (), default=-1),
        "ids": penstock.ragged("int64"),
        "names": penstock.raw_list(),
        "note": penstock.raw(default=b""),
        "title": penstock.text(default="none"),
    }
    samples = [
        {"x": [1, 2], "n": 5, "ids": [], "names": ["a", "b"], "note": "text", "title": "ü"},
        {"x": np.array([0.5, 1], np.float16), "note": None},
    ]
    for kind in ("tfrecord", "parquet"):
        penstock.write(samples, tmp_path / kind, format=kind, schema=schema)
        first, second = read(tmp_path / kind)
        assert (first["x"].tolist(), first["n"], first["names"], first["note"]) == ([1, 2], 5, [b"a", b"b"], b"text")
        assert (second["x"].tolist(), second["n"], second["ids"].tolist(), second["note"]) == ([0.5, 1], -1, [], b"")
        assert (first["title"], second["title"]) == ("ü", "none")


NESTED = {
    "polygons": penstock.list(penstock.ragged("float16")),
    "boxes": penstock.list(penstock.ragged("float32", (4,))),
    "words": penstock.list(penstock.raw_list()),
    "texts": penstock.list(penstock.list(penstock.text())),
    "tags": penstock.list(penstock.text()),
    "deep": penstock.list(penstock.list(penstock.ragged("bool"))),
    "maybe": penstock.list(penstock.ragged("int64"), mask="has_maybe"),
}


def test_write_lists_of_lists_as_parquet_and_read_them_back(tmp_path):
    import pyarrow.parquet as pq

    first = {"polygons": [[1, 2.5], []], "boxes": [np.ones((2, 4), "f4"), []], "words": [["a", "é"], []]}
    first |= {"texts": [["a", "é"], []], "tags": ["é"]}
    rows = [
        {**first, "deep": [[[True], []], []]},
        {"polygons": [], "boxes": [], "words": [], "texts": [], "tags": [], "deep": [], "maybe": [[7], [8, 9]]},
    ]
    penstock.write(rows, tmp_path / "a", format="parquet", schema=NESTED)
    want = {
        "polygons": [[[1, 2.5], []], []],
        "boxes": [[[[1] * 4] * 2, []], []],
        "words": [[[b"a", "é".encode()], []], []],
        "texts": [[["a", "é"], []], []],
        "tags": [["é"], []],
        "deep": [[[[True], []], []], []],
        "maybe": [None, [[7], [8, 9]]],
    }
    assert pq.read_table(tmp_path / "a/shard-000000.parquet").to_pydict() == want
    # What a loader delivers can be written again.
    convert(tmp_path / "a", tmp_path / "b", format="parquet")
    for folder in ("a", "b"):
        (batch,) = penstock.Loader(penstock.open(tmp_path / folder), batch_size=2)
        found = {
            name: column.to_list() if isinstance(column, penstock.Ragged) else column for name, column in batch.items()
        }
        assert found.pop("has_maybe").tolist() == [False, True]
        assert found == {**want, "maybe": [[], [[7], [8, 9]]]}


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("polygons", [[1, "x"]], "`polygons` is <U21 array that does not fit, instead of float16 array"),
        ("polygons", [1], r"`polygons` has the shape \[\], but the schema says \[any\]"),
        ("polygons", 3, r"`polygons` is a int, instead of list of list of float16 \[\]"),
        ("boxes", [[1, 2, 3]], r"`boxes` has the shape \[3\], but the schema says \[any, 4\]"),
        ("deep", [1], r"`deep` is a int in level 2, instead of list of list of list of bool \[\]"),
        ("words", [[1]], "`words` is a list, instead of list of bytes"),
        ("texts", [[b"a"]], "`texts` is a list, instead of list of str"),
    ],
)
def test_write_lists_of_lists_that_do_not_fit_are_refused(tmp_path, field, value, problem):
    row = {"polygons": [], "boxes": [], "words": [], "texts": [], "tags": [], "deep": []}
    with pytest.raises(ConfigError, match=f"sample 1: {problem}"):
        penstock.write([row, {**row, field: value}], tmp_path, format="parquet", schema=NESTED)


@pytest.mark.parametrize("kind", ["tar", "tfrecord"])
def test_write_lists_of_lists_in_another_format_is_refused(tmp_path, kind):
    with pytest.raises(Unsupported, match="`polygons` is a list of lists, which only Parquet can store"):
        penstock.write([{"polygons": [[1], []]}], tmp_path, format=kind, schema={"polygons": NESTED["polygons"]})
    with pytest.raises(ConfigError, match="`polygons` is a list of lists of unequal lengths or types") as caught:
        penstock.write([{"polygons": [[1], []]}], tmp_path, format=kind)
    assert "schema={'polygons': penstock.list(" in str(caught.value.hint)
    assert not list(tmp_path.iterdir())


def test_write_tar_is_a_webdataset_of_plain_members(tmp_path):
    samples = [
        {"__key__": "dir/a", "jpg": b"J", "cls": 3, "txt": "hé", "json": {"a": [1]}, "seg.png": b"P", "x": np.eye(2)},
        {
            "__key__": "dir/ü" + "b" * 120,
            "jpg": b"K",
            "cls": 4,
            "txt": "",
            "json": {},
            "seg.png": b"",
            "x": np.ones((3, 2)),
        },
    ]
    written = penstock.write(samples, tmp_path, format="tar")
    assert (written.left_out, written.fields["x"]) == ((), penstock.ragged("float64", (2,)).of("x.npy"))
    with tarfile.open(tmp_path / "shard-000000.tar") as archive:
        members = {member.name: (member, archive.extractfile(member).read()) for member in archive}
    parts = ("jpg", "cls", "txt", "json", "seg.png", "x.npy")
    assert list(members) == [f"{sample['__key__']}.{part}" for sample in samples for part in parts]
    assert [members[f"dir/a.{part}"][1] for part in parts[:5]] == [b"J", b"3", "hé".encode(), b'{"a":[1]}', b"P"]
    assert np.load(io.BytesIO(members["dir/a.x.npy"][1])).tolist() == [[1, 0], [0, 1]]
    member = members["dir/a.jpg"][0]
    assert (member.mode, member.mtime, member.uid, member.uname) == (0o644, 0, 0, "")


@pytest.mark.parametrize("kind", FORMATS)
def test_write_names_with_a_semicolon_are_read_back(tmp_path, kind):
    row = {"b;c": 2, "b": 3, "t;u": ["x", "y"]}
    penstock.write([row], tmp_path, format=kind)
    (found,) = read(tmp_path)
    assert (found["b;c"], found["b"]) == (2, 3)
    assert found["t;u"] == (b'["x","y"]' if kind == "tar" else [b"x", b"y"])


def test_write_arrays_of_any_shape_are_kept_in_a_tar_only(tmp_path, caplog):
    samples = [{"x": np.zeros((2, 3)), "n": 1}, {"x": np.zeros((4, 5)), "n": 2}]
    assert penstock.write(samples, tmp_path / "t", format="tar").left_out == ("x",)
    assert "no field reads `x`: its arrays differ in more than their first dimension" in caplog.text
    plan = plan_conversion(tmp_path / "t", "tar")
    assert plan.left_out == (("x", "its arrays differ in more than their first dimension"),)
    with pytest.raises(Unsupported, match=r"sample 1: `x` has the shape \[4, 5\], but .* has \[2, 3\]; only the first"):
        penstock.write(samples, tmp_path / "r")


def test_tar_member_of_core_equals_tarfile():
    for name, data in (("a/b.jpg", b"x" * 700), ("k" * 100, b"")):
        info = tarfile.TarInfo(name)
        info.size, info.mode = len(data), 0o644
        want = info.tobuf(tarfile.USTAR_FORMAT) + data + bytes(-len(data) % 512)
        assert _native.tar_member(name, data) == want


@pytest.mark.parametrize("kind", FORMATS)
def test_write_to_a_store_is_read_back(kind):
    penstock.write(some(5), f"memory://written/{kind}/", format=kind, shard_bytes=200)
    same(read(f"memory://written/{kind}/"), list(some(5)))


def test_write_parquet_is_read_by_pyarrow(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = {"x": penstock.tensor("float32", (2, 2)), "label": penstock.tensor("int64", ())}
    samples = [{"x": np.full((2, 2), at, np.float32), "label": at} for at in range(9)]
    penstock.write(samples, tmp_path / "s", format="parquet", schema=schema, compress="zstd", shard_bytes=100)
    table = pq.read_table(tmp_path / "s" / "shard-000000.parquet")
    assert table.schema.field("x").type == pa.list_(pa.float32(), 4)
    penstock.write(some(9), tmp_path / "d", format="parquet")
    table = pq.read_table(tmp_path / "d" / "shard-000000.parquet")
    assert table.column("text").to_pylist() == [sample["text"] for sample in some(9)]
    assert table.column("ids").to_pylist() == [sample["ids"].tolist() for sample in some(9)]


@pytest.mark.parametrize("target", FORMATS)
def test_write_with_masks_reads_and_converts_them_without_fields(tmp_path, target):
    schema = {"x": penstock.tensor("int64", (), default=-1, mask="has_x"), "n": penstock.tensor("int64", ())}
    samples = [{"x": 5, "n": 0}, {"n": 1}]
    written = penstock.write(samples, tmp_path / "a", format=target, schema=schema)
    assert set(written.fields) == {"x", "n", "has_x"}
    convert(tmp_path / "a", tmp_path / "b", format=target)
    for folder in ("a", "b"):
        (batch,) = penstock.Loader(penstock.open(tmp_path / folder), batch_size=2, rank=0, world=1)
        assert batch["x"].tolist() == [5, -1]
        assert batch["has_x"].tolist() == [True, False]
    taken = {"x": penstock.tensor("int64", (), mask="n"), "n": penstock.tensor("int64", ())}
    with pytest.raises(ConfigError, match="two fields have the name n; one of them is the mask or rate of x"):
        penstock.write(samples, tmp_path / "c", format=target, schema=taken)

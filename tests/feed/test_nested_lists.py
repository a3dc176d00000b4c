# SPDX-License-Identifier: Apache-2.0
"""Tests lists of lists: of Parquet (also written by pyarrow) and of a tf.SequenceExample's steps."""

from __future__ import annotations

import contextlib
import json
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock.errors import BudgetExceeded, ConfigError, Corrupt, Mismatch, Unsupported
from tests.feed import mapped

from .nested_parquet import extract_golden, nested_bytes
from .test_formats import png
from .tfrecords import example, frame, sequence_example

BOXES = [[[1, 2, 3, 4], [5, 6, 7, 8]], [], None, [[9, 10, 11, 12]]]
WORDS = [[[b"a", b"bc"], []], [[b""]], [], None]


@pytest.fixture(scope="module")
def golden(tmp_path_factory):
    return extract_golden(tmp_path_factory.mktemp("golden"))


@pytest.fixture
def table(tmp_path):
    rows = [{"boxes": box, "words": words} for box, words in zip(BOXES, WORDS, strict=True)]
    (tmp_path / "a.parquet").write_bytes(nested_bytes({"boxes": [["int64"]], "words": [["text"]]}, rows, group=3))
    return penstock.open(tmp_path / "a.parquet")


def loaded(dataset, size=64, **fields):
    (batch,) = penstock.Loader(dataset.fields(**fields) if fields else dataset, batch_size=size)
    return batch


def lists(column):
    """Lists of a column, with text as text."""
    if isinstance(column, penstock.Ragged):
        return column.to_list()
    if isinstance(column, np.ndarray):
        return column.tolist()
    return [lists(each) if isinstance(each, list) else each.decode() for each in column]


def test_ragged_has_the_length_and_the_rows_of_its_samples(table):
    boxes = loaded(table)["boxes"]
    inner = boxes.values
    rows = [boxes.row(at).to_list() for at in range(len(BOXES))]
    assert len(boxes) == len(BOXES) == len(rows)
    assert [boxes[at].to_list() for at in range(len(boxes))] == rows
    assert boxes[np.int64(-1)].to_list() == rows[-1]
    for part in (
        slice(1, 3),
        slice(None, -1),
        slice(3, 1),
        slice(2, None),
        slice(None, None, 2),
        slice(None, None, -1),
    ):
        assert boxes[part].to_list() == rows[part]
    assert [inner[at].tolist() for at in range(len(inner))] == inner.to_list()
    with pytest.raises(IndexError):
        boxes[len(boxes)]
    values, offsets = boxes
    assert values is boxes.values
    assert offsets is boxes.offsets
    for copied in (pickle.loads(pickle.dumps(boxes)), boxes._replace(values=inner), penstock.Ragged._make(boxes)):
        assert copied.to_list() == rows


def test_ragged_of_a_mask_or_integers_has_these_samples(table):
    boxes = loaded(table)["boxes"]
    rows, count = boxes.to_list(), len(boxes)
    tensors = penstock.Ragged(
        penstock.Ragged(*(torch.asarray(each) for each in boxes.values)), torch.asarray(boxes.offsets)
    )
    for index in ([1, 0, 1, -1], [], [at % 2 == 0 for at in range(count)], [False] * count):
        want = [rows[at] for at in np.arange(count)[index]]
        assert boxes[index].to_list() == want
        assert boxes[np.array(index, dtype=None if index else int)].to_list() == want
        chosen = tensors[torch.tensor(index, dtype=None if index else int)]
        assert chosen.to_list() == want
        assert isinstance(chosen.offsets, torch.Tensor)
    assert boxes[[0]].offsets.dtype == boxes.offsets.dtype
    for bad in ([count], [True], [0.5]):
        with pytest.raises(IndexError):
            boxes[bad]


@pytest.mark.parametrize("kind", ["snappy", "pages", "plain2"])
def test_nested_lists_of_pyarrow_are_read_as_it_wrote_them(golden, kind):
    rows = json.loads((golden / "rows.json").read_text())
    dataset = penstock.open(golden / f"{kind}.parquet")
    schema = dataset.schema()
    assert schema.left_out == ()
    assert {name for name, _ in schema.specs} == set(rows)
    batch = loaded(dataset)
    for name, want in rows.items():
        assert lists(batch[name]) == [[] if row is None else row for row in want], name
    # Any part of the rows, in any order.
    dataset = dataset.fields(**dict(schema.specs)).shuffle(seed=3)
    for name in rows:
        found = [row for batch in penstock.Loader(dataset, batch_size=3) for row in lists(batch[name])]
        assert sorted(found) == sorted(row or [] for row in rows[name])


def test_inner_lists_of_one_length_are_ragged_or_tensors(golden):
    rows = json.loads((golden / "rows.json").read_text())
    batch = loaded(
        penstock.open(golden / "snappy.parquet"),
        boxes=penstock.ragged("float32", (4,)),
        array2d=penstock.tensor("float32", (2, 3)),
        pages=penstock.list(penstock.ragged("float32", (4,))),
    )
    assert [row.tolist() for row in map(batch["boxes"].row, range(12))] == [row or [] for row in rows["boxes"]]
    assert batch["array2d"].tolist() == rows["array2d"]
    assert batch["pages"].values.values.shape[1:] == (4,)
    assert batch["pages"].to_list() == rows["pages"]


def test_lists_of_lists_are_nested_by_default(table):
    schema = table.schema()
    assert schema["boxes"] == penstock.list(penstock.list(penstock.tensor("int64", ())))
    assert schema["words"] == penstock.list(penstock.raw_list())
    assert (str(schema["boxes"]), str(schema["words"])) == ("list of list of int64 []", "list of list of bytes")
    batch = loaded(pickle.loads(pickle.dumps(table)))
    boxes = batch["boxes"]
    assert [offsets.tolist() for offsets in boxes.nested_offsets] == [[0, 2, 2, 2, 3], [0, 4, 8, 12]]
    assert boxes.flat_values.tolist() == list(range(1, 13))
    assert batch["words"] == [row or [] for row in WORDS]
    for sample in (boxes.row(3), boxes.row(-1)):
        assert (sample.values.tolist(), sample.offsets.tolist()) == ([9, 10, 11, 12], [0, 4])
    for absent in (4, -5):
        with pytest.raises(IndexError):
            boxes.row(absent)


def test_lists_of_lists_that_do_not_fit_say_so(table):
    for field, problem in {
        penstock.ragged("int64"): r"any number of int64 \[\], but .* a list of 2 lists \(8 int64 in all\): use",
        penstock.ragged("int64", (3,)): r"inner list 0 has 4 items instead of 3",
        penstock.tensor("int64", (3, 4)): r"the value has 2 lists instead of 3",
        penstock.tensor("int64", (8,)): r"the value has 2 levels of lists, but the shape has 1 dimensions",
        penstock.list(penstock.list(penstock.ragged("int64"))): r"lists in 3 levels of int64 \[\], but",
        penstock.list(penstock.ragged("float16")): r"int64 cannot be converted to float16",
        penstock.list(penstock.raw_list()): r"lists in 2 levels of byte strings, but",
        penstock.raw(): r"expects bytes, but",
    }.items():
        with pytest.raises(Mismatch, match=r"record 0: field `boxes` .*" + problem):
            loaded(table, boxes=field)
    with pytest.raises(Mismatch, match=r"lists in 3 levels of byte strings, but .* a list of 2 lists"):
        loaded(table, words=penstock.list(penstock.list(penstock.raw_list())))


def test_list_refuses_items_with_settings_of_their_own():
    for item in (penstock.raw(default=b""), penstock.tensor("int8", ()).of("x"), penstock.ragged("int8", mask="m")):
        with pytest.raises(ConfigError, match="on the list, not on its items"):
            penstock.list(item)
    for item in (
        *(penstock.image(8), penstock.mask(), penstock.boxes(), penstock.keypoints(3)),
        *(penstock.ragged("int64").like("boxes"), penstock.ragged("int64").padded(), penstock.raw(record=True)),
    ):
        with pytest.raises(ConfigError, match="item must be a tensor"):
            penstock.list(item)
    deep = penstock.raw()
    for _ in range(8):
        deep = penstock.list(deep)
    with pytest.raises(ConfigError, match="9 levels of lists"):
        penstock.list(deep)


def test_structs_in_lists_are_aligned_lists(tmp_path):
    people = [[{"name": b"ann", "tags": [1, 2]}, {"name": b"bob", "tags": []}], [], [{"name": b"cy", "tags": [3]}]]
    (tmp_path / "a.parquet").write_bytes(
        nested_bytes({"people": [{"name": "text", "tags": ["int64"]}]}, [{"people": row} for row in people])
    )
    dataset = penstock.open(tmp_path)
    batch = loaded(dataset)
    assert batch["people.name"] == [[b"ann", b"bob"], [], [b"cy"]]
    assert batch["people.tags"].to_list() == [[[1, 2], []], [], [[3]]]
    # The stored path is accepted, too.
    assert loaded(dataset, name=penstock.raw_list().of("people.list.element.name"))["name"] == batch["people.name"]


KINDS = st.recursive(
    st.sampled_from(["int64", "bytes", "text"]),
    lambda kinds: st.one_of(kinds.map(lambda kind: [kind]), st.dictionaries(st.sampled_from("ab"), kinds, min_size=1)),
    max_leaves=4,
).filter(lambda kind: str(kind).count("[") <= 8)


def values(kind):
    if isinstance(kind, list):
        return st.lists(values(kind[0]), max_size=3)
    if isinstance(kind, dict):
        return st.fixed_dictionaries({name: values(of) for name, of in kind.items()})
    return st.integers(-(2**63), 2**63 - 1) if kind == "int64" else st.binary(max_size=3)


def leaves(kind, value, name):
    """Lists of each leaf of a value, by name."""
    if isinstance(kind, list):
        each = [leaves(kind[0], item, name) for item in value]
        return {leaf: [item[leaf] for item in each] for leaf in leaves(kind[0], blank(kind[0]), name)}
    if isinstance(kind, dict):
        return {leaf: of for key in kind for leaf, of in leaves(kind[key], value[key], f"{name}.{key}").items()}
    return {name: value}


def blank(kind):
    return (
        [] if isinstance(kind, list) else {key: blank(of) for key, of in kind.items()} if isinstance(kind, dict) else 0
    )


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_prop_nested_columns_round_trip_through_parquet(tmp_path_factory, data):
    kind = data.draw(KINDS)
    rows = data.draw(st.lists(values(kind), min_size=1, max_size=6))
    file = tmp_path_factory.mktemp("prop") / "a.parquet"
    file.write_bytes(nested_bytes({"x": kind}, [{"x": row} for row in rows], group=data.draw(st.integers(1, 4))))
    batch = loaded(penstock.open(file))
    want = [leaves(kind, row, "x") for row in rows]
    assert batch.keys() == want[0].keys()
    for name, column in batch.items():
        found = (
            column if isinstance(column, list) else column.to_list() if isinstance(column, tuple) else column.tolist()
        )
        assert found == [row[name] for row in want]


def test_nulls_inside_nested_lists_cost_only_their_rows(tmp_path):
    rows = [[[1], None], [[2]], [[3, None]], None, [None], [[]]]
    (tmp_path / "a.parquet").write_bytes(nested_bytes({"x": [["int64"]]}, [{"x": row} for row in rows]))
    dataset = penstock.open(tmp_path).fields(x=penstock.list(penstock.ragged("int64")))
    with pytest.raises(Mismatch, match=r"record 0: column `x` contains a null"):
        loaded(dataset)
    (batch,) = penstock.Loader(dataset, batch_size=8, on_error="skip")
    assert batch["x"].to_list() == [[[2]], [], [[]]]


@pytest.mark.needs_torch
def test_nested_lists_go_through_torch_and_map(table):
    import torch

    (batch,) = penstock.torch.Loader(table, batch_size=4, device="cpu")
    boxes = batch["boxes"]
    assert boxes.to_list() == [row or [] for row in BOXES]
    jagged = torch.nested.nested_tensor_from_jagged(boxes.flat_values, boxes.values.offsets)
    assert [each.tolist() for each in jagged.unbind()] == [box for row in BOXES for box in row or []]
    sample = penstock.torch.MapDataset(table)[0]
    assert (sample["boxes"].to_list(), sample["words"]) == (BOXES[0], WORDS[0])
    for workers in (0, 1):
        counted = table.map(mapped.counts_boxes, workers=workers)
        assert loaded(counted)["lengths"] == [[4, 4], [], [], [4]]


JSON_ROWS = [
    {"polygons": [[1, 2.5], [], [3]], "boxes": [[1, 2], [3, 4]], "words": [["a", "é\n"], []], "tags": ["x", "y"]},
    {"polygons": [], "boxes": [], "words": [], "tags": []},
    {"polygons": [[]], "boxes": [[5, 6]], "words": [["b"]], "tags": ["z"]},
    {"polygons": None},
]


@pytest.fixture
def json_lines(tmp_path):
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in JSON_ROWS))
    return penstock.open(tmp_path)


def test_lists_of_lists_in_json_are_read_as_lists_or_as_text(json_lines):
    batch = loaded(
        json_lines,
        polygons=penstock.list(penstock.ragged("float32"), mask="has_polygons"),
        boxes=penstock.list(penstock.ragged("int64"), default=()),
        pairs=penstock.ragged("int16", (2,), default=()).of("boxes"),
        words=penstock.list(penstock.list(penstock.text()), default=()),
        raw=penstock.list(penstock.raw_list(), default=()).of("words"),
        tags=penstock.list(penstock.text(), default=()),
        text=penstock.text(default="").of("words"),
    )
    assert batch["polygons"].to_list() == [row.get("polygons") or [] for row in JSON_ROWS]
    assert batch["has_polygons"].tolist() == [True, True, True, False]
    assert batch["boxes"].to_list() == batch["pairs"].to_list() == [row.get("boxes", []) for row in JSON_ROWS]
    assert batch["words"] == [row.get("words", []) for row in JSON_ROWS]
    assert batch["raw"] == [[[word.encode() for word in each] for each in row] for row in batch["words"]]
    assert batch["tags"] == [row.get("tags", []) for row in JSON_ROWS]
    assert [json.loads(text) for text in batch["text"][:3]] == batch["words"][:3]


@pytest.mark.parametrize(
    ("value", "spec", "problem"),
    [
        ("[[1], 2]", penstock.list(penstock.ragged("int64")), "2 is not a list"),
        ("[[1], [null]]", penstock.list(penstock.ragged("int64")), "null is not a number"),
        ("[[1.5], []]", penstock.list(penstock.ragged("int64")), "1.5 is not a valid int64"),
        ("[[1], []]", penstock.list(penstock.raw_list()), "1 is not a string"),
        ("[[[1, 2], [3]]]", penstock.list(penstock.ragged("int64", (2,))), "inner list 1 has 1 items instead of 2"),
        ('"[[1], [2, 3]]"', penstock.list(penstock.ragged("int64")), "a text of 13 bytes"),
        ("[1, null]", penstock.ragged("int64"), "a JSON list of 9 bytes with a null"),
        ('["a", null]', penstock.list(penstock.text()), "a JSON list of 11 bytes with a null"),
        ("[[1], [2, 3]]", penstock.ragged("int64"), r"use list\(ragged\(\.\.\.\)\) for lists of lists"),
    ],
)
def test_lists_in_json_that_do_not_fit_say_so(tmp_path, value, spec, problem):
    (tmp_path / "a.jsonl").write_text(f'{{"x": {value}}}\n')
    with pytest.raises(Mismatch, match=rf"record 0: field `x` .*{problem}"):
        loaded(penstock.open(tmp_path), x=spec)


@settings(max_examples=40, deadline=None)
@given(data=st.data(), depth=st.integers(2, 4))
def test_prop_lists_in_json_are_those_of_python(tmp_path_factory, data, depth):
    numbers, strings = st.integers(-(2**63), 2**63 - 1), st.text(max_size=3)
    kinds = {"numbers": (numbers, penstock.tensor("int64", ())), "strings": (strings, penstock.text())}
    rows, specs = [{} for _ in range(3)], {}
    for name, (items, spec) in kinds.items():
        for _ in range(depth):
            items, spec = st.lists(items, max_size=3), penstock.list(spec)
        specs[name] = spec
        for row in rows:
            row[name] = data.draw(items)
    folder = tmp_path_factory.mktemp("json")
    (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    batch = loaded(penstock.open(folder), **specs)
    assert batch["numbers"].to_list() == [row["numbers"] for row in rows]
    assert batch["strings"] == [row["strings"] for row in rows]


def test_lists_of_texts_are_str_and_refuse_other_bytes(table, tmp_path):
    words = penstock.list(penstock.list(penstock.text()))
    assert (str(words), str(penstock.list(penstock.text()))) == ("list of list of text", "list of text")
    assert loaded(table, words=words)["words"] == [
        [[word.decode() for word in each] for each in row or []] for row in WORDS
    ]
    rows = [{"x": [[b"good"]]}, {"x": [[b"a", b"b\xff\xffc"]]}]
    (tmp_path / "b.parquet").write_bytes(nested_bytes({"x": [["bytes"]]}, rows))
    dataset = penstock.open(tmp_path / "b.parquet")
    with pytest.raises(Corrupt, match=r"record 1 field `x` is not UTF-8: byte 1 of 4 is 0xff"):
        loaded(dataset, x=words)
    for errors, text in (("replace", "b\ufffd\ufffdc"), ("ignore", "bc")):
        spec = penstock.list(penstock.list(penstock.text(errors=errors)))
        assert loaded(dataset, x=spec)["x"] == [[["good"]], [["a", text]]]
    (batch,) = penstock.Loader(dataset.fields(x=words), batch_size=2, on_error="skip")
    assert batch["x"] == [[["good"]]]
    mapped_batch = loaded(table.fields(words=words).map(lambda sample: {"n": len(sample["words"])}))
    assert mapped_batch["n"].tolist() == [len(row or []) for row in WORDS]


def test_values_of_nested_lists_are_counted_in_the_budget(tmp_path):
    (tmp_path / "a.parquet").write_bytes(nested_bytes({"x": [["int64"]]}, [{"x": [[]] * 200_000}]))
    dataset = penstock.open(tmp_path).fields(x=penstock.list(penstock.ragged("int64")))
    with pytest.raises(BudgetExceeded):
        list(penstock.Loader(dataset, batch_size=1, memory_bytes=1_500_000))
    (batch,) = penstock.Loader(dataset, batch_size=1)
    assert len(batch["x"].values.offsets) == 200_001


def test_damaged_nested_files_are_errors(tmp_path):
    rows = [{"x": [[[at, 2]], []], "s": [[b"ab"]]} for at in range(6)]
    good = nested_bytes({"x": [[["int64"]]], "s": [["text"]]}, rows, group=2)
    rng, file = np.random.default_rng(5), tmp_path / "a.parquet"
    fields = {"x": penstock.list(penstock.list(penstock.ragged("int64"))), "s": penstock.list(penstock.raw_list())}
    for _ in range(80):
        bent = bytearray(good)
        for at in rng.integers(0, len(good), 2):
            bent[at] = rng.integers(256)
        file.write_bytes(bent)
        with contextlib.suppress(Corrupt, Unsupported, BudgetExceeded, ConfigError):
            loaded(penstock.open(file), **fields)
    # A truncated file.
    file.write_bytes(good[: len(good) // 2])
    with pytest.raises(Corrupt, match="is not a Parquet file, or is truncated"):
        loaded(penstock.open(file), **fields)


def write(tmp_path, *payloads):
    (tmp_path / "a.tfrecord").write_bytes(b"".join(frame(payload) for payload in payloads))
    return penstock.open(tmp_path / "a.tfrecord")


def test_steps_of_a_sequence_have_any_number_of_values(tmp_path):
    ids, words = [[[0], [1, 1], []], [[2]]], [[[b"x", b"yz"], [b""]], []]
    records = [sequence_example({"n": [at]}, ids=ids[at], words=words[at]) for at in range(2)]
    dataset = write(tmp_path, *records, example(n=[2]))
    schema = dataset.schema()
    assert schema["ids"] == penstock.list(penstock.ragged("int64"))
    assert schema["words"] == penstock.list(penstock.raw_list())
    batch = loaded(dataset)
    assert batch["ids"].to_list() == [*ids, []]
    assert batch["words"] == [*words, []]
    assert batch["n"].tolist() == [0, 1, 2]
    # A context feature and a feature list may have the same name.
    both = write(tmp_path, sequence_example({"n": [7]}, n=[[1], [2, 3]]))
    batch = loaded(both)
    assert (batch["context/n"].tolist(), batch["feature_lists/n"].to_list()) == ([7], [[[1], [2, 3]]])
    with pytest.raises(Mismatch, match="is both in the context and in the feature lists"):
        loaded(both, n=penstock.ragged("int64"))


def test_steps_of_pairs_are_lists_of_items(tmp_path):
    dataset = write(tmp_path, sequence_example({}, points=[[1, 2, 3, 4], [], [5, 6]]))
    batch = loaded(dataset, points=penstock.list(penstock.ragged("int32", (2,))))
    assert batch["points"].to_list() == [[[[1, 2], [3, 4]], [], [[5, 6]]]]
    with pytest.raises(Mismatch, match=r"any number of int64 \[3\]"):
        loaded(dataset, points=penstock.list(penstock.ragged("int64", (3,))))


def test_boxes_in_lists_of_lists_follow_their_image(tmp_path):
    objects = [[{"bbox": [1, 2, 5, 6], "label": 7}, {"bbox": [0, 0, 12, 12], "label": 8}], []]
    rows = [{"image": png((1, 2, 3)), "objects": each} for each in objects]
    kinds = {"image": "bytes", "objects": [{"bbox": ["int64"], "label": "int64"}]}
    (tmp_path / "a.parquet").write_bytes(nested_bytes(kinds, rows))
    batch = loaded(
        penstock.open(tmp_path),
        image=penstock.image(24, crop="none"),
        boxes=penstock.boxes().of("objects.bbox").like("image"),
        label=penstock.ragged("int64").of("objects.label").like("boxes"),
    )
    assert batch["boxes"].to_list() == [[[2, 4, 10, 12], [0, 0, 24, 24]], []]
    assert batch["label"].to_list() == [[7, 8], []]

# SPDX-License-Identifier: Apache-2.0
"""Arrow IPC files and streams that pyarrow and Hugging Face's `datasets` wrote (tests/feed/arrow/make.py)."""

from __future__ import annotations

import contextlib
import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock.errors import BudgetExceeded, ConfigError, Corrupt, Mismatch, Unsupported

HERE = Path(__file__).parent / "arrow"
EXPECTED = json.loads((HERE / "expected.json").read_text())
LEFT_OUT = {"price": "decimal"}


def rows(column: Any) -> list[Any]:
    if isinstance(column, penstock.Ragged):
        return column.to_list()
    if isinstance(column, list):
        return [{"bytes": row.hex()} if isinstance(row, bytes) else row for row in column]
    return column.tolist()


def read(path: Path, **arguments: Any) -> dict[str, list[Any]]:
    dataset = penstock.open(path)
    found: dict[str, list[Any]] = {}
    for batch in penstock.Loader(dataset.fields(**arguments) if arguments else dataset, batch_size=3):
        for name, column in batch.items():
            found.setdefault(name, []).extend(rows(column))
    return found


def default_of(name: str, value: Any) -> Any:
    """What the default fields return for a value of the file."""
    if name in ("tags", "kinds"):
        return [text.encode() for text in value]
    if name == "number":
        return [] if value is None else [value]
    if name in ("maybe", "kind"):
        return value or ""
    return [] if value is None else value


@pytest.mark.parametrize("name", ["types.arrow", "stream.arrows", "lz4.feather", "zstd.arrow"])
def test_arrow_default_fields_return_what_pyarrow_wrote(name: str) -> None:
    dataset = penstock.open(HERE / name)
    assert (dataset.format, dataset.samples, dataset.rung) == ("arrow", 5, "format")
    left_out = dict(dataset.schema().left_out)
    for column, why in LEFT_OUT.items():
        assert why in left_out[column]
    assert "nothing" in left_out
    found = read(HERE / name)
    for column, values in EXPECTED.items():
        if column in left_out or (column == "view" and name == "lz4.feather"):
            continue
        if column in ("structs", "map"):
            for field, key in (("a", "a"), ("b", "b")) if column == "structs" else (("key", 0), ("value", 1)):
                items = [[item[key] for item in row] for row in values]
                want = [[each.encode() if isinstance(each, str) else each for each in row] for row in items]
                assert found[f"{column}.{field}"] == want
            continue
        if column == "image":
            assert found["image.bytes"] == [value["bytes"] for value in values]
            assert found["image.path"] == [value["path"] or "" for value in values]
            continue
        assert found[column] == [default_of(column, value) for value in values], column
    assert found["last"] == [0, 1, 2, 3, 4]


def test_arrow_types_are_those_of_the_schema() -> None:
    schema = penstock.open(HERE / "types.arrow").schema()
    for column, spec in {
        "u32": "uint32 []",
        "u64": "uint64 []",
        "f16": "float16 []",
        "flag": "bool []",
        "text": "text",
        "raw": "bytes",
        "ids": "ragged int32 []",
        "pair": "ragged int16 []",
        "tags": "list of bytes",
        "kind": "text, default ''",
        "number": "ragged int32 []",
        "deep": "list of list of int64 []",
        "structs.a": "ragged int64 []",
        "structs.b": "list of bytes",
        "map.key": "list of bytes",
        "day": "int32 []",
        "time": "int64 []",
    }.items():
        assert str(schema[column]) == spec, column


def test_arrow_nulls_take_the_default_or_are_refused() -> None:
    found = read(
        HERE / "types.arrow", number=penstock.tensor("int64", (), default=-1), maybe=penstock.text(default="-")
    )
    assert found == {"number": [1, -1, 3, -1, 5], "maybe": ["x", "-", "", "-", "y"]}
    with pytest.raises(Mismatch, match=r"record 1: field `number` expects int32.*a null"):
        read(HERE / "types.arrow", number=penstock.tensor("int32", ()))
    with pytest.raises(Unsupported, match="a decimal number"):
        read(HERE / "types.arrow", price=penstock.tensor("int64", ()))


LEAVES = {"int16": pa.int16(), "bool": pa.bool_(), "binary": pa.binary(), "large": pa.large_binary()}
TYPES = st.recursive(
    st.sampled_from([*LEAVES]),
    lambda types: st.one_of(
        st.tuples(st.sampled_from(["list", "large_list"]), types),
        st.tuples(st.integers(1, 3), types),
        st.dictionaries(st.sampled_from("ab"), types, min_size=1),
    ),
    max_leaves=4,
)


def arrow_type(kind):
    if isinstance(kind, dict):
        return pa.struct([(name, arrow_type(of)) for name, of in kind.items()])
    if isinstance(kind, str):
        return LEAVES[kind]
    outer, item = kind
    return {"list": pa.list_, "large_list": pa.large_list}.get(outer, lambda of: pa.list_(of, outer))(arrow_type(item))


def values_of(kind):
    if isinstance(kind, dict):
        return st.fixed_dictionaries({name: values_of(of) for name, of in kind.items()})
    if isinstance(kind, tuple):
        sizes = {"min_size": kind[0], "max_size": kind[0]} if isinstance(kind[0], int) else {"max_size": 3}
        return st.lists(values_of(kind[1]), **sizes)
    return {"int16": st.integers(-(2**15), 2**15 - 1), "bool": st.booleans()}.get(kind, st.binary(max_size=3))


def leaves_of(kind, value, name):
    """Values of each leaf by name: structs of a list are lists of their fields."""
    if isinstance(kind, dict):
        return {
            leaf: of for key in kind for leaf, of in leaves_of(kind[key], value and value[key], f"{name}.{key}").items()
        }
    if isinstance(kind, tuple):
        names = leaves_of(kind[1], None, name)
        each = [leaves_of(kind[1], item, name) for item in value or []]
        return {leaf: [item[leaf] for item in each] for leaf in names}
    return {name: value}


def specs_of(kind):
    """The field of each leaf by name, without the column's name."""
    if isinstance(kind, dict):
        return {f".{key}{leaf}": spec for key, of in kind.items() for leaf, spec in specs_of(of).items()}
    if isinstance(kind, tuple):
        return {leaf: penstock.list(spec) for leaf, spec in specs_of(kind[1]).items()}
    return {"": penstock.tensor(kind, ()) if kind in ("int16", "bool") else penstock.raw()}


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_prop_arrow_nested_columns_are_those_of_pyarrow(tmp_path_factory, data):
    kind = ("list", data.draw(TYPES))
    items = data.draw(st.lists(st.none() | values_of(kind), min_size=1, max_size=7))
    column = pa.array(items, arrow_type(kind))
    table = pa.table({"x": column, "after": range(len(items))})
    codec = data.draw(st.sampled_from([None, "zstd", "lz4"]))
    path = tmp_path_factory.mktemp("arrow") / "a.arrow"
    make = data.draw(st.sampled_from([pa.ipc.new_file, pa.ipc.new_stream]))
    with make(path, table.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as out:
        # A slice has offsets that do not begin at 0.
        out.write_table(table, max_chunksize=data.draw(st.integers(1, 7)))
    specs = {f"x{leaf}": spec for leaf, spec in specs_of(kind).items()}
    dataset = penstock.open(path).fields(**specs, after=penstock.tensor("int64", ()))
    (batch,) = penstock.Loader(dataset, batch_size=len(items))
    assert batch.pop("after").tolist() == list(range(len(items)))
    want = [leaves_of(kind, row, "x") for row in items]
    assert batch.keys() == want[0].keys()
    for name, found in batch.items():
        assert (found.to_list() if isinstance(found, penstock.Ragged) else found) == [row[name] for row in want], name


@pytest.mark.parametrize(
    ("column", "spec"),
    [
        (pa.array([[[1], None], [[2]], [[3, None]], None, [None], [[]]]), penstock.list(penstock.ragged("int64"))),
        (
            pa.array([[{"a": [1]}, None], [{"a": [2]}], [{"a": None}], None, [{"a": [None]}], [{"a": []}]]),
            penstock.list(penstock.ragged("int64")).of("x.a"),
        ),
    ],
)
def test_arrow_nulls_inside_nested_lists_cost_only_their_rows(tmp_path, column, spec):
    with pa.ipc.new_file(tmp_path / "a.arrow", pa.schema([("x", column.type)])) as out:
        out.write_table(pa.table({"x": column}))
    dataset = penstock.open(tmp_path).fields(x=spec)
    with pytest.raises(Mismatch, match=r"column `x.*` contains a null in a list"):
        list(penstock.Loader(dataset, batch_size=8))
    (batch,) = penstock.Loader(dataset, batch_size=8, on_error="skip")
    assert batch["x"].to_list() == [[[2]], [], [[]]]


def test_arrow_lists_of_a_fixed_length_are_counted_in_the_budget(tmp_path):
    # Lists of no items take no space in the file.
    empty = pa.Array.from_buffers(pa.list_(pa.int64(), 0), 10_000_000, [None], children=[pa.array([], "int64")])
    wide = pa.FixedSizeListArray.from_arrays(empty, 10_000_000)
    with pa.ipc.new_file(tmp_path / "a.arrow", pa.schema([("x", wide.type)])) as out:
        out.write_table(pa.table({"x": wide}))
    assert (tmp_path / "a.arrow").stat().st_size < 2000
    dataset = penstock.open(tmp_path).fields(x=penstock.list(penstock.ragged("int64")))
    with pytest.raises(BudgetExceeded, match="column `x`"):
        list(penstock.Loader(dataset, batch_size=1, memory_bytes=32 << 20))


def test_arrow_schema_is_read_from_the_footer_if_no_message_has_it(tmp_path):
    content = (HERE / "types.arrow").read_bytes()
    schema_end = 8 + 8 + int.from_bytes(content[12:16], "little")
    (tmp_path / "a.arrow").write_bytes(content[:8] + content[schema_end:])
    assert read(tmp_path) == read(HERE / "types.arrow")
    (tmp_path / "a.arrow").write_bytes(content[:8] + content[schema_end:-7] + b"\xff" + content[-6:])
    with pytest.raises(Corrupt, match="damaged Arrow IPC: it has no schema"):
        read(tmp_path, last=penstock.tensor("int64", ()))


@pytest.mark.parametrize("form", ["arrow", "parquet"])
def test_maps_have_keys_and_values_whatever_their_stored_names(tmp_path, form):
    entries = pa.struct(
        [pa.field("some_key", pa.string(), nullable=False), pa.field("some_value", pa.list_(pa.int32()))]
    )
    kind = pa.map_(entries[0], entries[1])
    table = pa.table({"x": [1, 2, 3], "m": pa.array([[("a", [1, 2]), ("b", [])], None, []], kind), "y": [4, 5, 6]})
    if form == "parquet":
        pa.parquet.write_table(table, tmp_path / "a.parquet")
    else:
        with pa.ipc.new_file(tmp_path / "a.arrow", table.schema) as out:
            out.write_table(table)
    assert read(tmp_path) == {
        "x": [1, 2, 3],
        "m.key": [[b"a", b"b"], [], []],
        "m.value": [[[1, 2], []], [], []],
        "y": [4, 5, 6],
    }
    if form == "parquet":
        stored = penstock.raw_list().of("m.key_value.key")
        assert read(tmp_path, keys=stored) == {"keys": [[b"a", b"b"], [], []]}


def test_arrow_rows_of_several_files_are_shuffled_and_resumed(tmp_path: Path) -> None:
    for number in range(4):
        shutil.copy(HERE / "types.arrow", tmp_path / f"{number}.arrow")
    dataset = penstock.open(tmp_path).fields(last=penstock.tensor("int64", ())).shuffle(2)
    loader = penstock.Loader(dataset, batch_size=3)
    whole = [row for batch in loader for row in batch["last"].tolist()]
    assert sorted(whole) == sorted([0, 1, 2, 3, 4] * 4)
    loader = penstock.Loader(dataset, batch_size=3)
    loader.load_state_dict({**loader.state_dict(), "cursor": 7})
    assert [row for batch in loader for row in batch["last"].tolist()] == whole[7:]


def test_save_to_disk_folder_is_read_without_a_warning_of_its_own_json_files(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = shutil.copytree(HERE / "saved", tmp_path / "train")
    assert {"state.json", "dataset_info.json"} <= {path.name for path in folder.iterdir()}
    penstock.open(folder)
    penstock.open(folder, format="arrow")
    assert "ignored" not in caplog.text
    (folder / "notes.md").write_text("x")
    penstock.open(folder)
    assert "1 objects are ignored" in caplog.text


def test_save_to_disk_folder_is_read_without_its_caches(tmp_path: Path) -> None:
    shutil.copytree(HERE / "saved", tmp_path / "train")
    shutil.copy(HERE / "types.arrow", tmp_path / "train/cache-0123.arrow")
    (batch,) = penstock.Loader(penstock.open(tmp_path / "train", format="arrow"), batch_size=3)
    found = {name: rows(column) for name, column in batch.items()}
    assert found == {"text": ["one", "zwei"], "input_ids": [[1, 2], [3]], "label": [0, 1]}
    shutil.copytree(HERE / "saved", tmp_path / "test")
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["test", "train"]}')
    with pytest.raises(ConfigError, match=r"contains several splits \(test, train\); open the folder of one split"):
        penstock.open(tmp_path)
    packed = penstock.open(tmp_path / "train", format="arrow").pack(3, fields="input_ids")
    (batch,) = penstock.Loader(packed, batch_size=1)
    assert batch["input_ids"].tolist() == [[1, 2, 3]]


def test_arrow_compressed_as_a_whole_and_without_a_name(tmp_path: Path) -> None:
    (tmp_path / "a.arrow.gz").write_bytes(gzip.compress((HERE / "types.arrow").read_bytes()))
    assert read(tmp_path, last=penstock.tensor("int64", ()))["last"] == [0, 1, 2, 3, 4]
    (tmp_path / "b").mkdir()
    (tmp_path / "b/part-0").write_bytes((HERE / "stream.arrows").read_bytes())
    assert penstock.open(tmp_path / "b").format == "arrow"
    (tmp_path / "b/part-1").touch()
    assert penstock.open(tmp_path / "b", format="arrow").samples == 5


@pytest.mark.parametrize("name", ["types.arrow", "stream.arrows"])
def test_arrow_truncated_file_is_corrupt(tmp_path: Path, name: str) -> None:
    content = (HERE / name).read_bytes()
    for cut in (7, 40, 3001, len(content) // 2 + 1):
        (tmp_path / "a.arrow").write_bytes(content[:cut])
        with pytest.raises(Corrupt, match=r"a\.arrow is damaged Arrow IPC|a\.arrow"):
            read(tmp_path, last=penstock.tensor("int64", ()))


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["types.arrow", "zstd.arrow", "stream.arrows"]),
    st.lists(st.tuples(st.integers(0), st.integers(0, 255)), min_size=1, max_size=4),
)
def test_arrow_damaged_file_is_read_or_refused(tmp_path_factory, name, changes):
    folder = tmp_path_factory.mktemp("arrow")
    content = bytearray((HERE / name).read_bytes())
    for at, value in changes:
        content[at % len(content)] = value
    (folder / "a.arrow").write_bytes(content)
    fields = {column: penstock.text(errors="ignore", default="") for column in ("text", "view", "kind", "maybe")}
    fields |= {"deep": penstock.list(penstock.ragged("int64")), "key": penstock.raw_list().of("map.key")}
    # Every other error, and the end of the process, fails the test.
    with contextlib.suppress(BudgetExceeded, ConfigError, Corrupt, Mismatch, Unsupported):
        read(folder, ids=penstock.ragged("int32"), tags=penstock.raw_list(), **fields)


@pytest.mark.parametrize("rows", [34, 50 ^ 1 << 32, 0])
def test_arrow_batch_whose_columns_have_another_number_of_rows_is_corrupt(tmp_path, rows):
    out = pa.BufferOutputStream()
    table = pa.table({"a": list(range(50))})
    with pa.ipc.new_file(out, table.schema) as writer:
        writer.write_table(table)
    content = bytearray(out.getvalue())
    at = content.index((50).to_bytes(8, "little"))  # RecordBatch.length comes before the lengths of its columns
    content[at : at + 8] = rows.to_bytes(8, "little")
    (tmp_path / "a.arrow").write_bytes(content)
    with pytest.raises(Corrupt, match=r"a batch states|a record batch is not readable"):
        read(tmp_path)

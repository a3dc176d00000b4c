# SPDX-License-Identifier: Apache-2.0
"""Arrow IPC files and streams that pyarrow and Hugging Face's `datasets` wrote (tests/feed/arrow/make.py)."""

from __future__ import annotations

import contextlib
import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock.errors import BudgetExceeded, ConfigError, Corrupt, Mismatch, Unsupported

HERE = Path(__file__).parent / "arrow"
EXPECTED = json.loads((HERE / "expected.json").read_text())
LEFT_OUT = {
    "deep": "list of structs or lists",
    "structs": "list of structs or lists",
    "map": "a map",
    "price": "decimal",
}


def rows(column: Any) -> list[Any]:
    if isinstance(column, penstock.Ragged):
        return [row.tolist() for row in np.split(column.values, column.offsets[1:-1])]
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
    with pytest.raises(ConfigError, match=r"contains several splits \(test, train\); open one of their folders"):
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
    # Every other error, and the end of the process, fails the test.
    with contextlib.suppress(BudgetExceeded, ConfigError, Corrupt, Mismatch, Unsupported):
        read(folder, ids=penstock.ragged("int32"), tags=penstock.raw_list(), **fields)

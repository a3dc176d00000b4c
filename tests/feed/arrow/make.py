# SPDX-License-Identifier: Apache-2.0
"""Writes the Arrow files of this folder with pyarrow and `datasets`, and their values as JSON.

uv run --no-project --with pyarrow --with datasets python tests/feed/arrow/make.py
"""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.feather as feather

import datasets

HERE = Path(__file__).parent
ROWS = 5


def table() -> pa.Table:
    columns: dict[str, pa.Array] = {}
    for bits in (8, 16, 32, 64):
        columns[f"i{bits}"] = pa.array([-(2 ** (bits - 1)), 2 ** (bits - 1) - 1, 0, 1, -1], f"int{bits}")
        columns[f"u{bits}"] = pa.array([0, 2**bits - 1, 1, 2, 3], f"uint{bits}")
    columns["f16"] = pa.array([0.5, -1, 2, 0, 65504], pa.float16())
    columns["f32"] = pa.array([0.5, -1, 2, 0, 2**-20], "float32")
    columns["f64"] = pa.array([0.5, -1, 2, 0, 2**-60], "float64")
    columns["flag"] = pa.array([True, False, True, True, False])
    columns["text"] = pa.array(["", "é", "three", "a longer text than twelve bytes", "😀"])
    columns["large"] = columns["text"].cast(pa.large_string())
    columns["view"] = columns["text"].cast(pa.string_view())
    columns["after_view"] = columns["text"]
    columns["maybe"] = pa.array(["x", None, "", None, "y"])
    columns["number"] = pa.array([1, None, 3, None, 5], "int32")
    columns["raw"] = pa.array([b"\0\xff", b"", b"a", b"b", b"c"])
    columns["fixed"] = pa.array([b"ab", b"cd", b"ef", b"gh", b"ij"], pa.binary(2))
    columns["ids"] = pa.array([[1, 2, 3], [], None, [4], [5, 6]], pa.list_(pa.int32()))
    columns["wide"] = pa.array([[1.5], [], [2.5, 3.5], [], [4.5]], pa.large_list(pa.float64()))
    columns["pair"] = pa.array([[1, 2], [3, 4], [5, 6], [7, 8], [9, 10]], pa.list_(pa.int16(), 2))
    columns["flags"] = pa.array([[True], [], [False, True], [], [True]], pa.list_(pa.bool_()))
    columns["tags"] = pa.array([["a", "é"], [], [""], ["b"], ["c"]])
    columns["image"] = pa.array([{"bytes": b"jpg%d" % n, "path": None if n == 1 else f"{n}.jpg"} for n in range(ROWS)])
    columns["kind"] = pa.array(["cat", "dog", "cat", None, "dog"]).dictionary_encode()
    columns["kinds"] = pa.array([["x"], ["y", "x"], [], ["y"], []]).cast(
        pa.list_(pa.dictionary(pa.int32(), pa.string()))
    )
    columns["day"] = pa.array([date(2026, 1, n + 1) for n in range(ROWS)])
    columns["time"] = pa.array([datetime(2026, 1, 1, n, tzinfo=UTC) for n in range(ROWS)], pa.timestamp("us", "UTC"))
    columns["deep"] = pa.array([[[1]], [], [[2], [3]], [], []])
    columns["structs"] = pa.array([[{"a": 1, "b": "x"}], [], [], [], []])
    columns["map"] = pa.array([[("k", 1)], [], [], [], []], pa.map_(pa.string(), pa.int64()))
    columns["price"] = pa.array([1, 2, 3, 4, 5]).cast(pa.decimal128(22, 2))
    columns["nothing"] = pa.nulls(ROWS)
    columns["last"] = pa.array(range(ROWS), "int64")
    return pa.table(columns)


def expected(column: pa.ChunkedArray) -> list[object]:
    rows = column.to_pylist()
    if pa.types.is_date(column.type) or pa.types.is_timestamp(column.type):
        rows = column.cast(pa.int32() if pa.types.is_date(column.type) else pa.int64()).to_pylist()
    return json.loads(
        json.dumps(rows, default=lambda value: {"bytes": value.hex()} if isinstance(value, bytes) else None)
    )


def main() -> None:
    made = table()
    with pa.ipc.new_file(HERE / "types.arrow", made.schema) as out:
        out.write_table(made, max_chunksize=2)
    with pa.ipc.new_stream(HERE / "stream.arrows", made.schema) as out:
        out.write_table(made, max_chunksize=2)
    # Older readers of Feather do not have views.
    feather.write_feather(made.drop_columns(["view"]), HERE / "lz4.feather", compression="lz4")
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_file(HERE / "zstd.arrow", made.schema, options=options) as out:
        out.write_table(made, max_chunksize=3)
    (HERE / "expected.json").write_text(json.dumps({name: expected(made[name]) for name in made.column_names}) + "\n")
    rows = {"text": ["one", "zwei"], "input_ids": [[1, 2], [3]], "label": [0, 1]}
    features = datasets.Features(
        text=datasets.Value("string"),
        input_ids=datasets.Sequence(datasets.Value("int32")),
        label=datasets.ClassLabel(names=["a", "b"]),
    )
    saved = datasets.Dataset.from_dict(rows, features=features)
    saved.save_to_disk(str(HERE / "saved"), num_shards=2)
    for path in [HERE / "saved/state.json", HERE / "saved/dataset_info.json"]:
        path.write_text(path.read_text().rstrip() + "\n")


if __name__ == "__main__":
    main()

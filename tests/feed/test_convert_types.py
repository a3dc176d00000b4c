# SPDX-License-Identifier: Apache-2.0
"""Tests types of columns that only some records or files show, through a conversion to Parquet."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.errors import Unsupported
from penstock.writer import convert, plan_conversion


def test_convert_keeps_lists_of_json_lines_whose_first_value_is_one_number(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"x": 3, "y": 1}\n{"y": 2}\n{"x": [4, 5], "y": 3}\n')
    convert(tmp_path / "a.jsonl", tmp_path / "out", format="parquet")
    assert pq.read_table(tmp_path / "out").to_pydict() == {"x": [[3], None, [4, 5]], "y": [1, 2, 3]}


def test_convert_refuses_times_that_only_a_later_object_has_in_a_column(tmp_path):
    source = tmp_path / "d"
    source.mkdir()
    pq.write_table(pa.table({"t": [1, 2]}), source / "a.parquet")
    pq.write_table(pa.table({"t": pa.array([1, 2], pa.timestamp("us"))}), source / "b.parquet")
    with pytest.raises(Unsupported, match=r"`t` is int64 in a\.parquet, but timestamp\[us\] in b\.parquet"):
        convert(source, tmp_path / "out", format="parquet")


def test_convert_keeps_lists_of_views_of_text_and_leaves_out_intervals(tmp_path):
    source = tmp_path / "d"
    source.mkdir()
    views = pa.array([["a", "b"], []], pa.list_(pa.string_view()))
    intervals = pa.array([pa.MonthDayNano([1, 2, 3])] * 2)
    for name, table in (("a", {"x": views}), ("b", {"x": views, "i": intervals})):
        table = pa.table(table)
        with pa.ipc.new_file(source / f"{name}.arrow", table.schema) as out:
            out.write_table(table)
    plan = plan_conversion(source, "parquet")
    assert [name for name, _ in plan.left_out] == ["i"]
    convert(plan, tmp_path / "out", format="parquet")
    found = pq.read_table(tmp_path / "out")
    assert found.schema.field("x").type == pa.list_(pa.field("element", pa.string()))
    assert found["x"].to_pylist() == [["a", "b"], []] * 2

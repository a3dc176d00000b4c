# SPDX-License-Identifier: Apache-2.0
"""Tests how `penstock peek` compares the columns of objects that differ in types, nulls, folders or damage."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest


@pytest.fixture
def peek(tmp_path, run_cli):
    """`peek(table, table)` writes one Parquet file per table, and returns the text and the comparison of `peek`."""

    def write(*tables, names=None):
        for name, table in zip(names or [f"{at}.parquet" for at in range(len(tables))], tables, strict=True):
            path = tmp_path / "data" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(table, bytes):
                path.write_bytes(table)
            else:
                pq.write_table(pa.table(table), path)
        folder = str(tmp_path / "data")
        found = json.loads(run_cli("peek", folder, "--json").out)
        return run_cli("peek", folder).out, found["columns_compared"]

    return write


def objects(compared):
    return {each["name"]: each["objects"] for each in compared["differing"]}


@pytest.mark.parametrize(
    ("full", "kind"),
    [
        (pa.array([1, 2], pa.int8()), "int8 []"),
        (pa.array(["x", "y"]), "text"),
        (pa.array([[1], [2]]), "ragged int64 []"),
        (pa.array([1, 2], pa.timestamp("ms")), "timestamp[ms]"),
    ],
)
def test_peek_difference_in_nulls_is_not_one_in_types(peek, full, kind):
    sparse = pa.array([full[0].as_py(), None], full.type)
    text, compared = peek({"a": full}, {"a": sparse}, {"a": full})
    (found,) = compared["differing"]
    assert found == {"name": "a", "objects": {kind: 3}, "nulls": 1, "first_other": "1.parquet"}
    assert f"a  {kind} in 3, nulls in 1 (first other: 1.parquet)" in text


def test_peek_same_nulls_in_all_objects_are_no_difference(peek):
    text, compared = peek({"a": [1, None]}, {"a": [None, 2]})
    assert compared["differing"] == []
    assert "fields (the same in all 2 objects compared)" in text


def test_peek_compares_units_of_times_and_text_with_bytes(peek):
    text, compared = peek(
        {"t": pa.array([1], pa.timestamp("ms")), "s": ["a"], "n": pa.array([1], pa.time64("us"))},
        {"t": pa.array([1], pa.timestamp("us")), "s": [b"a"], "n": pa.array([1], pa.int64())},
    )
    assert objects(compared) == {
        "t": {"timestamp[ms]": 1, "timestamp[us]": 1},
        "s": {"text": 1, "bytes": 1},
        "n": {"time[us]": 1, "int64 []": 1},
    }
    assert "write these objects again with one unit" in text


def test_peek_column_and_object_of_nulls_are_named_as_such(peek):
    nulls = pa.array([None], pa.int32())
    text, compared = peek({"a": [1], "b": [1]}, {"a": nulls, "b": [1]}, {"a": nulls, "b": nulls})
    assert objects(compared) == {"a": {"int64 []": 1, "only nulls": 1}}
    assert (compared["only_nulls"], compared["unreadable"]) == (["2.parquet"], [])
    assert "2.parquet  only nulls in it" in text
    assert "differences between objects (3 of 3 compared)" in text


def test_peek_heading_counts_only_the_objects_that_were_read(peek):
    text, compared = peek({"a": [1]}, b"damaged" * 9, {"a": [1]}, b"", b"")
    assert "fields (the same in 2 of 4 objects compared)" in text
    assert "differences between objects (4 of 5 compared)" in text
    assert "3.parquet  cannot be read: it has 0 bytes (the first of 2 such objects)" in text
    assert {each["object"] for each in compared["unreadable"]} == {"1.parquet", "3.parquet"}


@pytest.mark.parametrize("own", [0, 1])
def test_peek_own_column_replaces_the_partition_of_its_folder(peek, own):
    tables = [{"a": [1]}, {"a": [1]}]
    tables[own]["year"] = [1.5]
    _, compared = peek(*tables, names=["year=1/0.parquet", "year=2/0.parquet"])
    assert objects(compared) == {"year": {"int64 []": 1, "float64 []": 1}}


def test_peek_shows_the_dataset_of_records_that_differ_in_shape(tmp_path, run_cli):
    for at in range(3):
        np.savez(tmp_path / f"{at}.npz", x=np.zeros(at + 2))
    done = run_cli("peek", str(tmp_path), "-n", "3")
    assert done.code == 0
    assert "3 objects of npz" in done.out
    assert "records cannot be shown:" in done.out
    facts = json.loads(run_cli("peek", str(tmp_path), "-n", "3", "--json").out)
    assert facts["first_records"] == []
    assert "field `x` expects float64 [2]" in facts["records_error"]
    assert json.loads(run_cli("peek", str(tmp_path), "--json").out)["records_error"] is None


def test_peek_in_a_process_of_a_job_shows_the_first_record(tmp_path, run_cli):
    pq.write_table(pa.table({"a": [7, 8]}), tmp_path / "a.parquet")
    done = run_cli("peek", str(tmp_path), "--json", env={"RANK": "0", "WORLD_SIZE": "2"})
    assert json.loads(done.out)["first_records"] == [{"a": "7 (int64)"}]

# SPDX-License-Identifier: Apache-2.0
"""Tests `penstock peek`: its facts, the little that it reads, and that the printed code runs."""

from __future__ import annotations

import ast
import io
import json
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr

import penstock
from penstock.cli import peek_columns


@pytest.fixture
def tars(tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "d"
    folder.mkdir()
    for shard in range(3):
        with tarfile.open(folder / f"{shard}.tar", "w") as archive:
            for number in range(4 + shard):
                for name, data in (("cls", str(number).encode()), ("txt", b"caption %d" % number)):
                    info = tarfile.TarInfo(f"{shard}-{number}.{name}")
                    info.size = len(data)
                    archive.addfile(info, io.BytesIO(data))
    (folder / "notes.md").write_text("hello")
    return folder


def test_peek_shows_facts_records_cost_and_code(tars, run_cli, emulator):
    server = emulator(folder=tars)
    done = run_cli("peek", server.url, "-n", "2", "--json", env=server.env)
    assert done.code == 0, done.err
    facts = json.loads(done.out)
    assert (facts["format"], facts["objects"], facts["records"], facts["ignored"]) == ("tar", 3, None, 1)
    assert "a scan" in facts["counts"]
    assert {each["name"] for each in facts["fields"]} == {"cls", "txt", "__key__"}
    assert [record["cls"].split()[0] for record in facts["first_records"]] == ["0", "1"]
    assert facts["first_records"][1]["txt"] == "'caption 1'"
    assert facts["epoch_cost"]["without_cache"]["requests_usd"] > 0
    text = run_cli("peek", server.url, env=server.env).out
    assert "records  not known yet: counted by a scan" in text
    assert text.splitlines()[-3:] == facts["python"]


def test_peek_cost_of_the_first_epoch_includes_the_scan(tars, run_cli, emulator):
    server = emulator(folder=tars)
    facts = json.loads(run_cli("peek", server.url, "--json", env=server.env).out)
    assert facts["first_epoch_max_reads"] == 3
    assert "up to 3 times this" in facts["epoch_cost_note"]
    assert run_cli("index", server.url, "--records", env=server.env).code == 0
    facts = json.loads(run_cli("peek", server.url, "--json", env=server.env).out)
    assert (facts["first_epoch_max_reads"], facts["epoch_cost_note"], facts["records"]) == (1, None, 15)


def test_peek_cost_says_why_there_is_none(tars, run_cli):
    facts = json.loads(run_cli("peek", str(tars), "--json").out)
    assert (facts["epoch_cost"], facts["epoch_cost_note"]) == (None, "none: reads of local files are not billed")


@pytest.mark.parametrize(("wanted", "shown"), [(1, 1), (50, 4)])
def test_peek_reads_one_object(tars, run_cli, emulator, wanted, shown):
    for name in ("1.tar", "2.tar"):
        (tars / name).write_bytes(b"damaged" * 1000)
    server = emulator(folder=tars)
    before = server.stats()["gets"]
    done = run_cli("peek", server.url, "-n", str(wanted), "--json", env=server.env)
    assert (done.code, len(json.loads(done.out)["first_records"])) == (0, shown)
    assert "are read once" not in done.err
    assert server.stats()["gets"] - before <= 4
    assert not (tars.parent / "cache/records").exists() or not list((tars.parent / "cache/records").iterdir())


def test_peek_names_a_damaged_object(tmp_path, run_cli):
    good = (Path(__file__).parent.parent / "feed/arrow/types.arrow").read_bytes()
    (tmp_path / "a.arrow").write_bytes(good)
    (tmp_path / "b.arrow").write_bytes(good[: len(good) // 2])
    facts = json.loads(run_cli("peek", str(tmp_path), "-n", "9", "--json").out)
    assert (facts["records"], len(facts["first_records"])) == (None, 5)
    (unreadable,) = facts["columns_compared"]["unreadable"]
    assert unreadable["object"] == "b.arrow"
    assert "damaged" in unreadable["reason"]
    (tmp_path / "b.arrow").unlink()
    assert json.loads(run_cli("peek", str(tmp_path), "--json").out)["records"] == 5


@pytest.fixture
def evolved(tmp_path):
    """JSON lines whose last file has another column, and whose second file has another type."""
    folder = tmp_path / "evolved"
    folder.mkdir()
    for at, line in enumerate(({"id": 1, "pairs": [[1, 2]]}, {"id": 1.5, "pairs": [[3, 4]]}, {"id": 2, "score": 0.5})):
        (folder / f"{at}.jsonl").write_text(json.dumps({"text": "x" * 100, **line}) + "\n")
    return folder


def test_peek_compares_the_columns_of_objects(evolved, run_cli):
    facts = json.loads(run_cli("peek", str(evolved), "--json").out)
    assert facts["columns_compared"] == {
        "objects": 3,
        "differing": [
            {"name": "id", "objects": {"int64 []": 2, "float64 []": 1}, "nulls": 0, "first_other": "1.jsonl"},
            {"name": "pairs", "objects": {"ragged int64 [2]": 2, "missing": 1}, "nulls": 0, "first_other": "2.jsonl"},
            {"name": "score", "objects": {"missing": 2, "float64 []": 1}, "nulls": 0, "first_other": "2.jsonl"},
        ],
        "only_nulls": [],
        "unreadable": [],
        "too_large": 0,
    }
    text = run_cli("peek", str(evolved), env={"COLUMNS": "80"}).out
    assert "differences between objects (3 of 3 compared)\n" in text
    assert "    id     int64 [] in 2, float64 [] in 1 (first other: 1.jsonl)\n" in text
    assert max(map(len, text.splitlines()[1:-3])) <= 80
    for name in ("1.jsonl", "2.jsonl"):
        shutil.copy(evolved / "0.jsonl", evolved / name)
    assert "fields (the same in all 3 objects compared)\n" in run_cli("peek", str(evolved)).out


def test_peek_compares_few_objects_and_prefers_the_last(tmp_path, monkeypatch):
    for at in range(20):
        (tmp_path / f"{at:02d}.csv").write_text(f"id\n{at}\n" if at < 19 else "id,late\n1,2\n")
    dataset = penstock.open(tmp_path)
    assert peek_columns.compare(dataset)["objects"] == 8
    monkeypatch.setattr(peek_columns, "_MAX_BYTES", dataset.source.object_bytes(19))
    found = peek_columns.compare(dataset)
    assert (found["objects"], [each["name"] for each in found["differing"]]) == (2, ["late"])
    monkeypatch.setattr(peek_columns, "_MAX_BYTES", 1)
    found = peek_columns.compare(dataset)
    assert (found["objects"], found["too_large"]) == (1, 7)


@pytest.fixture
def table(tmp_path):
    """A Parquet file of two rows."""
    pq.write_table(pa.table({"x": [1.0, 2.0]}), tmp_path / "table.parquet")
    return tmp_path / "table.parquet"


@pytest.mark.parametrize(
    ("folders", "year", "missing"),
    [(("", "year=2024"), "missing", 1), (("year=2023", "z"), "2023", 1), (("year=2023", "year=x%20y"), "2023", 0)],
)
def test_peek_of_hive_partitions_that_differ(table, run_cli, tmp_path, folders, year, missing):
    for folder in folders:
        (tmp_path / "hive" / folder).mkdir(parents=True, exist_ok=True)
        shutil.copy(table, tmp_path / "hive" / folder / "a.parquet")
    facts = json.loads(run_cli("peek", str(tmp_path / "hive"), "--json").out)
    assert (facts["records"], facts["first_records"]) == (4, [{"x": "1.0 (float64)", "year": year}])
    differing = facts["columns_compared"]["differing"]
    assert [(each["name"], each["objects"]["missing"]) for each in differing] == [("year", 1)] * missing


def test_peek_shows_the_first_row_behind_an_empty_table(table, run_cli, tmp_path):
    (tmp_path / "data").mkdir()
    pq.write_table(pa.table({"x": pa.array([], pa.float64())}), tmp_path / "data" / "a.parquet")
    shutil.copy(table, tmp_path / "data" / "b.parquet")
    facts = json.loads(run_cli("peek", str(tmp_path / "data"), "--json").out)
    assert (facts["records"], facts["first_records"]) == (2, [{"x": "1.0 (float64)"}])


def test_peek_shows_the_items_of_lists_and_arrays(run_cli, tmp_path):
    rows = pa.table({"tokens": pa.array([range(40), [1]], pa.list_(pa.int32())), "boxes": [[[1, 2], [3]], []]})
    pq.write_table(rows, tmp_path / "a.parquet")
    (record,) = json.loads(run_cli("peek", str(tmp_path), "--json").out)["first_records"]
    assert record["boxes"] == "[[1, 2], [3]]"
    assert record["tokens"] == "int32 [40]: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14…"


def test_peek_shows_the_first_object_that_is_not_empty(tars, run_cli):
    (tars / "0.tar").write_bytes(b"")
    facts = json.loads(run_cli("peek", str(tars), "-n", "1", "--json").out)
    assert [record["txt"] for record in facts["first_records"]] == ["'caption 0'"]


def test_peek_code_runs_as_printed(tars, run_cli, tmp_path):
    np.save(tmp_path / "a.npy", np.arange(6, dtype="float32").reshape(3, 2))
    (tmp_path / "ragged.jsonl").write_text('{"tokens": [1]}\n{"tokens": []}\n{"tokens": [2, 3]}\n')
    (tmp_path / "many.csv").write_text("id\n" + "1\n" * 40)
    for url, batches in (
        (str(tars), 1),
        (f"{tmp_path}/*.npy", 1),
        (f"{tmp_path}/*.jsonl", 1),
        (f"{tmp_path}/*.csv", 2),
    ):
        facts = json.loads(run_cli("peek", url, "--json").out)
        done = subprocess.run(
            [sys.executable, "-c", "\n".join(facts["python"])], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        printed = [ast.literal_eval(line.removeprefix("dict_keys(")[:-1]) for line in done.stdout.splitlines()]
        assert printed == [[each["name"] for each in facts["fields"]]] * batches
        assert (len(facts["python"]), len(facts["python"][2])) == (3, 73)


def test_peek_names_the_object_and_the_kind_of_bytes(run_cli, tmp_path):
    rows = {"text": ["a\n" * 40], "cut": ["x" * 59 + "é"], "picture": [b"\xff\xd8\xff\xe0" * 5], "zeros": [bytes(9)]}
    pq.write_table(pa.table(rows), tmp_path / "a.parquet")
    facts = json.loads(run_cli("peek", str(tmp_path), "--json").out)
    assert facts["first_object"] == "a.parquet"
    assert facts["first_records"] == [
        {"text": repr("a\n" * 30) + "…", "cut": repr("x" * 59) + "…", "picture": "JPEG, 20 bytes", "zeros": "9 bytes"}
    ]
    assert run_cli("peek", str(tmp_path)).out.startswith(f"file://{tmp_path}/a.parquet: 1 object of parquet, ")


def test_peek_prints_ignored_objects_once_and_plainly(run_cli, tmp_path):
    np.save(tmp_path / "0.npy", np.arange(3))
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("x")
    done = run_cli("peek", str(tmp_path))
    assert (done.err, "  ignored  2 objects of other formats" in done.out) == ("", True)


def test_peek_spells_names_that_a_terminal_would_not_show(call_cli, tmp_path):
    pq.write_table(pa.table({"": [1], "a\x1b[31m": [2]}), tmp_path / "a.parquet")
    out = call_cli("peek", str(tmp_path)).out
    assert "    ''           int64 []\n    'a\\x1b[31m'  int64 []\n" in out


def test_peek_of_a_volume_names_the_array_command(run_cli, tmp_path):
    zarr.create_array(str(tmp_path / "v.zarr"), data=np.zeros((4, 2)))
    done = run_cli("peek", str(tmp_path / "v.zarr"))
    assert (done.code, "run penstock array info URL for their axes and chunks" in done.out) == (0, True)


def test_peek_of_nothing_or_an_unknown_format_is_an_error(tmp_path, run_cli):
    assert run_cli("peek", str(tmp_path / "none")).code == 3
    (tmp_path / "x.bin").write_bytes(b"\x00" * 100)
    assert "hint: set --format NAME, such as --format megatron" in run_cli("peek", str(tmp_path / "x.bin")).err
    named = run_cli("peek", str(tmp_path), "--format", "nonsense")
    assert (named.code, "hint: give formats with arguments in Python" in named.err) == (2, True)
    (tmp_path / "x.sgy").write_bytes(bytes(4000))
    volume = run_cli("peek", str(tmp_path / "x.sgy"))
    assert (volume.code, "hint: describe a volume with penstock array info FILE" in volume.err) == (3, True)


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_peek_shows_numbers_that_are_times_as_times(tmp_path, run_cli, form):
    table = pa.table(
        {
            "at": pa.array([1_700_000_000_123_456], pa.timestamp("us", "UTC")),
            "local": pa.array([1_700_000_000_123], pa.timestamp("ms")),
            "day": pa.array([19_675], pa.date32()),
            "clock": pa.array([3_600_000], pa.time32("ms")),
            "n": [7],
        }
    )
    if form == "parquet":
        pq.write_table(table, tmp_path / "a.parquet")
    else:
        table = table.append_column("took", pa.array([90], pa.duration("s")))
        with pa.ipc.new_file(tmp_path / "a.arrow", table.schema) as out:
            out.write_table(table)
    text = run_cli("peek", str(tmp_path)).out
    assert "timestamp[us, UTC], " in text
    for value in (
        "1700000000123456 (int64; 2023-11-14T22:13:20.123456)",
        "1700000000123 (int64; 2023-11-14T22:13:20.123)",
        "19675 (int32; 2023-11-14)",
        "3600000 (int32; 3600000 milliseconds)",
        "7 (int64)",
        *(["90 (int64; 90 seconds)"] if form == "arrow" else []),
    ):
        assert value in text

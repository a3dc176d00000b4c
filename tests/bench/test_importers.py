# SPDX-License-Identifier: Apache-2.0
"""Tests importers of other tools' results: fio 3.33 JSON; IOR 4.1.0+dev table, JSON and CSV; mdtest's summary."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.bench.importers import fio, ior
from penstock.bench.importers.elbencho import render
from penstock.bench.importers.read_any import read_any
from penstock.bench.rows import read_results, write_results
from penstock.bench.verdict import classify
from penstock.errors import Corrupt, NotFound, PenstockError
from tests.bench.sweeps import MIB, Storage, make

GOLDEN = Path(__file__).parent / "golden"
GROUPED = (GOLDEN / "fio-grouped.json").read_text()
MIXED = (GOLDEN / "fio-mixed-each-job.json").read_text()
IOR_JSON = (GOLDEN / "ior.json").read_text()
IOR_CSV = (GOLDEN / "ior.csv").read_text()

IOR = """IOR-4.0.0: MPI Coordinated Test of Parallel I/O
Began               : Tue Apr 29 14:12:28 2025
Command line        : ior -w -r -t 1m -b 16m -s 4 -F -e --posix.odirect -i 2

Options:
api                 : POSIX
access              : file-per-process
segments            : 4
ordering in a file  : sequential
nodes               : 2
tasks               : 16
clients per node    : 8
repetitions         : 2
xfersize            : 1 MiB
blocksize           : 16 MiB
aggregate filesize  : 1 GiB

Results:

access    bw(MiB/s)  IOPS       Latency(s)  block(KiB) xfer(KiB)  open(s)    wr/rd(s)   close(s)   total(s)   iter
------    ---------  ----       ----------  ---------- ---------  --------   --------   --------   --------   ----
write     512.00     513.10     0.031000    16384      1024.00    0.001105   1.99       0.000144   2.00       0
Verifying contents of the file(s) just written.
read      1024.00    1030.00    0.015000    16384      1024.00    0.000195   0.99       0.000210   1.00       0
remove    -          -          -           -          -          -          -          -          0.0011     0
write     500.00     501.00     0.032000    16384      1024.00    0.001105   2.04       0.000144   2.048      1
Max Write: 512.00 MiB/sec (536.87 MB/sec)

Summary of all tests:
Operation   Max(MiB)   Min(MiB)  Mean(MiB)
write         512.00     500.00     506.00
"""
IOR_SHARED = """IOR-3.2.1: MPI Coordinated Test of Parallel I/O
Options:
access              : single-shared-file
tasks               : 4
clients per node    : 4
segments            : 1

access    bw(MiB/s)  block(KiB) xfer(KiB)  open(s)    wr/rd(s)   close(s)   total(s) iter
------    ---------  ---------- ---------  --------   --------   --------   -------- ----
read      2000.00    1024.00    256.00     0.000002   0.000077   0.000001   0.002    0
"""
MDTEST = """-- started at 04/29/2021 23:28:11 --

mdtest-3.4.0+dev was launched with 10 total task(s) on 2 node(s)
Command line used: mdtest '-a' 'POSIX' '-n' '3334' '-w' '4k' '-d' '/mnt/pool'
10 tasks, 33340 files

SUMMARY rate: (of 3 iterations)
   Operation                      Max            Min           Mean        Std Dev
   ---------                      ---            ---           ----        -------
   File creation             :       3000.000       2900.000       2950.000          0.006
   File stat                         9000.000       9000.000       9000.000          0.000
   File read                 :       5000.000       5000.000       5000.000          0.000
   File removal              :          0.000          0.000          0.000          0.000
   Tree creation             :       1079.858       1079.858       1079.858          0.000
-- finished at 04/29/2021 23:28:22 --
"""


def test_fio_group_is_one_row_of_all_its_jobs():
    (row,) = fio.parse(GROUPED, "a.json")
    assert (row.operation, row.threads, row.io_depth, row.block_size_bytes) == ("READ", 4, 1, 4096)
    assert (row.file_size_bytes, row.random, row.direct, row.source) == (16 * MIB, True, False, "fio-3.33")
    result = json.loads(GROUPED)["jobs"][0]["read"]
    assert (row.last.ios, row.last.bytes_per_s) == (result["total_ios"], result["bw_bytes"])
    assert row.io_latency.percentiles_us["99"] == result["clat_ns"]["percentile"]["99.000000"] / 1000


def test_fio_jobs_listed_one_by_one_are_summed_and_a_mix_has_two_rows():
    write, read = fio.parse("fio: a warning\n" + MIXED, "a.json")
    jobs = json.loads(MIXED)["jobs"]
    assert (write.operation, read.operation, write.threads) == ("WRITE", "RWMIX", 2)
    assert write.last.ios == sum(job["write"]["total_ios"] for job in jobs)
    assert read.last.bytes_per_s == sum(job["read"]["bw_bytes"] for job in jobs)
    assert write.io_latency.percentiles_us == {}  # percentiles of two jobs cannot be merged
    _, line = render([write, read]).splitlines()  # elbencho's line holds both, and its name gives the share of reads
    share = round(100 * read.last.ios_per_s / (read.last.ios_per_s + write.last.ios_per_s))
    assert f",RWMIX{share}," in line


def test_fio_job_that_failed_is_invalid():
    document = json.loads(GROUPED)
    document["jobs"][0]["error"] = 5
    (row,) = fio.parse(json.dumps(document), "a.json")
    assert row.invalid == ("fio ended with error 5",)


def test_ior_each_iteration_is_a_row():
    rows = ior.parse_ior(IOR, "out.txt")
    assert [(r.operation, r.repeat) for r in rows] == [("WRITE", 0), ("READ", 0), ("WRITE", 1)]
    row = rows[0]
    assert (row.hosts, row.threads, row.path_type, row.direct, row.source) == (2, 8, "dir", True, "IOR-4.0.0")
    assert (row.file_size_bytes, row.block_size_bytes, row.last.bytes_per_s) == (64 * MIB, MIB, 512 * MIB)
    assert (row.last.time_s, row.last.entries, row.io_latency.mean_us) == (2.0, 16, pytest.approx(31_000))


def test_ior_older_table_with_fewer_columns_is_read():
    (row,) = ior.parse_ior(IOR_SHARED, "out.txt")
    assert (row.path_type, row.file_size_bytes, row.hosts, row.threads) == ("file", 4 * MIB, 1, 4)
    assert row.last.ios_per_s is None


def test_ior_json_of_the_real_tool_is_a_row_for_each_operation_of_each_iteration():
    rows = ior.parse_ior_json("WARNING: a warning\n" + IOR_JSON, "ior.json")
    assert [(r.operation, r.repeat) for r in rows] == [("WRITE", 0), ("READ", 0), ("WRITE", 1), ("READ", 1)]
    results = json.loads(IOR_JSON)["tests"][0]["Results"]
    assert [r.last.bytes_per_s for r in rows] == [each["bwMiB"] * MIB for each in results]
    assert [r.last.ios_per_s for r in rows] == [each["iops"] for each in results]
    row = rows[0]
    assert (row.hosts, row.threads, row.path_type, row.source) == (1, 2, "dir", "IOR-4.1.0+dev")
    assert (row.file_size_bytes, row.block_size_bytes, row.random) == (16 * MIB, 65536, False)
    assert row.raw["command"].startswith("ior -a POSIX -F")
    # In IOR 3, results are in a nested list for each iteration. A very short run has the time 0.0000.
    document = json.loads(IOR_JSON)
    results[0]["totalTime"] = 0.0
    document["tests"][0]["Results"] = [results[:2], results[2:]]
    nested = ior.parse_ior_json(json.dumps(document), "ior.json")
    assert [r.repeat for r in nested] == [0, 0, 1, 1]
    assert nested[0].last.bytes == pytest.approx(32 * MIB)


def test_ior_csv_of_the_real_tool_is_a_row_for_each_line():
    rows = ior.parse_ior_csv(IOR_CSV, "ior.csv")
    assert [(r.operation, r.repeat) for r in rows] == [("WRITE", 0), ("READ", 0), ("WRITE", 1), ("READ", 1)]
    rates = [float(line.split(",")[1]) * MIB for line in IOR_CSV.splitlines()[1:]]
    assert [r.last.bytes_per_s for r in rows] == rates
    assert (rows[0].threads, rows[0].block_size_bytes, rows[0].file_size_bytes) == (2, 65536, None)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (IOR_JSON[:3000], "not valid IOR JSON output"),
        (IOR_JSON.replace('"Results"', '"Other"'), "test 0: `Results` must be a list of JSON objects"),
        (IOR_JSON.replace('"Options"', '"Other"'), "test 0: `Options` is missing"),
        (IOR_CSV.replace(",2,0", ",2"), "line 2: 11 columns, but the header has 12"),
    ],
)
def test_ior_json_and_csv_that_are_damaged_are_refused_with_the_place(tmp_path, text, problem):
    (tmp_path / "out").write_text(text)
    with pytest.raises(Corrupt, match=problem):
        read_any(tmp_path / "out")


def test_mdtest_mean_rates_of_what_was_run():
    rows = ior.parse_mdtest(MDTEST, "out.txt")
    assert [(r.operation, r.last.entries_per_s) for r in rows] == [("WRITE", 2950), ("STAT", 9000), ("READ", 5000)]
    assert (rows[0].file_size_bytes, rows[0].files, rows[0].hosts, rows[0].threads) == (4096, 3334, 2, 5)
    # Without -e, mdtest's read phase only opens files, so the row has size 0.
    assert (rows[2].file_size_bytes, classify(rows).cells[2].bytes_per_s) == (0, 0)


MDTEST_OF_RANKS = """mdtest-4.1.0+dev was launched with 8 total task(s) on 1 node(s)
Command line used: mdtest '-n' '100' '--show-perrank-stats' '-d' '/mnt/pool'
8 tasks, 800 files

SUMMARY rate (in ops/sec): (of 2 iterations)
   Operation     per Rank: Max            Min           Mean      per Iteration: Max            Min           Mean        Std Dev
   ---------               ---            ---           ----                     ---            ---           ----        -------
   File creation           510.000        400.000        450.000       3600.000       3400.000       3500.000        100.000
   File stat               900.000        800.000        850.000       7000.000       6600.000       6800.000        200.000

SUMMARY time (in ms/op): (of 2 iterations)
   Operation                     Max            Min           Mean        Std Dev
   ---------                     ---            ---           ----        -------
   File creation                  2.500          1.900          2.200          0.100
   File stat                      1.300          1.100          1.200          0.100
"""


def test_mdtest_rates_of_iterations_are_read_not_those_of_ranks_nor_times():
    rows = ior.parse_mdtest(MDTEST_OF_RANKS, "out.txt")
    assert [(r.operation, r.last.entries_per_s) for r in rows] == [("WRITE", 3500), ("STAT", 6800)]


def test_folder_of_all_tools_is_one_set_of_rows(tmp_path):
    sweep = make(Storage("slowest", 1e-3, 1e9, 5e3, 4e9), [1, 8], [MIB]).rows
    (tmp_path / "old").mkdir()
    for name, text in (
        ("a.json", GROUPED),
        ("b.out", IOR),
        ("c.out", MDTEST),
        ("d.csv", render(sweep)),
        ("e.json", IOR_JSON),
        ("f.csv", IOR_CSV),
        ("notes", "x"),
    ):
        (tmp_path / "old" / name).write_text(text)
    write_results(tmp_path / "old" / "ours", sweep, spec={})
    found = read_any(tmp_path).rows
    assert len(found) == 1 + 3 + 3 + 2 + 4 + 4 + 2
    assert {r.source.partition("-")[0].partition(" ")[0] for r in found} == {"fio", "IOR", "mdtest", "elbencho", ""}


def test_folder_with_data_beside_the_results_reads_their_beginnings_alone(tmp_path):
    with (tmp_path / "shard.tfrecord").open("wb") as sparse:
        sparse.truncate(1 << 40)  # reading it whole would exhaust this test's memory
    (tmp_path / "a.json").write_text(GROUPED)
    assert len(read_any(tmp_path).rows) == 1


def test_mdtest_killed_before_summary_is_reported():
    with pytest.raises(Corrupt, match="the summary of rates is missing"):
        ior.parse_mdtest(MDTEST.partition("SUMMARY")[0], "out.txt")


def test_report_folder_without_results_is_reported(tmp_path):
    (tmp_path / "notes").write_text("x")
    with pytest.raises(NotFound, match="contains no known results"):
        read_any(tmp_path)


def test_rows_survive_the_disk(tmp_path):
    rows = make(Storage("slowest", 1e-3, 1e9, 5e3, 4e9), [1, 8], [MIB]).rows
    spec = {"threads": [1, 8], "size": "1 MiB", "a.b": {"deep": 'quo"te', "none": None}, "random": False}
    write_results(tmp_path, rows, spec=spec)
    back = read_results(tmp_path)
    assert [r.last for r in back.rows] == [r.last for r in rows]
    assert len({r.spec_hash for r in back.rows} - {""}) == 1
    del spec["a.b"]["none"]
    assert back.spec == spec
    assert sorted(p.name for p in tmp_path.iterdir()) == ["rows.jsonl", "spec.toml"]


def test_rows_of_version_1_keep_their_errors_and_losses(tmp_path):
    """Rows written before issue 14 used the field names `statuses` and `loss_s`."""
    row = {"schema_version": 1, "operation": "READ", "last": {"time_s": 1.0, "bytes": 1}}
    row |= {"statuses": {"503": 2}, "loss_s": {"transfer": 0.5}}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    (read,) = read_results(tmp_path).rows
    assert (read.errors_by_class, read.lost_s_by_cause) == ({"503": 2}, {"transfer": 0.5})


@pytest.mark.parametrize(
    ("text", "output"),
    [
        ("{}", "line 1 is not a valid row"),
        ('{"schema_version": 99}', "schema version 99"),
        ("not json", "line 1 is not a valid row"),
    ],
)
def test_rows_broken_are_told_with_their_line(tmp_path, text, output):
    (tmp_path / "rows.jsonl").write_text(text + "\n")
    with pytest.raises(Corrupt, match=output):
        read_results(tmp_path)


_JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=10),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["jobs", "read", "job options", "x"]), inner)
    ),
    max_leaves=12,
)


@settings(deadline=None)
@given(st.text(max_size=300), _JSON, st.integers(0, 60), st.text(max_size=12))
def test_prop_parsers_hostile_input_ends_in_rows_or_one_error(text, document, line, junk):
    ior_lines, mdtest_lines = IOR.splitlines(), MDTEST.splitlines()
    ior_lines[line % len(ior_lines)] = junk
    mdtest_lines[line % len(mdtest_lines)] = junk
    job = json.dumps({"fio version": "x", "jobs": [document]})
    for parse, given_text in (
        (fio.parse, text),
        (fio.parse, job),
        (fio.parse, json.dumps(document)),
        (ior.parse_ior, text),
        (ior.parse_ior, "\n".join(ior_lines)),
        (ior.parse_ior_json, json.dumps({"tests": document})),
        (
            ior.parse_ior_json,
            json.dumps({"tests": [{"Options": {}, "Results": [{"access": "read", "bwMiB": junk}, document]}]}),
        ),
        (ior.parse_ior_csv, IOR_CSV.replace("64.0000", junk)),
        (ior.parse_ior, IOR.replace("16384", junk.replace("\n", ""))),
        (ior.parse_mdtest, text),
        (ior.parse_mdtest, "\n".join(mdtest_lines)),
    ):
        try:
            classify(parse(given_text, "x"))
        except PenstockError:
            continue

# SPDX-License-Identifier: Apache-2.0
"""Tests the formats of OSU and nccl-tests: our output byte for byte, and the parsers of theirs. Issue 16, point 4.

The samples are written for these tests in the published formats; their figures are invented.
"""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.bench.net.nccl_format import (
    NcclHalf,
    NcclRow,
    bus_factor,
    nccl_footer,
    nccl_header,
    nccl_line,
    parse_nccl,
)
from penstock.bench.net.osu_format import OsuRow, osu_header, osu_line, parse_osu
from penstock.bench.net.plan import OSU_NAMES
from penstock.errors import Corrupt

_POINT_TO_POINT = ("latency", "bw", "bibw")


def test_osu_latency_has_the_bytes_of_version_5_3():
    text = osu_header("latency") + osu_line("latency", OsuRow(size_bytes=4194304, value=349.456))
    assert text == (
        "# OSU MPI Latency Test v5.3\n"
        "# Size            Latency (us)\n"
        "4194304                 349.46\n"
    )  # fmt: skip


def test_osu_bandwidth_has_the_bytes_of_version_5_3():
    text = osu_header("bibw") + osu_line("bibw", OsuRow(size_bytes=1, value=0.5))
    assert text == (
        "# OSU MPI Bi-Directional Bandwidth Test v5.3\n"
        "# Size        Bandwidth (MB/s)\n"
        "1                         0.50\n"
    )  # fmt: skip


def test_osu_collective_full_format_has_the_bytes_of_version_5_3():
    row = OsuRow(size_bytes=1048576, value=343.59, min_us=337.37, max_us=349.81, iterations=100)
    assert osu_header("allreduce", full=True) + osu_line("allreduce", row, full=True) == (
        "\n# OSU MPI Allreduce Latency Test v5.3\n"
        "# Size         Avg Latency(us)     Min Latency(us)     Max Latency(us)  Iterations\n"
        "1048576                 343.59              337.37              349.81         100\n"
    )


def test_osu_barrier_has_one_column():
    assert osu_header("barrier") + osu_line("barrier", OsuRow(size_bytes=0, value=0.55)) == (
        "\n# OSU MPI Barrier Latency Test v5.3\n# Avg Latency(us)\n             0.55\n"
    )


@pytest.mark.parametrize("full", [False, True])
def test_parser_reads_barrier_which_has_no_size(full):
    row = OsuRow(size_bytes=0, value=0.55, min_us=0.5, max_us=0.6, iterations=100)
    [table] = parse_osu(osu_header("barrier", full=full) + osu_line("barrier", row, full=full))
    assert (table.operation, table.rows[0].value, table.rows[0].max_us) == ("barrier", 0.55, 0.6 if full else None)


def test_osu_header_names_device_buffers():
    assert osu_header("latency", on_device=True).splitlines()[:2] == [
        "# OSU MPI-CUDA Latency Test v5.3",
        "# Send Buffer on DEVICE (D) and Receive Buffer on DEVICE (D)",
    ]


def test_osu_comment_names_what_wrote_the_table_and_is_ignored_by_the_parser():
    text = osu_header("bcast", comment="Penstock 1.0, Gloo, 2 ranks") + osu_line("bcast", OsuRow(size_bytes=1, value=1))
    assert text.splitlines()[1:3] == ["# OSU MPI Broadcast Latency Test v5.3", "# Penstock 1.0, Gloo, 2 ranks"]
    assert [row.value for row in parse_osu(text)[0].rows] == [1.0]


def test_parser_reads_version_7_with_validation_and_noise_of_mpirun():
    text = """
Warning: Permanently added 'n2' to the list of known hosts.
# OSU MPI Allreduce Latency Test v7.4
# Datatype: MPI_INT.
# Size       Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations        Validation
4                       2.10              2.05              2.15        1000              Pass
8                       2.20              2.11              2.29        1000              Fail
"""
    [table] = parse_osu(text)
    assert (table.operation, table.version, table.unit) == ("allreduce", "7.4", "us")
    assert [row.validation for row in table.rows] == ["Pass", "Fail"]
    assert (table.rows[1].size_bytes, table.rows[1].value, table.rows[1].max_us) == (8, 2.20, 2.29)


def test_parser_keeps_columns_that_it_does_not_know():
    text = "# OSU MPI Latency Test v7.4\n# Size       Avg Latency(us)    P50 Tail Lat(us)\n1    1.50    1.25\n"
    assert parse_osu(text)[0].rows[0].extra == {"P50 Tail Lat(us)": 1.25}


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "contains no table"),
        ("This test requires exactly two processes\n", "contains no table"),
        ("# OSU MPI Latency Test v5.3\n# Size            Latency (us)\n1   2.0   3.0\n", "3 values for 2 columns"),
        ("# OSU MPI Latency Test v5.3\n# Size            Latency (us)\n1   fast\n", "not a row of numbers"),
        ("# OSU MPI Latency Test v5.3\n# Size            Speed\n1   2.0\n", "no column"),
        ("# OSU MPI Latency Test v5.3\n# Size            Latency (us)\n1   nan\n", "not a row of numbers"),
    ],
)
def test_parser_refuses_what_is_no_osu_table(text, part):
    with pytest.raises(Corrupt, match=part):
        parse_osu(text)


_US = st.floats(0, 1e9).map(lambda value: round(value, 2))
_ROWS = st.lists(
    st.builds(OsuRow, size_bytes=st.integers(0, 1 << 31), value=_US, min_us=_US, max_us=_US, iterations=st.integers(1, 10**6)),
    min_size=1,
    max_size=6,
)  # fmt: skip


@given(st.sampled_from([name for name in OSU_NAMES if name != "barrier"]), _ROWS)
def test_prop_osu_parser_reads_what_the_writer_writes(operation, rows):
    text = osu_header(operation, full=True) + "".join(osu_line(operation, row, full=True) for row in rows)
    [table] = parse_osu(text)
    assert table.operation == operation
    kept = rows if operation not in _POINT_TO_POINT else [OsuRow(size_bytes=r.size_bytes, value=r.value) for r in rows]
    assert list(table.rows) == kept


@given(st.text(alphabet=st.sampled_from("#OSUMPIvLatency Test(us)SizeBandwidthMB/s 0123456789.-\n"), max_size=300))
def test_prop_osu_parser_raises_only_corrupt(text):
    with suppress(Corrupt):
        parse_osu("# OSU MPI Latency Test v5.3\n# Size            Latency (us)\n" + text)


# ------------------------------------------------------------ nccl-tests

_SAMPLE = """\
# nccl-tests version 2.17.1 nccl-headers=22800 nccl-library=22800
# Collective test starting: all_gather_perf
# nThread 1 nGpus 2 minBytes 1048576 maxBytes 4194304 step: 2(factor) warmup iters: 1 iters: 20 agg iters: 1 validation: 1 graph: 0 unalign: 0
#
# Using devices
#  Rank  0 Group  0 Pid  41000 on     node-a device  0 [0000:07:00] NVIDIA H100
#  Rank  1 Group  0 Pid  41000 on     node-a device  1 [0000:0b:00] NVIDIA H100
#
#                                                              out-of-place                       in-place          
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong 
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)         
     1048576        131072     float    none      -1    20.00   52.43   26.21       0    19.50   53.77   26.89       0
     4194304        524288     float    none      -1    40.00  104.86   52.43       0    39.00  107.55   53.77    N/A
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 39.825 
#
# Collective test concluded: all_gather_perf
"""  # noqa: W291 - nccl-tests' own trailing blanks


def test_nccl_parser_reads_rows_and_footer():
    table = parse_nccl(_SAMPLE)
    assert (table.program, table.avg_busbw, table.out_of_bounds) == ("all_gather_perf", 39.825, 0)
    assert table.rows[0] == NcclRow(
        size_bytes=1048576, count=131072, out_of_place=NcclHalf(20.0, 52.43, 26.21, 0), in_place=NcclHalf(19.5, 53.77, 26.89, 0)
    )  # fmt: skip
    assert table.rows[1].in_place.wrong is None


def test_nccl_writer_writes_the_columns_of_the_sample():
    lines = _SAMPLE.splitlines(keepends=True)
    header = nccl_header("allgather", low=1048576, high=4194304, warm_up=1, iterations=20, validates=True)
    assert header.splitlines(keepends=True)[-3:] == lines[8:11]
    table = parse_nccl(_SAMPLE)
    assert "".join(nccl_line(row) for row in table.rows) == "".join(lines[11:13])
    assert nccl_footer("allgather", list(table.rows)) == "".join(lines[13:])


def test_nccl_writer_shrinks_numbers_to_their_width():
    half = NcclHalf(1234567.891, 1234.567, 0.123, 0)
    assert nccl_line(NcclRow(size_bytes=8, count=2, out_of_place=half)).split()[5:8] == ["1234568", "1234.6", "0.12"]


def test_nccl_row_without_out_of_place_keeps_its_column_blank():
    row = NcclRow(size_bytes=8, count=2, in_place=NcclHalf(1.0, 2.0, 3.0, 0))
    [found] = parse_nccl(nccl_line(row)).rows
    assert found == row


@pytest.mark.parametrize(
    ("operation", "world", "factor"),
    [("allreduce", 4, 1.5), ("allgather", 4, 0.75), ("reduce-scatter", 2, 0.5), ("alltoall", 8, 0.875), ("bcast", 4, 1), ("sendrecv", 4, 1)],
)  # fmt: skip
def test_bus_factor_is_the_published_one(operation, world, factor):
    assert bus_factor(operation, world) == factor


@pytest.mark.parametrize("text", ["", "all_reduce_perf: Test NCCL failure\n", "   8    2   float   sum    -1   1.0\n", "  8  2  float  sum  -1  a b c 0\n", "  8  2  float  sum  -1  1 nan 1 0\n", "  8  2  float  sum  -1  1 1 1 inf\n"])  # fmt: skip
def test_nccl_parser_refuses_what_has_no_rows(text):
    with pytest.raises(Corrupt, match="nccl-tests"):
        parse_nccl(text)


_HALF = st.builds(
    NcclHalf,
    time_us=st.floats(0, 9999).map(lambda v: round(v, 2)),
    algbw=st.floats(0, 999).map(lambda v: round(v, 2)),
    busbw=st.floats(0, 999).map(lambda v: round(v, 2)),
    wrong=st.none() | st.integers(0, 99999),
)
_NCCL_ROWS = st.lists(
    st.builds(NcclRow, size_bytes=st.integers(4, 10**11), count=st.integers(1, 10**11), redop=st.sampled_from(["sum", "none"]), root=st.sampled_from([-1, 0]), out_of_place=st.none() | _HALF, in_place=_HALF),
    min_size=1,
    max_size=5,
)  # fmt: skip


@given(_NCCL_ROWS)
def test_prop_nccl_parser_reads_what_the_writer_writes(rows):
    header = nccl_header("alltoall", low=4, high=8, warm_up=1, iterations=20, validates=True)
    text = header + "".join(nccl_line(row) for row in rows) + nccl_footer("alltoall", rows)
    assert list(parse_nccl(text).rows) == rows

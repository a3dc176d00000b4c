# SPDX-License-Identifier: Apache-2.0
"""Tests the page and the heat maps of a network benchmark. Their figures are invented."""

from __future__ import annotations

import msgspec
import pytest
from click.testing import CliRunner

from penstock.bench.net.nccl_format import NcclHalf, NcclRow
from penstock.bench.net.osu_format import OsuRow
from penstock.bench.net.place import Place
from penstock.bench.net.plan import NetPlan
from penstock.bench.net.result import NetResult, NetTable, Pair, read_result
from penstock.cli.bench.net_table import topology_lines
from penstock.cli.report import command
from penstock.errors import Corrupt
from penstock.report import pair_chart

_PLACES = [Place(rank=rank, host=f"h{rank}", node=f"h{rank}", local_rank=0) for rank in range(4)]
_OSU = NetTable("latency", "osu_latency", "us", [OsuRow(size_bytes=1 << n, value=2 + 2**n / 1e3) for n in range(20)])
_NCCL = NetTable(
    "bcast", "broadcast_perf", "GB/s", [NcclRow(size_bytes=64, count=16, out_of_place=NcclHalf(5.25, 1, 2))]
)
_PAIRS = [
    Pair(a=a, b=b, round=turn, latency_us=50.0 if (a, b) == (1, 3) else 10.0, a_to_b=1e9, b_to_a=1e9)
    for turn in range(3) for a in range(4) for b in range(a + 1, 4)
]  # fmt: skip


def saved(folder, convention, tables, pairs=()):
    result = NetResult(
        plan=NetPlan(convention=convention), places=_PLACES, library="Open MPI", tables=tables, pairs=list(pairs)
    )
    (folder / "net.json").write_bytes(msgspec.json.encode({"schema_version": 2, **msgspec.to_builtins(result)}))
    return result


@pytest.mark.parametrize(("convention", "tables"), [("osu", [_OSU]), ("nccl", [_NCCL])])
def test_saved_result_is_read_again(convention, tables, tmp_path):
    result = saved(tmp_path, convention, tables, _PAIRS)
    assert read_result(tmp_path / "net.json") == result


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"plan": {"convention": "abc"}}', '{"plan": {}, "library": 1}'])
def test_file_that_is_not_a_result_is_refused(text, tmp_path):
    (tmp_path / "net.json").write_text(text)
    with pytest.raises(Corrupt, match="not a result of `penstock bench net`"):
        read_result(tmp_path / "net.json")


def test_report_shows_the_verdict_the_table_and_the_slow_pair(tmp_path):
    saved(tmp_path, "osu", [_OSU], _PAIRS)
    done = CliRunner().invoke(command, [str(tmp_path)])
    assert done.exit_code == 0, done.output
    text = (tmp_path / "report.html").read_text()
    assert "osu_latency: 2.00 µs" in text
    assert "slow pair: ranks 1 and 3, between nodes (h1 and h3): latency 50.00 µs" in text
    assert '<td class="n">524,288</td><td class="n">526.29</td>' in text


def test_report_of_nccl_tests_has_both_bandwidths(tmp_path):
    saved(tmp_path, "nccl", [_NCCL])
    CliRunner().invoke(command, [str(tmp_path)], catch_exceptions=False)
    assert (
        '<td class="n">5.25</td><td class="n">1.00</td><td class="n">2.00</td>'
        in (tmp_path / "report.html").read_text()
    )


def test_topology_has_one_line_for_ranks_with_equal_cores():
    cores = [(0, 1), (0, 1), (2,)]
    places = [
        Place(rank=rank, host="a", node="a", local_rank=rank, cores=each, sockets=(0,))
        for rank, each in enumerate(cores)
    ]
    assert topology_lines(places)[1:] == ["  ranks 0-1: cores 0-1, socket 0", "  rank 2: cores 2, socket 0"]


@pytest.mark.parametrize("is_rate", [False, True])
def test_heat_map_is_dark_where_it_is_slow_and_has_a_key(is_rate):
    cells = [{"x": "0", "y": "1", "value": value, "text": "", "slow": False} for value in (1.0, 3.0)]
    chart = pair_chart._map(cells, ["0", "1"], "Rate (MB/s)", "blues", is_rate=is_rate)
    assert "Rate (MB/s); darker is slower" in chart.to_json()
    color = chart.to_dict()["layer"][0]["encoding"]["color"]
    # The colour scheme is dark at high values, so that of rates is reversed.
    assert color["scale"] == {"scheme": "blues", "reverse": is_rate}
    assert color["legend"]["orient"] == "bottom"

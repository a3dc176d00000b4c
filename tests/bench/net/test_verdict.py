# SPDX-License-Identifier: Apache-2.0
"""Tests the fit and the verdict on networks whose limits are known. Issue 16, point 4."""

from __future__ import annotations

import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.bench.net.fit import fit_line
from penstock.bench.net.osu_format import OsuRow
from penstock.bench.net.place import Place, Relation, read_place, relation
from penstock.bench.net.plan import NetPlan
from penstock.bench.net.result import NetResult, NetTable, Pair
from penstock.bench.net.verdict import judge, wire_rate
from penstock.errors import ConfigError
from penstock.ranks import Rank

_SIZES = [1 << n for n in range(23)]


@given(st.floats(1e-7, 1e-2), st.floats(1e6, 1e11), st.integers(0, 1000))
def test_prop_fit_finds_a_line_under_noise_of_one_per_cent(alpha, beta, seed):
    noise = random.Random(seed)
    times = [(alpha + size / beta) * noise.uniform(0.99, 1.01) for size in _SIZES]
    fit = fit_line(_SIZES, times)
    # A part of the time that is never larger than the noise cannot be found.
    if alpha > _SIZES[0] / beta * 10:
        assert fit.alpha_s == pytest.approx(alpha, rel=0.03)
    if _SIZES[-1] / beta > alpha * 10:
        assert fit.beta_bytes_per_s == pytest.approx(beta, rel=0.03)
    assert fit.alpha_s_95[0] <= fit.alpha_s <= fit.alpha_s_95[1]


def test_fit_of_a_constant_time_has_no_bandwidth():
    fit = fit_line([1, 2, 4, 8], [1e-6, 1e-6, 1e-6, 0.99e-6])
    assert fit.beta_bytes_per_s is None
    assert fit.half_bytes is None


@pytest.mark.parametrize(("sizes", "times"), [([1, 2], [1, 1]), ([1, 1, 1], [1, 1, 1]), ([1, 2, 3], [1, 0, 1])])
def test_fit_refuses_what_is_not_a_line(sizes, times):
    with pytest.raises(ConfigError, match="fit"):
        fit_line(sizes, times)


def place(rank, host, *, sockets=(0,), cores=(0, 1), **more):
    return Place(rank=rank, host=host, node=host, local_rank=0, sockets=sockets, cores=cores, **more)


def matrix(places, rate, latency_us=lambda a, b: 10.0, rounds=3):
    pairs = [
        Pair(a=a, b=b, round=turn, latency_us=latency_us(a, b), a_to_b=rate(a, b), b_to_a=rate(b, a))
        for turn in range(rounds)
        for a in range(len(places))
        for b in range(a + 1, len(places))
    ]
    return NetResult(plan=NetPlan(matrix=True), places=places, pairs=pairs)


def kinds(result):
    return [finding.kind for finding in judge(result).findings]


def test_relation_of_ranks_is_by_host_and_socket():
    assert relation(place(0, "a"), place(1, "b")) == Relation.NODES
    assert relation(place(0, "a"), place(1, "a")) == Relation.SOCKET
    assert relation(place(0, "a"), place(1, "a", sockets=(1,))) == Relation.NODE
    assert relation(place(0, "a", sockets=(0, 1)), place(1, "a")) == Relation.UNBOUND


def test_place_of_this_process_has_its_cores():
    found = read_place(Rank(), "n0")
    assert found.cores
    assert found.node == "n0"


def test_equal_pairs_have_no_fault():
    places = [place(rank, f"h{rank}") for rank in range(4)]
    assert kinds(matrix(places, lambda a, b: 1e9 * (1 + 0.02 * (a + b)))) == []


@pytest.mark.parametrize("count", [3, 4, 8])
def test_slow_node_is_named_with_the_direction(count):
    places = [place(rank, f"h{rank}") for rank in range(count)]
    result = matrix(places, lambda a, b: 3e8 if a == 2 else 1e9)
    [finding] = judge(result).findings
    assert (finding.kind, finding.hosts, finding.ranks) == ("slow-node", ("h2",), (2,))
    assert "from this node" in finding.text
    assert "to this node" not in finding.text


def test_slow_pair_is_named_if_its_hosts_are_fast_with_others():
    places = [place(rank, f"h{rank}") for rank in range(4)]
    result = matrix(places, lambda a, b: 1e9, lambda a, b: 31.8 if {a, b} == {1, 3} else 10)
    [finding] = judge(result).findings
    assert (finding.kind, finding.ranks) == ("slow-pair", (1, 3))
    assert "latency 31.80 µs, 3.18 times" in finding.text


def test_slow_node_is_named_in_spite_of_noisy_latencies():
    noise = random.Random(3)
    places = [place(rank, f"h{rank}") for rank in range(3)]
    result = matrix(places, lambda a, b: 3e8 if a == 2 else 1e9, lambda a, b: noise.uniform(200, 900))
    [finding] = judge(result).findings
    assert (finding.kind, finding.hosts) == ("slow-node", ("h2",))


def test_pair_that_differs_by_13_per_cent_is_named_if_rounds_agree():
    """The difference between two pairs of GPUs in STUDIES E: 3.18 against 2.82 us."""
    places = [place(rank, "a", cores=(rank,)) for rank in range(4)]
    result = matrix(places, lambda a, b: 1e10, lambda a, b: 3.18 if (a, b) == (1, 2) else 2.82)
    [finding] = judge(result).findings
    assert (finding.kind, finding.ranks) == ("slow-pair", (1, 2))


def test_pair_that_is_slow_in_one_round_only_is_no_fault():
    places = [place(rank, f"h{rank}") for rank in range(3)]
    result = matrix(places, lambda a, b: 1e9)
    result.pairs[0] = Pair(a=0, b=1, round=0, latency_us=900, a_to_b=1e7, b_to_a=1e7)
    assert kinds(result) == []


def test_pairs_are_compared_only_with_pairs_of_their_relation():
    places = [place(0, "a"), place(1, "a"), place(2, "b"), place(3, "b")]
    result = matrix(places, lambda a, b: 1e10 if a // 2 == b // 2 else 1e9)
    assert kinds(result) == []


def test_single_pair_has_nothing_to_be_compared_with():
    assert kinds(matrix([place(0, "a"), place(1, "b")], lambda a, b: 1e9)) == ["note"]


def test_ranks_bound_to_one_core_are_wrong_affinity():
    places = [place(0, "a", cores=(3,)), place(1, "a", cores=(3,)), place(2, "b", cores=(3,))]
    found = [each for each in judge(matrix(places, lambda a, b: 1e9)).findings if each.kind == "wrong-affinity"]
    assert "ranks 0, 1 are all bound to core 3 of a" in found[0].text
    assert all(each.hosts == ("a",) for each in found)


def test_ranks_of_a_host_with_one_core_share_1_core():
    places = [place(rank, "a", cores=(0,)) for rank in range(2)]
    assert "2 ranks share 1 core of a," in judge(matrix(places, lambda a, b: 1e9)).findings[1].text


def test_more_ranks_than_cores_are_wrong_affinity():
    places = [place(rank, "a") for rank in range(3)]
    assert "3 ranks share 2 cores of a" in judge(matrix(places, lambda a, b: 1e9)).findings[0].text


@pytest.mark.parametrize(
    ("more", "device"),
    [
        ({"gpu": "0000:41:00.0", "gpus": {"0000:41:00.0": 1}}, "GPU 0000:41:00.0"),
        ({"nics": {"ib0": {"mbit_per_s": 200_000, "mtu": 4092, "numa": 1}}}, "network interface ib0"),
    ],
)
def test_rank_far_from_its_device_is_wrong_affinity(more, device):
    far, near = place(0, "a", numa=(0,), **more), place(1, "b", numa=(1,), **more)
    [finding, _] = judge(matrix([far, near], lambda a, b: 1e9)).findings
    assert finding.kind == "wrong-affinity"
    assert f"rank 0 on a runs on NUMA node 0, but its {device} is at NUMA node 1" in finding.text


def osu_result(operation, rows, mtu=1500):
    nic = {"e0": {"mbit_per_s": None, "mtu": mtu, "numa": None}}
    places = [place(0, "a", nics=nic), place(1, "b", nics=nic)]
    plan = NetPlan(operations=(operation,))
    table = NetTable(operation, f"osu_{operation}", plan.unit(operation), rows)
    return NetResult(plan=plan, places=places, tables=[table])


def test_bandwidth_of_a_stream_is_found_in_spite_of_slow_small_messages():
    alpha, beta = 50e-6, 119.55e6
    rows = [OsuRow(size_bytes=s, value=s / (alpha + s / beta) / 1e6 * (0.4 if s < 4096 else 1)) for s in _SIZES]
    verdict = judge(osu_result("bw", rows))
    assert verdict.fits["osu_bw"].beta_bytes_per_s == pytest.approx(beta, rel=0.001)
    assert verdict.findings[0].kind == "bandwidth-bound"
    assert "1 Gbit/s on the wire" in verdict.findings[0].text


def test_wire_rate_adds_the_headers_that_tc_counts():
    assert wire_rate(119.55e6, 1500) == pytest.approx(125e6, rel=0.001)
    assert wire_rate(1e6, None) is None


def test_rate_that_a_program_rounds_to_zero_is_a_row():
    result = osu_result("bw", [OsuRow(size_bytes=1, value=0.0)])
    [row] = result.rows()
    assert (row.last.bytes_per_s, row.last.time_s) == (0.0, 0.0)


def test_latency_verdict_says_where_it_changes():
    rows = [OsuRow(size_bytes=size, value=(2e-6 + size / 1e9) * 1e6) for size in _SIZES]
    [finding] = judge(osu_result("latency", rows)).findings
    assert finding.kind == "bandwidth-bound"
    assert "latency-bound below 1.95 KiB, bandwidth-bound above" in finding.text


_NOISE_OF_4_RANKS = [(4, 3000), (8, 900), (16, 2500), (32, 200), (64, 4000)]


@pytest.mark.parametrize(
    ("operation", "rows"),
    [
        ("latency", [(0, 0.70), (1, 0.72), (2, 0.69), (4, 0.71)]),  # an upper limit of the bandwidth is unknown
        ("latency", [(0, 1.0), (1, 1.1), (2, 1.2), (4, 1.4), (8, 1.8)]),  # an exact line, but no size shows it
        ("allgather", [(1, 1.10), (2, 1.12), (4, 1.15), (8, 1.0), (16, 1.37), (32, 1.9), (64, 2.24)]),
        ("allreduce", _NOISE_OF_4_RANKS),  # the line goes through the origin
        ("bcast", [(size, 1000 + 80 * size) for size in (4, 8, 16, 32, 64)]),  # a busy machine became slower
    ],
)
def test_small_messages_show_no_bandwidth(operation, rows):
    verdict = judge(osu_result(operation, [OsuRow(size_bytes=size, value=us) for size, us in rows]))
    [finding] = verdict.findings
    assert finding.kind == "latency-bound"
    assert "no bandwidth shown; send larger messages" in finding.text
    assert "B/s" not in finding.text
    assert "bandwidth-bound" not in finding.text
    assert verdict.fits[f"osu_{operation}"].beta_bytes_per_s is None


def test_stream_verdict_has_the_interval_of_the_time_per_message():
    rows = [OsuRow(size_bytes=s, value=s / (1e-6 + s / 1e9 * (1.02 if s % 3 == 1 else 1)) / 1e6) for s in _SIZES]
    [finding] = judge(osu_result("bw", rows)).findings
    assert re.search(r"B/s \(.*\), and 1.00 µs \(\S+ µs to \S+ µs\) for each message", finding.text)


def test_stream_whose_rates_vary_is_called_a_misfit():
    rows = [OsuRow(size_bytes=1 << n, value=5000 if n == 16 else 2600) for n in range(10, 23)]
    [finding] = judge(osu_result("bw", rows)).findings
    assert "the fitted line deviates by up to" in finding.text


def test_barrier_has_a_verdict():
    row = OsuRow(size_bytes=0, value=2.5, min_us=2.0, max_us=3.0, iterations=100)
    [finding] = judge(osu_result("barrier", [row])).findings
    assert finding.kind == "latency-bound"
    assert "osu_barrier: 2.50 µs (ranks: 2.00 µs to 3.00 µs)" in finding.text

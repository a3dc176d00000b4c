# SPDX-License-Identifier: Apache-2.0
"""Tests the sizes and iterations of both conventions, and the checks of a plan. Issue 16, point 4."""

from __future__ import annotations

import pytest

from penstock.bench.net.memory import bytes_of, expected, floats_of, scatter_counts
from penstock.bench.net.plan import Count, NetPlan, operations_of
from penstock.errors import ConfigError


def test_osu_sizes_are_those_of_its_programs():
    plan = NetPlan()
    assert plan.sizes("latency", 2) == [0, *(1 << n for n in range(23))]
    assert plan.sizes("bw", 2) == [1 << n for n in range(23)]
    assert plan.sizes("allreduce", 2) == [1 << n for n in range(2, 21)]
    assert plan.sizes("bcast", 2)[-1] == 1 << 20
    assert plan.sizes("barrier", 2) == [0]


def test_osu_memory_cap_limits_the_largest_part_of_many_ranks():
    plan = NetPlan(max_bytes=64 << 20)
    assert plan.sizes("alltoall", 64)[-1] == 8 << 20
    assert plan.sizes("bcast", 64)[-1] == 64 << 20


@pytest.mark.parametrize(
    ("operation", "size", "count"),
    [
        ("latency", 8192, Count(10_000, 100)),
        ("latency", 16384, Count(1_000, 10)),
        ("bw", 8192, Count(100, 10)),
        ("bw", 16384, Count(20, 2)),
        ("bcast", 8192, Count(1_000, 200)),
        ("bcast", 16384, Count(100, 10)),
        ("allreduce", 32768, Count(1_000, 200)),  # 8,192 floats: OSU compares elements
        ("allreduce", 65536, Count(100, 10)),
        ("barrier", 0, Count(100, 10)),
    ],
)
def test_osu_iterations_change_above_8192(operation, size, count):
    assert NetPlan().count(operation, size) == count


def test_nccl_defaults_are_one_size_of_32_mib():
    plan = NetPlan(convention="nccl")
    assert plan.sizes("allreduce", 2) == [32 << 20]
    assert plan.count("allreduce", 32 << 20) == Count(20, 1)
    assert NetPlan(convention="nccl", min_bytes=1024, max_bytes=5000).sizes("allreduce", 2) == [1024, 2048, 4096]


def test_smallest_size_above_the_default_range_is_measured():
    assert NetPlan(min_bytes=8 << 20).sizes("latency", 2) == [8 << 20]
    assert NetPlan(min_bytes=2 << 20).sizes("allreduce", 2) == [2 << 20]
    assert NetPlan(convention="nccl", min_bytes=64 << 20).sizes("bcast", 2) == [64 << 20]


def test_names_of_both_kinds_are_known_and_conventions_are_never_mixed():
    assert operations_of(("osu_bw", "reduce-scatter", "bw"), "osu") == ("bw", "reduce-scatter")
    assert operations_of(("all_reduce_perf",), "nccl") == ("allreduce",)
    assert len(operations_of((), "osu")) == 9
    with pytest.raises(ConfigError, match="a test of convention nccl") as caught:
        operations_of(("all_reduce_perf",), "osu")
    assert "cannot be mixed" in caught.value.hint
    with pytest.raises(ConfigError, match="a test of convention osu"):
        operations_of(("latency",), "nccl")
    with pytest.raises(ConfigError, match="unknown test"):
        operations_of(("osu_mbw",), "osu")


@pytest.mark.parametrize(
    ("fields", "world", "part"),
    [
        ({}, 1, "at least 2 ranks"),
        ({"min_bytes": 8, "max_bytes": 4}, 2, "exceeds the largest"),
        ({"max_bytes": 1 << 40}, 2, "exceeds the limit of 512 MiB"),
        ({"max_bytes": 0}, 2, "must not be negative"),
        ({"iterations": 0}, 2, "--iterations: must be at least 1"),
        ({"window": 0}, 2, "--window"),
        ({"pair": (0, 2)}, 2, "two different ranks from 0 to 1"),
        ({"pair": (1, 1)}, 2, "two different ranks"),
        ({"operations": ("sendrecv",)}, 2, "not a test of convention osu"),
        ({"matrix_bytes": 1 << 40}, 2, "--pairs-size"),
        ({"min_bytes": 1 << 40}, 2, "exceeds the limit of 512 MiB"),
        ({"convention": "nccl", "min_bytes": 1 << 40}, 2, "exceeds the limit of 16.0 GiB"),
        (
            {"operations": ("bw", "allreduce"), "max_bytes": 2},
            2,
            "allreduce: has no message size from its smallest to 2 bytes",
        ),
        ({"convention": "nccl", "operations": ("bcast",), "max_bytes": 2}, 2, "bcast: has no message size"),
        (
            {"operations": ("alltoall",), "min_bytes": 64 << 20},
            64,
            "alltoall: has no message size from 67,108,864 bytes",
        ),
    ],
)
def test_plan_refuses_absurd_values(fields, world, part):
    with pytest.raises(ConfigError, match=part):
        NetPlan(**fields).check(world)


def test_expected_data_is_what_a_plain_exchange_gives():
    assert list(expected("allgather", 3, 1, 2)) == [*bytes_of(0, 3), *bytes_of(1, 3)]
    assert list(expected("alltoall", 2, 1, 2)) == [*bytes_of(0, 4)[2:], *bytes_of(1, 4)[2:]]
    assert list(expected("allreduce", 12, 0, 3)) == [0 + 1 + 2, 1 + 2 + 3, 2 + 3 + 4]
    assert scatter_counts(5, 3) == [2, 2, 1]
    assert list(expected("reduce-scatter", 20, 2, 3)) == [4 + 5 + 6]
    assert floats_of(1, 2).dtype == "float32"


def test_patterns_of_blocks_and_ranks_differ():
    """Two blocks of a network's frame or page that are exchanged must be found as wrong data."""
    for block in (256, 1024, 4096):
        first, second = bytes_of(0, 2 * block).reshape(2, block)
        assert (first != second).all()
        assert (expected("alltoall", block, 0, 2) != expected("alltoall", block, 1, 2)).all()
    assert (bytes_of(0, 300) != bytes_of(1, 300)).all()
    assert list(bytes_of(1, 5, start=4)) == list(bytes_of(1, 9)[4:])

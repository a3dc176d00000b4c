# SPDX-License-Identifier: Apache-2.0
"""Tests how installed OSU programs and nccl-tests are found, started and compared with Penstock's tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.bench.net.installed import find_programs, program_options, run_program
from penstock.bench.net.osu_format import OsuRow
from penstock.bench.net.place import Place
from penstock.bench.net.plan import NetPlan
from penstock.bench.net.result import NetResult, NetTable
from penstock.cluster import Cluster
from penstock.errors import Unsupported

_PLAN = NetPlan(operations=("bw", "latency", "allreduce"), max_bytes=1024, iterations=10, window=4)


def test_find_programs_in_the_current_folder_returns_absolute_paths(tmp_path, monkeypatch):
    (tmp_path / "osu_bw").write_text("")
    monkeypatch.chdir(tmp_path)
    assert find_programs(_PLAN, Path()) == {"bw": str(tmp_path / "osu_bw")}


@pytest.mark.parametrize(
    ("operation", "options"),
    [
        ("bw", ["-i", "10", "-m", "1:1024", "-c", "-W", "4"]),
        ("latency", ["-i", "10", "-m", "1024", "-c"]),
        ("allreduce", ["-i", "10", "-m", "4:1024", "-c", "-f"]),
        ("barrier", ["-i", "10"]),
    ],
)
def test_program_options_are_those_of_the_plan(operation, options):
    assert program_options(_PLAN, operation, world=2) == options


def test_program_options_for_gpu_buffers_name_the_device_and_both_buffers():
    plan = NetPlan(device="cuda", max_bytes=8, validates=False)
    assert program_options(plan, "bw", world=2) == ["-m", "1:8", "-W", "64", "-d", "cuda", "D", "D"]
    assert program_options(plan, "bcast", world=2) == ["-m", "1:8", "-f", "-d", "cuda"]


def test_program_options_of_version_5_3_are_left_out_or_refused():
    assert program_options(NetPlan(iterations=10), "bw", world=2, known={"x", "i", "h"}) == ["-i", "10"]
    with pytest.raises(Unsupported, match="osu_bw: has no option -W"):
        program_options(_PLAN, "bw", world=2, known={"x", "i", "h"})
    with pytest.raises(Unsupported, match="osu_bw: built without CUDA"):
        program_options(NetPlan(device="cuda"), "bw", world=2, known={"x", "i", "h"})


def test_run_program_passes_the_options_that_its_help_lists(tmp_path):
    program = tmp_path / "osu_bw"
    program.write_text(
        "#!/bin/sh\n"
        'if [ "$1" = -h ]; then printf "Usage: osu_bw [options]\\n  -i, --iterations ITER\\n  -W, --window-size SIZE\\n"; exit; fi\n'
        f'echo "$*" > {tmp_path}/args\n'
        'printf "# OSU MPI Bandwidth Test v7.4\\n# Size      Bandwidth (MB/s)\\n1   3.24\\n"\n'
    )
    program.chmod(0o755)
    with Cluster.open("local", {}) as cluster:
        table, _ = run_program(_PLAN, "bw", str(program), cluster, ranks_per_node=2, timeout_s=30)
    assert (tmp_path / "args").read_text() == "-i 10 -W 4\n"
    assert (table.unit, table.rows[0].value) == ("MB/s", 3.24)


def test_comparison_is_in_the_rows_of_the_program():
    ours = NetTable("bw", "osu_bw", "MB/s", [OsuRow(size_bytes=1, value=3.0), OsuRow(size_bytes=2, value=8.0)])
    theirs = NetTable(
        "bw", "osu_bw", "MB/s", [OsuRow(size_bytes=1, value=0.0), OsuRow(size_bytes=2, value=4.0)], source="/x"
    )
    places = [Place(rank=rank, host="a", node="a", local_rank=rank) for rank in (0, 1)]
    result = NetResult(plan=_PLAN, places=places, tables=[ours, theirs])
    assert [(each.size_bytes, each.ratio, each.unit) for each in result.compared(theirs)] == [
        (1, None, "MB/s"),
        (2, 2.0, "MB/s"),
    ]
    assert [row.raw.get("ours_to_theirs") for row in result.rows()] == [None, None, None, "2.0"]

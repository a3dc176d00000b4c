# SPDX-License-Identifier: Apache-2.0
"""Tests study B: its points are the published ones, its claims follow from the sweep, and a tiny pool runs and leaves
nothing.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.bench.rows import End, Row, read_results
from penstock.bench.verdict import classify
from penstock.study.run import load_module
from penstock.study.spec import find_study, studies_folder

STUDY = find_study("ondemand-pool", studies_folder())
sweep, prediction = load_module(STUDY, "sweep"), load_module(STUDY, "prediction")


def test_full_size_is_the_published_sweep():
    points = sweep.points_of(STUDY.size("full"))
    assert {(point.file_size_bytes >> 10, point.threads) for point in points} == {
        (size, threads) for size in (256, 1024, 4096, 65_536) for threads in (1, 8, 32, 128)
    }
    assert {point.total_files for point in points} == {12_800}
    assert 4 * max(point.bytes for point in points) == pytest.approx(3.4e12, rel=0.02)


def test_sizes_of_the_rehearsal_are_f_times_the_published_ones():
    small, full = STUDY.size("small"), STUDY.size("full")
    assert [size / small["F"] for size in small["file_bytes"]] == full["file_bytes"]
    assert small["threads"] == full["threads"]


@pytest.mark.parametrize(
    ("nodes", "disk", "link", "rate", "limit"),
    [(4, 3e9, 25e9, 12e9, "disks"), (4, 3e9, 1.5e9, 8e9, "links"), (1, 3e9, 1e9, 3e9, "disks")],
)
def test_pool_rate_is_that_of_disks_or_links(nodes, disk, link, rate, limit):
    found, what = prediction.pool_bytes_per_s(nodes, disk, link)
    assert found == pytest.approx(rate)
    assert limit in what


def cells(per_s):
    """Judged cells of an ideal sweep: `per_s(threads, bytes)` files per second of 4 hosts."""
    rows = [
        Row(
            operation=operation, path_type="dir", hosts=4, threads=threads, files=64, directories=1,
            file_size_bytes=size, block_size_bytes=size,
            first=End(time_s=1.0), last=End(time_s=(n := 256 * threads) / per_s(threads, size), entries=n, ios=n, bytes=n * size),
        )
        for operation in ("WRITE", "READ")
        for size in (4096, 65_536, 1 << 20)
        for threads in (1, 8, 32, 128)
    ]  # fmt: skip
    return [cell for cell in classify(rows).cells if cell.operation in ("WRITE", "READ")]


def test_claims_hold_for_a_pool_with_both_regimes():
    def per_s(threads, size):
        metadata = 3000 * (1 if threads < 100 else 0.4) * threads / (threads + 2)
        return 1 / (1 / metadata + size / 200e6)

    found = {claim.claim: claim.holds for claim in sweep.claims_of(cells(per_s))}
    assert found["read of 4.00 KiB with several threads is limited by metadata"] is True
    assert found["read of 1.00 MiB with several threads is limited by bandwidth"] is True
    assert found["reading small files falls when the metadata server is overloaded"] is True
    assert found["large files: more threads cost little"] is True


def test_claims_do_not_hold_for_a_pool_limited_by_bytes_alone():
    found = {claim.claim: claim.holds for claim in sweep.claims_of(cells(lambda _threads, size: 200e6 / size))}
    assert found["read of 4.00 KiB with several threads is limited by metadata"] is False
    assert found["reading small files falls when the metadata server is overloaded"] is False


def test_full_size_without_a_cluster_is_one_error(run_cli, tmp_path):
    done = run_cli("study", "run", "ondemand-pool", "--size", "full", "--only", "sweep", "-o", tmp_path / "out")
    assert done.code == 2, done.err
    assert "size full needs a cluster" in done.err
    assert "--launcher" in done.err


def test_rehearsal_without_its_programs_is_skipped_with_the_reason(run_cli, tmp_path):
    done = run_cli(
        "study", "run", "ondemand-pool", "--size", "tiny", "-o", tmp_path / "out", env={"PATH": str(tmp_path)}
    )
    assert done.code == 0, done.err
    computed, skipped = json.loads((tmp_path / "out/results.json").read_text())["parts"]
    assert computed["result"]["predicted"]["read-large"]["value"] == pytest.approx(12.0)
    assert "the program mfsmaster" in skipped["skipped"]
    assert "sweep: it needs" in (tmp_path / "out/report.md").read_text()


@pytest.mark.needs_root
@pytest.mark.needs_pool
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_tiny_pool_runs_and_leaves_nothing(run_cli, tmp_path):
    done = run_cli(
        "study", "run", "ondemand-pool", "--size", "tiny", "-o", tmp_path / "out", "--scratch", tmp_path,
        timeout_s=390, env={"XDG_STATE_HOME": str(tmp_path / "state")},
    )  # fmt: skip
    assert done.code == 0, done.err
    parts = json.loads((tmp_path / "out/results.json").read_text())["parts"]
    measured = parts[1]["result"]["measured"]
    assert measured["read-large"]["value"] > 0
    assert measured["read-large"]["scale"] == STUDY.size("tiny")["F"]
    assert measured["small-files"]["value"] > 10
    kept = read_results(tmp_path / "out/sweep")
    assert {row.hosts for row in kept.rows} == {2}
    assert len([row for row in kept.rows if row.operation == "READ"]) == 4
    assert str(tmp_path) not in Path("/proc/self/mounts").read_text()
    assert [path.name for path in tmp_path.iterdir() if path.name not in ("out", "state")] == []

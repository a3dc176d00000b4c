# SPDX-License-Identifier: Apache-2.0
"""Tests that tiers of the disk book are emulated by real block devices, and that a disk trace finds their limits."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.bench.disk_trace import DiskLimits, DiskSample, judge
from penstock.bench.diskstats import device_of, read_counters
from penstock.bench.loop_disk import Burst, Rate, _Bucket
from penstock.bench.rows import read_results
from penstock.errors import ConfigError, NotFound, SystemFault
from penstock.price import disks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# The study's table (STUDIES C): maximum bytes/s and I/Os per second.
_STUDY = {
    "aws-gp2@2018": (160e6, 10_000),
    "aws-st1@2018": (500e6, 500),
    "aws-io1@2018": (500e6, 32_000),
    "azure-premium-ssd@2018": (250e6, 7_500),
    "gcp-pd-ssd@2018": (800e6, 40_000),
    "gcp-local-ssd@2018": (1500e6, 400_000),
}

# A real disk for a test. Its limits are far apart: both bind only at reads of 33 KB.
_TIER, _SCALE = "azure-premium-ssd@2018", "0.02"


@pytest.mark.parametrize("name", _STUDY)
def test_disk_of_the_study_has_the_study_s_limits(name: str) -> None:
    disk = disks.find(name)
    moved, ios = disk.limit("bytes"), disk.limit("ios")
    assert moved is not None
    assert ios is not None
    assert (moved.most(disk.size_bytes), ios.most(disk.size_bytes)) == pytest.approx(_STUDY[name], rel=1e-3)


def test_disk_limit_grows_with_its_size_within_its_bounds() -> None:
    ios = disks.find("aws-gp2").limit("ios")
    assert ios is not None
    assert [ios.base(gib << 30) for gib in (1, 500, 10_000)] == [100, 1500, 10_000]
    assert ios.most(1 << 30) == 3000


def test_disk_unknown_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="aws-gp2@2018"):
        disks.find("floppy")


def test_burst_lasts_as_long_as_its_credits() -> None:
    bucket = _Bucket(Rate(100.0, Burst(per_s=300.0, credits=1000.0, held=1000.0)))
    allowed = []
    for _ in range(12):
        allowed.append(bucket.limit_per_s)
        bucket.spend(allowed[-1], 1.0)
    # 1,000 credits at a net 200 per second: five seconds of burst, then the base rate.
    assert allowed == [300.0] * 5 + [100.0] * 7
    for _ in range(20):
        bucket.spend(0, 1.0)
    assert bucket.held == 1000.0


def _sample(**given: float) -> DiskSample:
    zero = dict.fromkeys(
        ["at_s", "read_bytes_per_s", "write_bytes_per_s", "read_ios_per_s", "write_ios_per_s", "utilisation", "queue"],
        0.0,
    )
    return DiskSample(seconds=1.0, **{**zero, **given})


def test_judge_names_the_limit_that_was_hit() -> None:
    limits = DiskLimits(ios_per_s=1000, bytes_per_s=100e6)
    idle = [_sample()] * 50
    bound = [_sample(read_bytes_per_s=60e6, write_bytes_per_s=38e6, read_ios_per_s=100, utilisation=0.5)] * 5
    assert judge([*idle, *bound], limits) == ({"bytes": 1.0, "ios": 0.0}, "throughput")
    small = [_sample(read_ios_per_s=990, read_bytes_per_s=4e6, utilisation=0.2)] * 5
    assert judge([*idle, *small], limits)[1] == "IOPS"
    fast = [_sample(read_ios_per_s=10, read_bytes_per_s=99e6, utilisation=0.01)] * 5
    assert judge([*idle, *fast], limits)[1] == "throughput"
    slow = [_sample(read_ios_per_s=99, read_bytes_per_s=4e6, utilisation=1.0)] * 5
    assert judge([*idle, *slow], limits)[1] == "device"
    assert judge(idle, limits) == ({}, "none")


def test_counters_of_odd_lines_are_passed_over(tmp_path: Path) -> None:
    file = tmp_path / "diskstats"
    file.write_text("8 0 sda 1 3 8 5 2 4 16 7 0 12 12 0 0 0 0\n8 1\nx y sdb 1 0 8 5 2 0 16 7 0 12 12\n")
    counters = read_counters(file)
    assert list(counters) == ["sda"]
    assert (counters["sda"].read_bytes, counters["sda"].ios, counters["sda"].number) == (4096, 3, "8:0")
    assert counters["sda"].merged == 7
    with pytest.raises(SystemFault):
        read_counters(tmp_path / "none")


def test_device_of_no_path_is_not_found() -> None:
    with pytest.raises(NotFound):
        device_of("/no/such/path")


def test_trace_of_a_failing_command_exits_with_1(run_cli: Callable[..., Any], tmp_path: Path) -> None:
    device = next(iter(read_counters()))
    failed = run_cli("bench", "disk-trace", "--device", device, "--json", "--", "false")
    assert (failed.code, json.loads(failed.out)["traces"][0]["exit_code"]) == (1, 1)
    assert run_cli("bench", "disk-trace", "--device", device, "--", "no-such-program").code == 3
    assert run_cli("bench", "disk-trace", "--device", device).code == 2
    assert run_cli("bench", "disk-trace", "--device", "none-such", "--", "true").code == 3
    assert run_cli("bench", "disk-trace", "--device", device, "-o", tmp_path / "out", "--", "true").code == 0
    assert [row.operation for row in read_results(tmp_path / "out").rows] == ["TRACE"]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """2 % of Azure's premium SSD of 2018: 5 MB/s and 150 I/Os per second, which even a busy machine reaches."""
    mount = tmp_path / "disk"
    mount.mkdir()
    program = str(Path(sys.executable).with_name("penstock"))
    serving = subprocess.Popen(
        [program, "emulate", str(mount), "--tier", _TIER, "--scale", _SCALE, "--size", "256MiB", "--json"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert serving.stdout is not None
        facts = json.loads(serving.stdout.readline())
        assert (facts["ios_per_s"], facts["bytes_per_s"]) == (150, 5e6)
        yield mount
    finally:
        serving.send_signal(signal.SIGTERM)
        assert serving.wait(timeout=60) == 0
        if serving.stdout is not None:
            serving.stdout.close()
    assert not any(line.split()[1] == str(mount) for line in Path("/proc/mounts").read_text().splitlines())
    assert facts["device"] not in subprocess.run(["losetup", "-a"], capture_output=True, text=True, check=True).stdout


@pytest.mark.needs_root
@pytest.mark.parametrize(
    ("flags", "hit"),
    [
        (("--block-size", "4KiB", "--random"), "IOPS"),
        (("--block-size", "64KiB"), "throughput"),
    ],
)
def test_disk_with_limits_is_felt_and_its_trace_says_which(
    run_cli: Callable[..., Any], disk: Path, flags: tuple[str, ...], hit: str
) -> None:
    """64 KiB at 150 I/Os per second is 9.8 MB/s, twice the byte limit; 4 KiB is 0.6 MB/s, an eighth of it."""
    size = ("--file-size", "8MiB", "--files", "1", "--direct")
    flags = (*flags, "--repeat-io", "--duration", "4s")
    program = str(Path(sys.executable).with_name("penstock"))
    assert run_cli("bench", "storage", disk, *size, "--phases", "write").code == 0
    # A busy machine may read below the limit for a while, and the trace then finds no limit. It must never find the
    # other limit.
    for _ in range(6):
        ran = run_cli(
            "bench", "disk-trace", "--device", disk, "--tier", _TIER, "--scale", _SCALE, "--json",
            "--", program, "bench", "storage", disk, *size, "--phases", "read", "--json", *flags,
        )  # fmt: skip
        assert ran.code == 0, ran.err
        inner, outer = (json.loads(line) for line in ran.out.splitlines())
        row, trace = inner["rows"][0], outer["traces"][0]
        rate, limit = (row["last"]["ios_per_s"], 150) if hit == "IOPS" else (row["last"]["bytes_per_s"], 5e6)
        # A disk exceeds its limit only at the very start.
        assert rate <= limit * 1.3
        is_reached = rate >= limit * 0.95
        assert trace["binding_limit"] in ({hit} if is_reached else {hit, "device", "none"}), trace["at_limit"]
        if trace["binding_limit"] == hit:
            break


def test_disk_of_somebody_s_folder_is_refused(run_cli: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    ran = run_cli("emulate", tmp_path, "--tier", "aws-gp2@2018")
    assert ran.code != 0
    assert (tmp_path / "file").read_text() == "mine"

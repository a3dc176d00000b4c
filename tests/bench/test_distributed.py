# SPDX-License-Identifier: Apache-2.0
"""Tests a benchmark on many hosts, with real processes: rows are summed, and a dead host causes one error.

Issue 6, point 1.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import struct
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import msgspec
import pytest

from penstock import _native
from penstock.bench.distributed.config import AgentConfig
from penstock.bench.distributed.config import Storage as StorageWork
from penstock.bench.distributed.leader import Leader
from penstock.bench.distributed.merge import merge
from penstock.bench.results import CacheState
from penstock.bench.rows import End, Latency, Row, Sample, read_results
from penstock.bench.storage.spec import Point, StorageBench
from penstock.emulator import Emulator
from penstock.launchers.netns_hosts import Hosts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_SMALL = ("--file-size", "64KiB", "--block-size", "16KiB", "--files", "3", "--threads", "2", "--keep-caches")
_PROGRAM = str(Path(sys.executable).with_name("penstock"))

_SLOW_CLOCK = """
import os, time
if os.environ.get("GROUP_RANK") == "1":
    real = time.time
    time.time = lambda: real() + {skew_s}
"""


def _agent(of: int, rank: int) -> int | None:
    """The pid of a rank's agent among the descendants of the process `of`."""

    def status(pid: str) -> int:
        with suppress(OSError, StopIteration, ValueError):
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
            return int(next(line for line in lines if line.startswith("PPid:")).split()[1])
        return 0

    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (folder / "cmdline").read_bytes().split(b"\0")[1:4] == [
                b"-m",
                b"penstock.bench.distributed.agent",
                b"%d" % rank,
            ]:
                above = int(folder.name)
                while above not in (0, of):
                    above = status(str(above))
                if above == of:
                    return int(folder.name)
    return None


@contextmanager
def _endless(place: Path, nodes: int) -> Iterator[subprocess.Popen[str]]:
    """A bench that would write without end; it is killed when the block ends."""
    forever = ("--phases", "write", "--repeat-io", "--duration", "60s", "--nodes", str(nodes))
    running = subprocess.Popen(
        [_PROGRAM, "bench", "storage", str(place), *_SMALL, *forever], stderr=subprocess.PIPE, text=True
    )
    try:
        yield running
    finally:
        running.kill()


def _wait_for(what: Callable[[], Any], seconds: float = 30) -> Any:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if found := what():
            return found
        time.sleep(0.02)
    raise AssertionError("it did not come")


def test_storage_on_three_hosts_gives_one_row_of_all(run_cli: Callable[..., Any], tmp_path: Path) -> None:
    place, out = tmp_path / "new", tmp_path / "out"
    flags = (*_SMALL, "--verify", "5", "--nodes", "3", "--json", "-o", out, "--csv", tmp_path / "out.csv")
    ran = run_cli("bench", "storage", place, *flags)
    assert ran.code == 0, ran.err
    rows = json.loads(ran.out)["rows"]
    assert [row["operation"] for row in rows] == ["MKDIRS", "WRITE", "READ", "STAT", "RMFILES", "RMDIRS"]
    for row in rows[1:3]:
        assert (row["hosts"], row["threads"], row["files"]) == (3, 2, 3)
        assert (row["last"]["entries"], row["last"]["ios"], row["last"]["bytes"]) == (18, 72, 18 * 65536)
        assert sum(count for _, count in row["io_latency"]["buckets"]) == row["io_latency"]["count"] == 72
        assert 0 < row["first"]["time_s"] <= row["last"]["time_s"]
        assert row["first"]["ios"] <= 72
        assert 0 <= float(row["raw"]["start_skew_s"]) < 5
        # All three hosts are this machine.
        assert row["cores"] * row["hosts"] == pytest.approx(len(os.sched_getaffinity(0)))
    assert rows[2]["raw"]["verified_bytes"] == str(18 * 65536)
    assert "3 hosts: phases began within" in ran.err
    assert not place.exists()
    kept = read_results(out)
    assert (len(kept.rows), kept.spec["hosts"], kept.provenance is not None) == (6, 3, True)
    assert (tmp_path / "out.csv").read_text().splitlines()[2].split(",")[4] == "3"


def test_storage_written_by_hosts_is_read_by_as_many_later(run_cli: Callable[..., Any], tmp_path: Path) -> None:
    def bench(*flags: object) -> Any:
        return run_cli("bench", "storage", tmp_path / "{node}", *_SMALL, "--verify", "5", "--nodes", "2", *flags)

    assert bench("--phases", "mkdirs,write").code == 0
    # Each host's file has different content. With equal content, the hosts would share blocks in a pool that
    # deduplicates.
    one, other = ((tmp_path / f"n{rank}/host-000{rank}").rglob("f0000000") for rank in (0, 1))
    assert next(one).read_bytes() != next(other).read_bytes()
    read = bench("--phases", "read", "--json")
    assert read.code == 0, read.err
    assert json.loads(read.out)["rows"][0]["raw"]["verified_bytes"] == str(12 * 65536)
    assert bench("--phases", "delete").code == 0
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_storage_one_host_that_refuses_ends_all_with_its_reason(run_cli: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "n1").mkdir()
    (tmp_path / "n1/thesis.tex").write_text("mine")
    ran = run_cli("bench", "storage", tmp_path / "{node}", *_SMALL, "--nodes", "2")
    assert ran.code == 3
    assert ran.err.count("error[") == 1
    assert "n1: " in ran.err
    assert "thesis.tex" in ran.err
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == ["n1", "n1/thesis.tex"]


def test_storage_host_killed_in_a_phase_is_one_error_and_nothing_is_left(tmp_path: Path) -> None:
    place = tmp_path / "new"
    with _endless(place, nodes=3) as running:
        _wait_for(lambda: len(list(place.rglob("f0000002"))) == 6)
        os.kill(_wait_for(lambda: _agent(running.pid, 1)), signal.SIGKILL)
        _, result = running.communicate(timeout=50)
    assert running.returncode == 1, result
    assert result.count("error[") == 1
    assert "n1 disconnected during write; the benchmark was stopped on all 3 hosts" in result
    assert not list(tmp_path.rglob("f*"))


def test_storage_interrupted_on_hosts_leaves_nothing(tmp_path: Path) -> None:
    place = tmp_path / "new"
    with _endless(place, nodes=2) as running:
        _wait_for(lambda: len(list(place.rglob("f0000002"))) == 4)
        running.send_signal(signal.SIGINT)
        _, result = running.communicate(timeout=50)
    assert running.returncode == 130, result
    assert not list(tmp_path.rglob("f*"))


@pytest.mark.parametrize(("skew_s", "is_refused"), [(5.0, True), (-0.3, False)])
def test_storage_clocks_apart_are_refused_beyond_the_bound_and_corrected_below(
    run_cli: Callable[..., Any], tmp_path: Path, skew_s: float, is_refused: bool
) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sitecustomize.py").write_text(_SLOW_CLOCK.format(skew_s=skew_s))
    ran = run_cli(
        "bench", "object", tmp_path / "bucket", "--size", "4KiB", "--objects", "8", "--concurrency", "2", "--operations", "put,get",
        "--nodes", "2", "--json", env={"PYTHONPATH": str(tmp_path / "site")},
    )  # fmt: skip
    if is_refused:
        assert ran.code == 3
        assert "n1: the clock differs from the clock of n0 by +5.0" in ran.err
        assert "(limit 1 s)" in ran.err
        return
    assert ran.code == 0, ran.err
    assert "clocks differ by up to 300 ms" in ran.err
    # The test skews Python's clock but not the core's, so the reported start skew equals that skew.
    assert float(json.loads(ran.out)["rows"][0]["raw"]["start_skew_s"]) == pytest.approx(0.3, abs=0.25)


def test_object_on_hosts_adds_up_and_leaves_nothing(run_cli: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "theirs.bin").write_bytes(b"not ours")
    small = ("--size", "16KiB", "--objects", "12", "--concurrency", "3", "--verify", "1", "--nodes", "2")
    with Emulator(tmp_path) as store:
        ran = run_cli(
            "bench", "object", store.url, *small, "--operations", "put,get,head,delete", "--json", env=store.env
        )
        mixed = run_cli(
            "bench",
            "object",
            store.url,
            *small,
            "--mix",
            "get=1,head=1",
            "--request-limit",
            "40",
            "--json",
            env=store.env,
        )
    assert ran.code == 0, ran.err
    rows = {row["raw"]["request"]: row for row in json.loads(ran.out)["rows"]}
    assert {name: row["last"]["entries"] for name, row in rows.items()} == dict.fromkeys(rows, 24)
    assert rows["get"]["raw"]["verified_bytes"] == str(24 * 16384)
    assert rows["get"]["first_byte_latency"]["count"] == 24
    assert mixed.code == 0, mixed.err
    both = [row for row in json.loads(mixed.out)["rows"] if row["raw"]["request"] != "put"]
    assert sum(row["last"]["entries"] for row in both) == 80
    kept = {path.name for path in tmp_path.rglob("*") if path.is_file() and ".penstock-emulator" not in path.parts}
    assert kept == {"theirs.bin"}


def _orders(tmp_path: Path, nodes: tuple[str, ...], port: int) -> AgentConfig:
    bench = StorageBench(phases=("mkdirs",))
    work = StorageWork(path=str(tmp_path / "new"), bench=bench, points=(Point(files=1),))
    return AgentConfig(
        verb="run", session="s", token="t", nodes=nodes, address="127.0.0.1", port=port, max_skew_s=60.0, work=work
    )  # fmt: skip


def test_leader_whose_port_is_taken_says_so(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        config = _orders(tmp_path, ("n0",), taken.getsockname()[1])
        line = [sys.executable, "-m", "penstock.bench.distributed.agent", "0"]
        ran = subprocess.run(line, input=msgspec.json.encode(config), capture_output=True, timeout=60, check=False)
    fault = json.loads(ran.stdout.splitlines()[-1])["fault"]
    assert (ran.returncode, fault["code"]) == (3, "system"), ran.stderr
    assert "cannot listen" in fault["message"]
    assert b"Traceback" not in ran.stderr


def test_host_that_goes_away_as_others_join_is_one_fault(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    output: queue.Queue[dict[str, Any]] = queue.Queue()
    leader = Leader(_orders(tmp_path, ("n0", "n1"), port), output.put)

    def joined(rank: int) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", port), timeout=20)
        lines = connection.makefile("rwb")
        hello = {"token": "t", "rank": rank, "version": _native.__version__}
        for _ in range(16):  # the leader requests the clock 16 times
            lines.write(json.dumps(hello).encode() + b"\n")
            lines.flush()
            assert "clock" in json.loads(lines.readline())
            hello = {"clock": time.time()}
        lines.write(json.dumps(hello).encode() + b"\n")
        lines.flush()
        return connection

    gone = joined(0)
    gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closing it sends a reset
    gone.close()
    with joined(1):
        result = output.get(timeout=20)
        while "fault" not in result:
            result = output.get(timeout=20)
    leader.close()
    fault = result["fault"]
    assert (fault["code"], "n0 disconnected" in fault["message"]) == ("rank-failed", True), result


@pytest.mark.needs_root
def test_storage_on_hosts_of_their_own_and_one_that_is_lost(run_cli: Callable[..., Any]) -> None:
    with Hosts.up(f"t{uuid4().hex[:8]}", 3) as hosts:
        place = f"{hosts.own_disk}/bench"
        at = ("bench", "storage", place, *_SMALL, "--set", f"hosts={hosts.name}")
        ran = run_cli(*at, "--json")
        assert ran.code == 0, ran.err
        assert [row["last"]["entries"] for row in json.loads(ran.out)["rows"]] == [6, 18, 18, 18, 18, 6]
        running = subprocess.Popen(
            [_PROGRAM, *map(str, at), "--phases", "write", "--repeat-io", "--duration", "60s"],
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            _wait_for(lambda: _agent(running.pid, 2))
            time.sleep(2)
            hosts.kill("h3")
            _, result = running.communicate(timeout=60)
        finally:
            running.kill()
        assert running.returncode == 1, result
        assert result.count("error[") == 1
        assert "h3 disconnected" in result
        assert f"files of h3 may be left below {place}" in result
        left = run_cli(
            "cluster", "run", "--set", f"hosts={hosts.name}", "--on", "h1", "--on", "h2", "--", "ls", hosts.own_disk
        )
        assert (left.code, "bench" in left.out) == (0, False), left.err


def _row(last_s: float, first_s: float, count: int, values_ns: list[int], **more: Any) -> Row:
    """A row whose latencies `values_ns` are small enough that each has its own histogram bucket."""
    latency = Latency(
        count=len(values_ns),
        min_us=min(values_ns) / 1000,
        mean_us=sum(values_ns) / len(values_ns) / 1000,
        max_us=max(values_ns) / 1000,
        buckets=tuple((value, 1) for value in values_ns),
    )
    return Row(
        operation="READ",
        first=End(time_s=first_s, ios=count // 2, bytes=count * 500, cpu=0.5),
        last=End(time_s=last_s, ios=count, bytes=count * 1000, cpu=0.5),
        io_latency=latency,
        series=tuple(Sample(at_s=last_s * n / 4, bytes_per_s=count * 1000 / last_s, ios_per_s=count / last_s) for n in range(1, 5)),
        **more,
    )  # fmt: skip


def test_merge_counts_from_the_first_start_and_percentiles_of_all_values() -> None:
    one = _row(4.0, 2.0, 100, [10, 20, 30, 40], cache=CacheState("cold", "dropped"), errors_by_class={"503": 2})
    two = _row(
        4.0, 3.0, 100, [50, 60, 70, 127], cache=CacheState("warm", "kept"), errors_by_class={"503": 1, "reset": 1}
    )
    both = merge([one, two], [0.5, 1.5])
    assert (both.hosts, both.last.time_s, both.last.ios, both.last.bytes) == (2, 5.0, 200, 200_000)
    assert both.last.bytes_per_s == 40_000
    # The first worker ends after 2 s. By then the other host has worked for 1 s, which is a third of
    # its own 3 s, so a third of its 50 I/Os count.
    assert both.first is not None
    assert (both.first.time_s, both.first.ios) == (2.0, 50 + 17)
    assert both.io_latency is not None
    assert (both.io_latency.count, both.io_latency.min_us, both.io_latency.max_us) == (8, 0.01, 0.127)
    assert both.io_latency.percentiles_us["50"] == pytest.approx(0.04)
    assert both.io_latency.mean_us == pytest.approx(407 / 8000)
    assert both.errors_by_class == {"503": 3, "reset": 1}
    assert (both.cache.state, "host 0: cold, dropped" in both.cache.how) == ("warm", True)
    assert sum(s.bytes_per_s * 1.0 for s in both.series) == pytest.approx(200_000, rel=0.15)
    assert both.raw["start_skew_s"] == "1.000000"


def test_merge_counts_each_processor_of_the_hosts_affinities_once() -> None:
    def cores(*affinities: str) -> float | None:
        rows = [
            _row(4.0, 4.0, 100, [10], cores=len(each.split(",")), raw={"boot_id": "a", "affinity": each})
            for each in affinities
        ]
        merged = merge(rows, [0.0] * len(rows))
        assert "affinity" not in merged.raw
        return merged.cores

    assert cores("0,1", "2,3") == 2
    assert cores("0,1", "0,1") == 1
    assert cores("0", "0,1,2") == 1.5


@pytest.mark.parametrize(
    ("machines", "cores", "own"),
    [
        (("a", "a"), 1.0, 1.0),
        (("a", "b"), 2.0, 0.5),
        (("a", "a", "b"), 4 / 3, 0.75),
        (("a", None), None, None),
        ((None, None), None, None),
    ],
)
def test_merge_counts_the_processors_of_each_machine_once(
    machines: tuple[str | None, ...], cores: float | None, own: float | None
) -> None:
    """Local hosts share one machine's processors; if they were counted twice, the CPU share would be half of its value."""
    rows = [
        _row(4.0, 4.0, 100, [10], cpu_s=4.0, cores=2, raw={"boot_id": machine} if machine else {})
        for machine in machines
    ]
    merged = merge(rows, [0.0] * len(rows))
    assert (merged.cores, merged.own_cpu) == (pytest.approx(cores) if cores else None, own)
    assert "boot_id" not in merged.raw

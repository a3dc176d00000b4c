# SPDX-License-Identifier: Apache-2.0
"""Tests that the first epoch starts before all records are counted, with the order that the counts give, and that one
process of a job counts.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile
import textwrap
import threading
import time
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock import _native
from penstock.emulator import Emulator
from penstock.errors import ConfigError, Corrupt
from penstock.feed.record_scan import RecordScan

FIELDS = {"n": penstock.tensor("int64", ()).of("cls")}


def write(folder, counts, size=64):
    """Write tars whose samples have the member `cls`: numbers that continue from object to object."""
    folder.mkdir(parents=True, exist_ok=True)
    number = 0
    for at, count in enumerate(counts):
        with tarfile.open(folder / f"{at:03d}.tar", "w") as archive:
            for _ in range(count):
                for name, data in (("cls", str(number).encode()), ("pad", bytes(size))):
                    info = tarfile.TarInfo(f"{number:06d}.{name}")
                    info.size = len(data)
                    archive.addfile(info, io.BytesIO(data))
                number += 1
    return folder


def opened(folder, *, seed=None, window=None):
    dataset = penstock.open(str(folder)).fields(**FIELDS)
    return dataset if seed is None else dataset.shuffle(seed, window)


def numbers(loader):
    return [[int(n) for n in batch["n"]] for batch in loader]


@pytest.fixture
def held(monkeypatch):
    """Lets background scans read an object only while the event is set."""
    gate = threading.Event()
    scan = _native.PartialCounts.scan

    def slow(self, objects):
        gate.wait(20)
        return scan(self, objects)

    class Slow:
        def __init__(self, *arguments):
            self.counts = _native.PartialCounts(*arguments)

        def scan(self, objects):
            slow(self.counts, objects)

        def __getattr__(self, name):
            return getattr(self.counts, name)

    monkeypatch.setattr("penstock.feed.record_scan._native", _Native(Slow))
    return gate


class _Native:
    def __init__(self, slow):
        self.PartialCounts = slow

    def __getattr__(self, name):
        return getattr(_native, name)


@settings(max_examples=8, deadline=None)
@given(
    counts=st.lists(st.integers(0, 9), min_size=1, max_size=30).filter(any),
    seed=st.none() | st.integers(0, 2**64 - 1),
    window=st.none() | st.integers(1, 5),
    batch=st.integers(1, 12),
    epoch=st.integers(0, 2),
    tail=st.sampled_from(["ragged", "drop", "pad"]),
)
def test_first_epoch_has_the_order_of_the_counted_dataset(counts, seed, window, batch, epoch, tail, tmp_path_factory):
    folder = write(tmp_path_factory.mktemp("d"), counts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock.feed.record_scan._AT_ONCE", 2)
        for cache in ("", str(tmp_path_factory.mktemp("c"))):
            patch.setenv("PENSTOCK_CACHE", cache)
            known = opened(folder, seed=seed, window=window if seed is not None else None)
            assert known.counted().samples == sum(counts)
            fresh = opened(folder, seed=seed, window=window if seed is not None else None)
            patch.setenv("PENSTOCK_CACHE", "" if not cache else str(tmp_path_factory.mktemp("c")))
            for rank in range(2):
                loaders = [
                    penstock.Loader(dataset, global_batch=batch, rank=rank, world=2, tail=tail)
                    for dataset in (fresh, known)
                ]
                for loader in loaders:
                    loader.set_epoch(epoch)
                assert numbers(loaders[0]) == numbers(loaders[1])
            assert (fresh.fingerprint, fresh.window, fresh.samples) == (known.fingerprint, known.window, known.samples)


def test_first_batch_in_stored_order_reads_the_start_of_one_object(tmp_path, held):
    folder = write(tmp_path / "d", [40] * 6, size=100_000)  # 4 MB each
    loader = penstock.Loader(opened(folder), batch_size=4)
    running = iter(loader)
    assert next(running)["n"].tolist() == [0, 1, 2, 3]
    assert not loader.dataset.is_counted
    assert dict(loader.report())["counts"] == "scan, not complete"
    held.set()
    rest = numbers(running)
    assert [n for batch in rest for n in batch] == list(range(4, 240))
    assert (len(loader), loader.state_dict()["samples"], loader.dataset.rung) == (60, 240, "scan")


def test_first_batch_of_a_shuffle_waits_for_its_window_only(tmp_path, monkeypatch):
    folder = write(tmp_path / "d", [5] * 40)
    scanned, scan = [], RecordScan._scan_all
    gate = threading.Event()

    def stops_after_32(self, publishers):
        class Stop:
            def report(self, counts):
                scanned.extend(counts)
                if len(scanned) >= 32:
                    gate.wait(20)

        scan(self, [*publishers, Stop()])

    monkeypatch.setattr(RecordScan, "_scan_all", stops_after_32)
    loader = penstock.Loader(opened(folder, seed=5), batch_size=8)
    running = iter(loader)
    first = [next(running)["n"].tolist() for _ in range(9)]  # of the first window of 16 objects
    assert not loader.dataset.is_counted
    state_of_epoch = loader.epoch
    gate.set()
    whole = first + numbers(running)
    assert sorted(n for batch in whole for n in batch) == list(range(200))
    assert (loader.dataset.window, state_of_epoch) == (16, 0)


def test_scan_whose_pause_ends_after_its_last_object_reads_the_others(tmp_path):
    # Regression: the scan took the objects requested during the pause for the whole dataset, and failed as incomplete.
    scan = opened(write(tmp_path / "d", [3] * 5), seed=5).scan()

    class Ends:
        """Iterator that ends the pause when the scan asks for objects behind the last one."""

        def __init__(self, numbers):
            self.numbers, self.ends = iter(numbers), 0

        def __iter__(self):
            return self

        def __next__(self):
            for number in self.numbers:
                return number
            self.ends += 1
            if self.ends == 2:
                scan.end_pause()
            raise StopIteration

    class Order(list):
        def __iter__(self):
            return Ends(list.__iter__(self))

    scan.read_first(Order([2]), then_pauses=True)
    scan.start()
    scan.wait_until(scan.is_complete)
    assert scan.result.samples == 15


def test_first_epoch_that_another_thread_closes_leaves_no_part_open(tmp_path, held):
    loader = penstock.Loader(opened(write(tmp_path / "d", [40] * 2, size=100_000)), batch_size=4)
    running = iter(loader)
    next(running)
    run = running._run

    def consume():
        with suppress(ConfigError):
            for _ in running:
                pass

    consumer = threading.Thread(target=consume)
    consumer.start()
    for _ in range(2000):
        if run._run is None:  # waits for the counts of the next part
            break
        time.sleep(0.005)
    assert run._run is None
    running.close()
    held.set()
    consumer.join(20)
    assert (consumer.is_alive(), run._run) == (False, None)


def test_torch_loader_of_several_ranks_does_not_wait_for_the_counts(tmp_path, held):
    folder = write(tmp_path / "d", [40] * 6, size=100_000)
    loader = penstock.torch.Loader(opened(folder), global_batch=4, rank=0, world=2)
    running = iter(loader)
    assert next(running)["n"].tolist() == [0, 1]
    assert not loader.dataset.is_counted
    held.set()
    assert len(list(running)) == 59


def test_first_epoch_of_a_damaged_object_ends_with_its_error(tmp_path):
    folder = write(tmp_path / "d", [5] * 20)
    broken = folder / "013.tar"
    broken.write_bytes(broken.read_bytes()[:700])
    with pytest.raises(Corrupt, match=r"013\.tar ends inside"):
        numbers(penstock.Loader(opened(folder), batch_size=4))


def test_first_epoch_with_take_and_map_and_a_break(tmp_path):
    folder = write(tmp_path / "d", [7] * 30)
    taken = opened(folder, seed=2, window=3).take(30).map(lambda sample, seed: {"n": sample["n"], "seed": seed})
    loader = penstock.Loader(taken, batch_size=4)
    for _ in loader:
        break
    got = [(int(n), seed) for batch in loader for n, seed in zip(batch["n"], batch["seed"], strict=True)]
    counted = opened(folder, seed=2, window=3)
    assert counted.counted().samples == 210
    taken = counted.take(30).map(lambda sample, seed: {"n": sample["n"], "seed": seed})
    again = penstock.Loader(taken, batch_size=4)
    assert got == [(int(n), seed) for batch in again for n, seed in zip(batch["n"], batch["seed"], strict=True)]
    assert len(got) == 30


RANK = """
import json, sys
import torch.distributed as dist
import penstock
dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=int(sys.argv[3]), world_size=2)
dataset = penstock.open(sys.argv[1]).fields(n=penstock.tensor("int64", ()).of("cls")).shuffle(7, 2)
got = [[int(n) for n in batch["n"]] for batch in penstock.Loader(dataset, global_batch=6, rank=int(sys.argv[3]), world=2)]
print(json.dumps([got, dataset.rung, dataset.samples]))
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.system
def test_one_rank_of_a_process_group_counts_for_all(tmp_path, monkeypatch):
    folder = write(tmp_path / "d", [3, 4, 5] * 4)
    with Emulator(folder) as server:
        for name, value in server.env.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("PENSTOCK_HEDGE", "0")
        before = server.stats()["gets"]
        ranks = []
        for rank in range(2):
            monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / f"cache-{rank}"))  # as on two nodes
            argv = [sys.executable, "-c", textwrap.dedent(RANK), server.url, str(tmp_path / "meet"), str(rank)]
            ranks.append(subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        outputs = [process.communicate(timeout=90) for process in ranks]
        assert [process.returncode for process in ranks] == [0, 0], outputs
        found = [json.loads(out) for out, _ in outputs]
        read = server.stats()["gets"] - before
    scans = [err for _, err in outputs if "are read once and indexed: 12 objects" in err]
    assert (len(scans), [each[2] for each in found]) == (1, [48, 48])
    # One scan, and each rank reads the objects of its samples, some of them in two parts of the epoch.
    assert read <= 12 + 2 * 12 + 8, read
    want = opened(folder, seed=7, window=2)
    assert [a + b for a, b in zip(found[0][0], found[1][0], strict=True)] == numbers(
        penstock.Loader(want, global_batch=6, rank=0, world=1)
    )


@pytest.mark.parametrize("seed", [None, 4])
def test_first_epoch_with_a_node_cache_reads_each_object_once(tmp_path, monkeypatch, seed):
    folder = write(tmp_path / "d", [5] * 24, size=3000)
    with Emulator(folder) as server:
        for name, value in server.env.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("PENSTOCK_HEDGE", "0")
        dataset = penstock.open(server.url).fields(**FIELDS).cache(tmp_path / "node", limit_bytes=10**9)
        before = server.stats()["gets"]
        loader = penstock.Loader(dataset if seed is None else dataset.shuffle(seed, 4), batch_size=8)
        assert sorted(n for batch in numbers(loader) for n in batch) == list(range(120))
        assert server.stats()["gets"] - before == 24
        assert dataset.counted().is_indexed


def test_first_epoch_in_two_processes_scans_once(tmp_path, monkeypatch, cache):
    folder = write(tmp_path / "d", [3, 4, 5] * 8)
    script = """
        import json, sys
        import penstock
        dataset = penstock.open(sys.argv[1]).fields(n=penstock.tensor("int64", ()).of("cls")).shuffle(7, 2)
        loader = penstock.Loader(dataset, global_batch=6, rank=int(sys.argv[2]), world=2)
        print(json.dumps([[int(n) for n in batch["n"]] for batch in loader]))
    """
    argv = [sys.executable, "-c", textwrap.dedent(script), str(folder)]
    ranks = [
        subprocess.Popen([*argv, str(rank)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    outputs = [process.communicate(timeout=60) for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0], outputs
    assert sum("are read once and indexed:" in err for _, err in outputs) == 1
    found = [json.loads(out) for out, _ in outputs]
    want = numbers(penstock.Loader(opened(folder, seed=7, window=2), global_batch=6))
    assert [a + b for a, b in zip(*found, strict=True)] == want
    assert [path.suffix for path in (cache / "records").iterdir()] == [".idx"]


def test_first_epoch_of_objects_without_records_is_refused(tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.jsonl").write_bytes(b"\n")
    empty = penstock.open(tmp_path).fields(text=penstock.text())
    for dataset in (empty, empty.shuffle(1)):
        with pytest.raises(ConfigError, match="none of the 2 objects"):
            list(penstock.Loader(dataset, batch_size=2))


def test_process_that_leaves_its_first_epoch_ends_the_scan(tmp_path, cache):
    folder = write(tmp_path / "d", [4] * 400)
    script = """
        import sys
        import penstock
        dataset = penstock.open(sys.argv[1]).fields(n=penstock.tensor("int64", ()).of("cls")).shuffle(1, 2)
        print(len(next(iter(penstock.Loader(dataset, batch_size=4)))["n"]))
    """
    argv = [sys.executable, "-c", textwrap.dedent(script), str(folder)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "4\n")
    assert "Traceback" not in done.stderr
    assert not list((cache / "records").glob("*.lock"))


def test_first_batches_of_a_shuffle_read_single_records_once_its_window_is_counted(tmp_path, cache, monkeypatch):
    # The scan counts the first window only: with all counts, the second part would read whole objects.
    monkeypatch.setattr("penstock.feed.record_scan._MAX_PAUSE_S", 60.0)
    monkeypatch.setattr(RecordScan, "go_on", lambda scan: None)
    folder = write(tmp_path / "d", [12] * 4, size=700_000)  # 8.4 MB each; records are too far apart to be read together
    loader = penstock.Loader(opened(folder, seed=5, window=2), batch_size=1)
    running = iter(loader)
    for _ in range(8):
        next(running)
    # Parts of 1 and of 8 batches have begun, and the last batch of the second is not taken. The window has 24 records.
    assert loader.report()["bytes_in"] < 9.5 * 703_000
    running.close()

# SPDX-License-Identifier: Apache-2.0
"""Tests the node's cache behind a loader: each object is read from the store once, despite kills and full disks.

Also tests bit rot in the cache.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import penstock
from penstock.errors import ConfigError, NotFound
from penstock.feed import node_cache

from .conftest import dataset, samples

if TYPE_CHECKING:
    from pathlib import Path

COUNTS = [1, 2, 1, 3, 1, 1, 2, 1, 1, 1, 2, 1]


@pytest.fixture
def remote(made, emulator, monkeypatch):
    """The dataset in a bucket, and the emulator that counts its requests."""
    server = emulator(folder=made(COUNTS))
    for name, value in server.env.items():
        monkeypatch.setenv(name, value)
    return server


def opened(remote) -> penstock.Dataset:
    return dataset(remote.url).shuffle(seed=3, window=2)


def epochs(loader: penstock.Loader, count: int) -> list[list[list[int]]]:
    return [[samples(batch) for batch in loader] for _ in range(count)]


def gets(remote) -> int:
    return remote.stats()["gets"]


def entries(folder: Path) -> list[Path]:
    return [path for path in (folder / "penstock-cache-1" / "objects").glob("*/*") if path.is_file()]


def test_epochs_after_the_first_ask_the_store_for_nothing(remote, tmp_path):
    ds = opened(remote)
    want = epochs(penstock.Loader(ds.cache(False), batch_size=4), 3)
    before = gets(remote)
    loader = penstock.Loader(ds.cache(tmp_path / "nvme"), batch_size=4)
    assert epochs(loader, 3) == want
    assert gets(remote) - before == len(COUNTS)
    report = loader.report()
    assert (report["cache_misses"], report["cache_hits"], report["bytes_in"]) == (0, len(COUNTS), 0)
    assert "node cache" in str(report)
    # A later run on the same node.
    before = gets(remote)
    assert epochs(penstock.Loader(ds.cache(tmp_path / "nvme"), batch_size=5, rank=0, world=1), 1)
    assert gets(remote) == before


RANK = """
import json, sys
import penstock as ps
url, folder, rank = sys.argv[1:]
ds = ps.open(url).fields(y=ps.tensor("float32", (4,))).shuffle(seed=3, window=2).cache(folder)
loader = ps.Loader(ds, global_batch=4, rank=int(rank), world=2)
print(json.dumps([[[int(y) for y in batch["y"][:, 0]] for batch in loader] for _ in range(2)]))
"""


def test_ranks_of_a_node_fetch_each_object_once_together(remote, tmp_path):
    opened(remote).counted()
    before = gets(remote)
    env = {**os.environ, **remote.env}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, remote.url, str(tmp_path / "nvme"), str(rank)], stdout=subprocess.PIPE, env=env
        )
        for rank in (0, 1)
    ]
    seen = [json.loads(rank.communicate(timeout=60)[0]) for rank in ranks]
    assert gets(remote) - before == len(COUNTS) == len(entries(tmp_path / "nvme"))
    whole = epochs(penstock.Loader(opened(remote).cache(False), global_batch=4), 2)
    assert [[a + b for a, b in zip(one, two, strict=True)] for one, two in zip(*seen, strict=True)] == whole


def test_cache_smaller_than_the_dataset_keeps_its_limit_and_every_sample(remote, tmp_path):
    ds = opened(remote)
    want = epochs(penstock.Loader(ds.cache(False), batch_size=4), 4)
    before = gets(remote)
    loader = penstock.Loader(ds.cache(tmp_path / "nvme", limit_bytes=2500), batch_size=4, read_ahead=0, max_in_flight=1)
    assert epochs(loader, 4) == want
    asked = gets(remote) - before
    assert len(COUNTS) < asked < 4 * len(COUNTS)
    assert 0 < sum(path.stat().st_size for path in entries(tmp_path / "nvme")) <= 2500


def test_entry_that_rots_is_fetched_again(remote, tmp_path):
    ds = opened(remote).cache(tmp_path / "nvme")
    loader = penstock.Loader(ds, batch_size=4)
    first = epochs(loader, 1)
    for number, path in enumerate(sorted(entries(tmp_path / "nvme"))):
        stored = bytearray(path.read_bytes())
        stored[number % len(stored)] ^= 0x40
        path.write_bytes(stored[: -1 - number] if number % 3 == 0 else stored)
    loader.set_epoch(0)
    assert epochs(loader, 1) == first
    assert loader.report()["cache_corrupt"] == len(COUNTS)


def test_folder_that_cannot_be_written_is_said_at_the_start(remote, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(penstock.errors.PenstockError, match="file"):
        next(iter(penstock.Loader(opened(remote).cache(tmp_path / "file"), batch_size=4)))


def test_process_that_is_killed_leaves_a_cache_that_goes_on(remote, tmp_path):
    code = RANK.replace("print(", "next(iter(loader)); import os, signal; os.kill(os.getpid(), signal.SIGKILL); print(")
    killed = subprocess.run(
        [sys.executable, "-c", code, remote.url, str(tmp_path / "nvme"), "0"],
        env={**os.environ, **remote.env},
        check=False,
        timeout=60,
        capture_output=True,
    )
    assert killed.returncode == -signal.SIGKILL
    ds = opened(remote)
    want = epochs(penstock.Loader(ds.cache(False), batch_size=4), 1)
    assert epochs(penstock.Loader(ds.cache(tmp_path / "nvme"), batch_size=4), 1) == want


def test_throttled_store_gives_each_object_once(made, emulator, monkeypatch, tmp_path):
    server = emulator(folder=made([1] * 40), tier="azure-hot", scale=0.001)
    for name, value in server.env.items():
        monkeypatch.setenv(name, value)
    ds = dataset(server.url, records_per_object=1).shuffle(seed=1).cache(tmp_path / "nvme")
    loader = penstock.Loader(ds, batch_size=8)
    assert sorted(sample for batch in epochs(loader, 1)[0] for sample in batch) == list(range(40))
    assert loader.report()["cache_misses"] == 40
    before = gets(server)
    epochs(loader, 2)
    assert gets(server) == before


def test_scratch_folder_is_found_and_used_only_for_what_is_remote_and_fits(tmp_path):
    found = {"SLURM_TMPDIR": str(tmp_path)}
    place = node_cache.resolve(node_cache.AUTO, "s3://b/", 1000, found)
    assert place is not None
    assert place.folder == str(tmp_path)
    assert node_cache.resolve(node_cache.AUTO, "file:///data/", 1000, found) is None
    assert node_cache.resolve(node_cache.AUTO, "s3://b/", 10**18, found) is None
    assert node_cache.resolve(node_cache.cache_request(False, None), "s3://b/", 1000, found) is None
    ours = {**found, "PENSTOCK_SCRATCH": str(tmp_path / "none")}
    again = node_cache.resolve(node_cache.AUTO, "s3://b/", 1000, ours)
    assert again is not None
    assert again.folder == place.folder  # its limit depends on the free space, which other tests change


def test_mounts_of_scratch_disks_are_told_from_memory_and_shares(tmp_path):
    nvme = tmp_path / "nvme0"
    nvme.mkdir()
    lines = f"tmpfs {nvme} tmpfs rw 0 0\nhost:/x {nvme} nfs4 rw 0 0\n/dev/nvme0n1 {nvme} xfs rw 0 0\n/dev/sda1 / ext4 rw 0 0\n"
    assert node_cache._scratch_mount(lines) == str(nvme)
    assert node_cache._scratch_mount(lines.replace(" xfs ", " lustre ")) is None


@pytest.mark.parametrize(("folder", "limit"), [(None, 0), (False, 10)])
def test_cache_that_cannot_be_is_refused(made, folder, limit):
    with pytest.raises(ConfigError):
        dataset(made([1])).cache(folder, limit_bytes=limit)


def test_cache_without_a_scratch_folder_says_what_to_do(made, monkeypatch):
    for name in node_cache._SCRATCH_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(node_cache, "_scratch_mount", lambda _: None)
    with pytest.raises(NotFound) as caught:
        dataset(made([1])).cache().caches()
    assert "PENSTOCK_SCRATCH" in str(caught.value.__notes__)

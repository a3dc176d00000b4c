# SPDX-License-Identifier: Apache-2.0
"""Tests the unindexed mode: records are not counted, and each is delivered once.

Also tests that a state is valid only for its own rank and world size.
"""

from __future__ import annotations

import json
import os
import tarfile

import numpy as np
import pytest

import penstock
from penstock.errors import ConfigError, Corrupt, Unsupported
from penstock.feed.states import for_rank

from .conftest import batches, dataset, write
from .test_formats import INT, tar_bytes


def opened(folder, **arguments):
    return dataset(folder, indexed=False, **arguments)


def flat(found):
    return [sample for batch in found for sample in batch]


@pytest.mark.parametrize("codec", ["gzip", "none"])
@pytest.mark.parametrize("world", [1, 3])
def test_ranks_give_every_record_once_each_epoch_in_another_order(made, caplog, codec, world):
    folder = made([5, 1, 7, 3, 9, 2, 4], codec=codec)
    data = opened(folder).shuffle(seed=8)
    epochs = []
    loaders = [penstock.Loader(data, batch_size=4, rank=rank, world=world) for rank in range(world)]
    for _ in range(2):
        parts = [batches(loader) for loader in loaders]
        assert all(len(batch) == 4 for part in parts for batch in part[:-1])
        epochs.append(flat(flat(parts)))
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(31))
    assert epochs[0] != epochs[1]
    assert not caplog.records, "nothing is scanned, nothing announced"
    report = loaders[0].report()
    assert "only for the same world size" in report["counts"]
    assert "only for the same world size" in str(report)


def test_state_goes_on_exactly_in_its_own_world_and_is_refused_by_others(made):
    folder = made([5, 1, 7, 3, 9])
    data = opened(folder).shuffle(seed=1)
    loader = penstock.Loader(data, batch_size=3, rank=1, world=2)
    whole = batches(loader)
    for stop in range(1, len(whole)):
        first = penstock.Loader(data, batch_size=3, rank=1, world=2)
        iterator = iter(first)
        for _ in range(stop):
            next(iterator)
        state = json.loads(json.dumps(first.state_dict()))
        assert len(json.dumps(state)) < 1024
        assert {"object", "record"} <= state["ranks"]["1"].keys()
        again = penstock.Loader(data, batch_size=3, rank=1, world=2)
        again.load_state_dict(state)
        assert batches(again) == whole[stop:]
        assert again.epoch == 1
    earlier = {name: value for name, value in state.items() if name != "order"}  # the form of earlier versions
    again.load_state_dict(earlier)
    assert batches(again) == whole[stop:]
    with pytest.raises(ConfigError, match="order is 0, but"):
        again.load_state_dict({**state, "order": 0})
    for arguments in ({"rank": 0, "world": 2}, {"rank": 1, "world": 3}):
        with pytest.raises(ConfigError, match="only with the same rank and world"):
            penstock.Loader(data, batch_size=3, **arguments).load_state_dict(state)
    with pytest.raises(ConfigError, match="seed"):
        penstock.Loader(opened(folder).shuffle(seed=2), batch_size=3, rank=1, world=2).load_state_dict(state)
    counted = penstock.Loader(dataset(folder).shuffle(seed=1), batch_size=3, rank=1, world=2)
    with pytest.raises(ConfigError, match="saved from an unindexed dataset"):
        counted.load_state_dict(state)
    with pytest.raises(ConfigError, match="saved from an indexed dataset"):
        loader.load_state_dict(counted.state_dict())
    with pytest.raises(ConfigError, match="record -1 is not valid"):
        loader.load_state_dict({**for_rank(state, 1), "record": -1})


@pytest.mark.parametrize("suffix", ["tar", "tar.gz"])
def test_tars_are_passed_over_as_streams(tmp_path, suffix):
    folder = tmp_path / "d"
    folder.mkdir()
    for number in range(4):
        path = folder / f"part-{number}.{suffix}"
        content = tar_bytes(range(5 * number, 5 * number + 5), format=tarfile.PAX_FORMAT)
        import gzip

        path.write_bytes(gzip.compress(content) if suffix.endswith("gz") else content)
    data = penstock.open(folder, indexed=False).fields(x=INT.of("x.npy"), key=penstock.raw().of("__key__"))
    found = [
        (int(x), bytes(key))
        for b in penstock.Loader(data, batch_size=6)
        for x, key in zip(b["x"][:, 0, 0], b["key"], strict=True)
    ]
    assert [x for x, _ in found] == list(range(20))
    assert all(key.endswith(f"sample-{x:04d}".encode()) for x, key in found)


def test_object_larger_than_a_window_is_read_in_stretches_and_within_the_budget(tmp_path):
    folder = tmp_path / "d"
    folder.mkdir()
    from penstock import _native

    count, side = 80, 1 << 20
    content = b"".join(_native.encode_tfrecord({"x": np.full(side, i, "u1").tobytes()}) for i in range(count))
    (folder / "a.tfrecord").write_bytes(content)
    data = penstock.open(folder, indexed=False).fields(x=penstock.tensor("uint8", (side,))).shuffle(seed=3)
    loader = penstock.Loader(data, batch_size=8, memory_bytes=320 << 20, threads=2)
    order = [int(i) for batch in loader for i in batch["x"][:, 17]]
    assert sorted(order) == list(range(count))
    # Records are shuffled inside a window (32 MiB, minus the record that it ends in and the one before), not beyond it.
    assert sorted(order[:30]) == list(range(30)) != order[:30]
    iterator = iter(loader)
    for _ in range(6):
        next(iterator)
    state = loader.state_dict()
    fresh = penstock.Loader(data, batch_size=8, memory_bytes=320 << 20, threads=2)
    fresh.load_state_dict(state)
    second = [int(i) for batch in iterator for i in batch["x"][:, 17]]
    assert [int(i) for batch in fresh for i in batch["x"][:, 17]] == second


def test_what_needs_counts_says_so(made):
    folder = made([2, 3])
    data = opened(folder)
    loader = penstock.Loader(data, batch_size=2)
    with pytest.raises(TypeError, match="no length"):
        len(loader)
    for wrong in (lambda: data.samples, lambda: penstock.mix({data: 1, opened(folder): 1}).samples, data.counted):
        with pytest.raises(ConfigError, match="indexed=False"):
            wrong()
    for step in (lambda: data.take(1), lambda: data.map(lambda x: x)):
        with pytest.raises(ConfigError, match="requires sample positions"):
            penstock.Loader(step(), batch_size=1)
    with pytest.raises(ConfigError, match="only within each object"):
        data.shuffle(seed=1, window=4)
    with pytest.raises(ConfigError, match="pad"):
        penstock.Loader(data, batch_size=2, tail="pad")
    with pytest.raises(ConfigError, match=r"must be a multiple of the number of ranks .* \(got 3 for 2 ranks\)"):
        penstock.Loader(data, global_batch=3, rank=0, world=2)
    with pytest.raises(ConfigError, match="does not support unindexed"):
        next(iter(penstock.Loader(data.cache(folder), batch_size=1)))
    with pytest.raises(ConfigError, match="records_per_object"):
        opened(folder, records_per_object=1)
    (folder / "a.bin").write_bytes(bytes(8))
    fixed = penstock.open(
        folder / "a.bin", format=penstock.formats.fixed(x=penstock.tensor("int32", ())), indexed=False
    )
    with pytest.raises(Unsupported, match="only TFRecord, tar and JSON lines"):
        next(iter(penstock.Loader(fixed, batch_size=1)))


def test_tails_and_bad_records(made):
    folder = made([3, 3, 3], codec="none")
    assert [len(b) for b in batches(penstock.Loader(opened(folder), batch_size=4, tail="drop"))] == [4, 4]
    second = sorted(folder.iterdir())[1]
    stat, content = second.stat(), bytearray(second.read_bytes())
    content[-1] ^= 1
    second.write_bytes(content)
    os.utime(second, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    seen = []
    with pytest.raises(Corrupt, match=r"part-0001\.tfrecord has a damaged record 2"):
        seen.extend(flat([list(b["y"][:, 0]) for b in penstock.Loader(opened(folder), batch_size=2)]))
    loader = penstock.Loader(opened(folder), batch_size=2, on_error="skip")
    assert flat(batches(loader)) == [0, 1, 2, 3, 4, 6, 7, 8]
    assert loader.report()["skipped"] == 1
    with pytest.raises(ConfigError, match="skip or raise"):
        next(iter(penstock.Loader(opened(folder), batch_size=2, on_error="substitute")))


def test_break_starts_the_same_epoch_again_and_processes_are_left_alone(tmp_path):
    data = opened(write(tmp_path / "d", [4] * 6)).shuffle(seed=2)
    loader = penstock.Loader(data, batch_size=5)
    first = next(iter(loader))["y"][:, 0].tolist()
    assert next(iter(loader))["y"][:, 0].tolist() == first
    assert len(list(loader)) == 5
    assert loader.epoch == 1
    import torch

    from penstock.torch import Loader

    batch = next(iter(Loader(data, batch_size=2)))
    assert isinstance(batch["x"], torch.Tensor)

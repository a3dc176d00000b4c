# SPDX-License-Identifier: Apache-2.0
"""Tests the loader: epochs, states, arguments and the memory of batches."""

from __future__ import annotations

import gc
import json
import pickle
import socket
import threading
from itertools import chain

import numpy as np
import pytest

import penstock
from penstock.errors import BudgetExceeded, ConfigError, Unsupported
from penstock.feed import TensorSpec

from .conftest import SHAPE, batches, dataset, samples


@pytest.fixture
def shuffled(made):
    return dataset(made([1] * 20)).shuffle(17)


def test_loader_next_iteration_is_the_next_epoch(shuffled):
    loader = penstock.Loader(shuffled, batch_size=6)
    first, second = batches(loader), batches(loader)
    assert loader.epoch == 2
    assert first != second
    assert sorted(chain.from_iterable(first)) == sorted(chain.from_iterable(second))
    loader.set_epoch(0)
    assert batches(loader) == first


def test_loader_after_a_break_starts_the_same_epoch_again(shuffled):
    loader = penstock.Loader(shuffled, batch_size=6)
    want = batches(penstock.Loader(shuffled, batch_size=6))
    for batch in loader:
        assert samples(batch) == want[0]
        break
    assert loader.state_dict()["cursor"] == 6  # the delivered samples, until a new iterator starts
    assert batches(loader) == want


def test_loader_goes_on_from_a_state_once_and_set_epoch_of_the_same_epoch_keeps_it(shuffled):
    want = batches(penstock.Loader(shuffled, batch_size=6))
    loader = penstock.Loader(shuffled, batch_size=6)
    walk = iter(loader)
    next(walk)
    state = loader.state_dict()
    other = penstock.Loader(shuffled, batch_size=6)
    other.load_state_dict(state)
    assert other.state_dict() == state
    other.set_epoch(0)
    for batch in other:
        assert samples(batch) == want[1]
        break
    assert batches(other) == want  # the loaded state applied to one iterator only


def test_loader_state_of_a_finished_pass_ends_its_epoch(shuffled):
    loader = penstock.Loader(shuffled, batch_size=10)
    walk = iter(loader)
    next(walk), next(walk)
    state = loader.state_dict()
    assert (state["epoch"], state["cursor"]) == (0, 20)
    other = penstock.Loader(shuffled, batch_size=10)
    other.load_state_dict(state)
    assert batches(other) == []
    assert other.epoch == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [({"fingerprint": "00"}, "fingerprint"), ({"seed": 18}, "17"), ({"version": 9}, "9"), ({"cursor": 21}, "21")],
)
def test_loader_state_of_something_else_is_refused_with_both_values(shuffled, change, words):
    loader = penstock.Loader(shuffled, batch_size=6)
    with pytest.raises(ConfigError, match=words):
        loader.load_state_dict({**loader.state_dict(), **change})


def test_loader_has_one_iterator_at_a_time(shuffled):
    loader = penstock.Loader(shuffled, batch_size=6)
    older = iter(loader)
    next(older)
    newer = iter(loader)
    with pytest.raises(ConfigError, match="newer iterator"):
        next(older)
    assert len(list(newer)) == 4


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "exactly one"),
        ({"batch_size": 2, "global_batch": 2}, "exactly one"),
        ({"batch_size": 0}, "0 is not a valid batch size"),
        ({"batch_size": 2**64}, "is not a valid batch size"),
        ({"batch_size": 8.0}, r"batch_size: must be an integer \(got 8.0\)"),
        ({"batch_size": 2, "threads": "2"}, r"threads: must be an integer \(got '2'\)"),
        ({"batch_size": 2, "rank": 1}, "both rank and world"),
        ({"batch_size": 2, "rank": 2, "world": 2}, "got 2, with a world of 2"),
        ({"batch_size": 2, "tail": "curly"}, "curly"),
        ({"batch_size": 2, "memory_bytes": 0}, "memory_bytes"),
    ],
)
def test_loader_arguments_that_cannot_be_are_refused(shuffled, arguments, words):
    with pytest.raises(ConfigError, match=words):
        penstock.Loader(shuffled, **arguments)


def test_dataset_without_a_loader_names_the_loader(shuffled):
    with pytest.raises(Unsupported, match="neither iteration nor indexing") as caught:
        next(iter(shuffled))
    assert "penstock.Loader(dataset" in caught.value.hint


def test_loader_epoch_that_cannot_be_is_refused(shuffled):
    loader = penstock.Loader(shuffled, batch_size=6)
    for epoch in (-1, 2**64):
        with pytest.raises(ConfigError, match="not within 0"):
            loader.set_epoch(epoch)
    with pytest.raises(ConfigError, match="is not a whole number from 0"):
        loader.load_state_dict({**loader.state_dict(), "epoch": 2**64})
    with pytest.raises(ConfigError, match=r"epoch: must be an integer \(got 1.5\)"):
        loader.set_epoch(1.5)
    with pytest.raises(ConfigError, match=r"must be a dict that state_dict\(\) returned \(got a str\)"):
        loader.load_state_dict("{}")
    with pytest.raises(ConfigError, match=r"seed: must be an integer \(got 1.5\)"):
        loader.dataset.shuffle(1.5)


def test_loader_state_is_json_whatever_integers_were_given(made):
    opened = dataset(made([1] * 4)).shuffle(np.int64(7), window=np.int32(2))
    loader = penstock.Loader(opened, batch_size=np.int64(2), memory_bytes=np.int64(1 << 26))
    loader.set_epoch(np.int64(3))
    state = loader.state_dict()
    assert json.loads(json.dumps(state)) == state
    assert (state["seed"], state["window"], state["epoch"]) == (7, 2, 3)


def test_loader_batch_larger_than_the_dataset_is_the_whole_epoch(made):
    opened = dataset(made([1] * 5))
    assert batches(penstock.Loader(opened, batch_size=10**9)) == [[0, 1, 2, 3, 4]]
    assert batches(penstock.Loader(opened, batch_size=10**9, tail="drop")) == []


def test_iterator_shared_by_threads_gives_each_batch_once(shuffled):
    loader = penstock.Loader(shuffled, batch_size=1)
    walk, found, errors = iter(loader), [], []

    def pull() -> None:
        try:
            found.extend(samples(batch)[0] for batch in walk)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=pull) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (sorted(found), errors) == (list(range(20)), [])
    assert (loader.epoch, loader.state_dict()["cursor"]) == (1, 0)


def test_iterator_ended_while_a_thread_waits_in_it_says_so_and_the_epoch_is_not_over(made, monkeypatch):
    listing = penstock.open(made([1] * 3)).source.manifest().decode()
    manifest = made([]) / "manifest.json"
    manifest.write_text(listing.replace(json.loads(listing)["url"], "s3://frames/d/"))
    errors: list[Exception] = []
    with socket.create_server(("127.0.0.1", 0)) as server:  # accepts connections, but never responds
        endpoint = f"http://127.0.0.1:{server.getsockname()[1]}"
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"):
            monkeypatch.setenv(name, "us-east-1")
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        opened = dataset("s3://frames/d/", manifest=manifest, records_per_object=1)
        loader = penstock.Loader(opened, batch_size=1)
        walk = iter(loader)

        def pull() -> None:
            try:
                next(walk)
            except Exception as error:
                errors.append(error)

        waiting = threading.Thread(target=pull)
        waiting.start()
        while not walk._turn.locked():  # until the thread holds the lock
            assert waiting.is_alive()
        assert loader.report()["samples"] == 0  # a report from another thread neither waits nor fails
        loader.set_epoch(5)
        waiting.join(60)
        assert not waiting.is_alive()
    assert [str(error) for error in errors] == ["iterator: ended because set_epoch(5) was called"]
    assert loader.epoch == 5


@pytest.mark.parametrize("dtype", ["int16", np.int16, np.dtype("int16"), "torch.int16"])
def test_tensor_takes_the_dtypes_of_other_libraries(dtype):
    assert penstock.tensor(dtype, np.zeros((3, 2)).shape) == TensorSpec("int16", (3, 2))
    assert penstock.tensor(dtype, (np.int64(3),)).shape == (3,)


@pytest.mark.parametrize("shape", [4, (-1,), (1.5,), ("3",)])
def test_tensor_shape_that_cannot_be_is_refused(shape):
    with pytest.raises(ConfigError, match="tuple of integers"):
        penstock.tensor("int16", shape)


def test_loader_without_fields_takes_those_of_the_first_record(made):
    opened = penstock.open(made([2, 2]))
    assert "schema()" in repr(opened)
    schema = opened.schema()
    assert schema["y"] == penstock.tensor("float32", (4,))
    assert "float_list of 4 values" in str(schema)
    assert "y float32 [4]" in repr(opened)
    batch = next(iter(penstock.Loader(opened, batch_size=3)))
    assert batch["y"].tolist() == [[sample] * 4 for sample in (0.0, 1.0, 2.0)]
    assert [bytes(value) for value in batch["x"]] == [np.full(SHAPE, sample, "<i2").tobytes() for sample in range(3)]


def test_loader_unknown_dtype_is_refused(made):
    opened = penstock.open(made([1])).fields(x=penstock.tensor("int12", (2,)))
    with pytest.raises(ConfigError, match="int12"):
        iter(penstock.Loader(opened, batch_size=1))


def test_loader_budget_too_small_is_refused_with_its_numbers(shuffled):
    with pytest.raises(BudgetExceeded) as caught:
        iter(penstock.Loader(shuffled, batch_size=6, memory_bytes=5000))
    assert caught.value.budget == 5000
    assert caught.value.need > 5000


def test_loader_rank_comes_from_the_launcher(shuffled, monkeypatch):
    for name, value in {"RANK": 1, "WORLD_SIZE": 3, "LOCAL_RANK": 1, "LOCAL_WORLD_SIZE": 3}.items():
        monkeypatch.setenv(name, str(value))
    loader = penstock.Loader(shuffled, batch_size=2)
    assert (loader.rank, loader.world, loader.global_batch) == (1, 3, 6)


def test_batches_that_are_kept_stay_what_they_were_and_are_the_holders_to_write(shuffled):
    loader = penstock.Loader(shuffled, batch_size=3)
    kept = list(loader) + list(loader)
    want = batches(penstock.Loader(shuffled, batch_size=3))
    assert [samples(batch) for batch in kept[:7]] == want
    kept[0]["x"][:] = -1
    del loader
    gc.collect()
    assert (kept[0]["x"] == -1).all()
    assert [samples(batch) for batch in kept[1:7]] == want[1:]


def test_batch_arrays_share_aligned_memory_and_hand_over_by_dlpack(shuffled):
    batch = next(iter(penstock.Loader(shuffled, batch_size=3)))
    assert all(array.ctypes.data % 256 == 0 and not array.flags.owndata for array in batch.values())
    run = penstock.Loader(shuffled, batch_size=3)._native_feed().start(0, 0)
    tensor = run.next()[0]["x"]
    assert tensor.__dlpack_device__() == (1, 0)
    both = [np.asarray(tensor), np.from_dlpack(tensor)]
    del tensor, run
    gc.collect()
    assert both[0].ctypes.data == both[1].ctypes.data
    assert (both[0] == batch["x"]).all()


def test_dlpack_capsules_nobody_takes_are_freed(shuffled):
    tensor = penstock.Loader(shuffled, batch_size=3)._native_feed().start(0, 0).next()[0]["x"]
    assert "dltensor_versioned" in repr(tensor.__dlpack__(max_version=(1, 0)))
    assert "dltensor" in repr(tensor.__dlpack__())
    with pytest.raises(BufferError):
        tensor.__dlpack__(copy=True)
    with pytest.raises(BufferError):
        tensor.__dlpack__(dl_device=(2, 0))


def test_loader_and_dataset_pickle_without_connections(shuffled):
    loader = penstock.Loader(shuffled, batch_size=6)
    walk = iter(loader)
    next(walk)
    copy = pickle.loads(pickle.dumps(loader))
    assert copy.state_dict() == loader.state_dict()
    again = pickle.loads(pickle.dumps(shuffled))
    assert (again.fingerprint, again.samples, again.counted().rung) == (shuffled.fingerprint, 20, "sizes")
    assert batches(penstock.Loader(again, batch_size=6)) == batches(penstock.Loader(shuffled, batch_size=6))


@pytest.mark.parametrize("tail", ["ragged", "drop", "pad"])
def test_loader_whose_last_batch_was_taken_goes_on_to_the_next_epoch(made, tail):
    """Lightning takes exactly len(loader) batches, and never reaches the end of the iterator."""
    loader = penstock.Loader(dataset(made([1] * 10)).shuffle(2), batch_size=4, tail=tail)
    epochs = []
    for _ in range(3):
        walk = iter(loader)
        epochs.append([samples(next(walk)) for _ in range(len(loader))])
    other = penstock.Loader(dataset(loader.dataset.url).shuffle(2), batch_size=4, tail=tail)
    assert epochs == [batches(other) for _ in range(3)]
    loader.set_epoch(2)  # epoch 2 again
    assert batches(loader) == epochs[2]
    walk = iter(loader)
    next(walk)
    assert loader.epoch == 3
    assert batches(loader) == batches(other)  # after a broken pass, the same epoch again

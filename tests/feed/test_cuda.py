# SPDX-License-Identifier: Apache-2.0
"""Tests batches on a CUDA device: with a stand-in that copies late, and with a real GPU if torch finds one."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import pickle
import queue
import threading
import time
import weakref

import numpy as np
import pytest
import torch

import penstock
from penstock import _native
from penstock.errors import ConfigError, Corrupt, Unsupported
from tests.feed import mapped

from .conftest import SHAPE, batches, dataset

pytestmark = pytest.mark.needs_torch


class Late:
    """Stand-in for a device whose copies start when the gate opens, and are slow.

    A copy from a slot that was reused too early therefore has another batch's bytes.
    """

    def __init__(self, _device=None):
        self.gate = threading.Event()
        self.gate.set()
        self.begun, self.done, self.given, self.waited = 0, 0, 0, []
        self.live, self.max_live = 0, 0
        self.refuses_at = None
        self._jobs = queue.SimpleQueue()
        self._turn = threading.Condition()
        threading.Thread(target=self._work, daemon=True).start()

    def __str__(self):
        return "a stand-in"

    def _work(self):
        while True:
            there, address = self._jobs.get()
            self.gate.wait()
            time.sleep(0.002)
            ctypes.memmove(there.data_ptr(), address, there.nbytes)
            del there
            with self._turn:
                self.done += 1
                self._turn.notify_all()

    def pinned(self, column):
        return torch.from_dlpack(column)

    def copying(self):
        return contextlib.nullcontext()

    def copy(self, here):
        if self.begun == self.refuses_at:
            self.refuses_at = None
            raise torch.cuda.OutOfMemoryError("no memory there")
        there = torch.full_like(here, -7)
        self.begun += 1
        self.live += 1
        self.max_live = max(self.max_live, self.live)
        weakref.finalize(there, self._gone)
        # Passes only the address: like a real device, it does not keep the host memory from being reused.
        self._jobs.put((there, here.data_ptr()))
        return there

    def _gone(self):
        self.live -= 1

    def copies_begun(self):
        return _Copied(self, self.begun)

    def wait(self):
        self.copies_begun().synchronize()

    def give(self, tensors, copied):
        copied.synchronize()  # this thread acts as the consumer's stream
        self.given += 1
        return _Given(self, self.given - 1)


class _Copied:
    def __init__(self, device, count):
        self._device, self._count = device, count

    def query(self):
        return self._device.done >= self._count

    def synchronize(self):
        with self._device._turn:
            assert self._device._turn.wait_for(self.query, 20)


class _Given:
    """Position of the consumer's stream when it was given a batch; synchronizing with it is recorded."""

    def __init__(self, device, number):
        self._device, self._number = device, number

    def query(self):
        return True

    def synchronize(self):
        time.sleep(0.01)
        self._device.waited.append(self._number)


class Ready:
    """A run that always reports its next batch as ready; the look-ahead then waits until it is."""

    def __init__(self, run):
        self._run = run

    def __getattr__(self, name):
        return getattr(self._run, name)

    def is_ready(self):
        return True


def ready(loader):
    walk = iter(loader)
    walk._run = Ready(walk._run)
    return walk


_DEVICES = ["stand-in", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.fixture
def late(monkeypatch):
    """The devices that loaders have created so far."""
    made = []

    def make(device):
        made.append(Late(device))
        return made[-1]

    monkeypatch.setattr("penstock.feed.torch.Cuda", make)
    return made


@pytest.fixture(params=_DEVICES)
def device(request):
    if request.param == "stand-in":
        request.getfixturevalue("late")


def on_device(data, **arguments):
    return penstock.torch.Loader(data, device="cuda", **arguments)


def numbers(batch):
    x, y = batch["x"].cpu(), batch["y"].cpu()
    assert x.shape == (len(y), *SHAPE)
    assert (x == x[:, :1, :1]).all()
    assert (x[:, 0, 0] == y[:, 0]).all()
    return [int(value) for value in y[:, 0]]


@pytest.mark.usefixtures("device")
def test_batches_on_the_device_are_the_loader_s_and_stay_theirs(made):
    data = dataset(made([1] * 60)).shuffle(5)
    plain, loader = penstock.Loader(data, batch_size=3), on_device(data, batch_size=3, read_ahead=1)
    for _ in range(3):
        want = batches(plain)
        kept = list(loader)
        assert [numbers(batch) for batch in kept] == want
    assert loader.report()["complete"]
    assert loader.report()["device"] in {"a stand-in", "cuda:0, 100 % of the bytes from registered memory"}


@pytest.mark.usefixtures("device")
def test_ragged_and_byte_fields_and_functions_results_go_as_they_do_on_the_cpu(tmp_path):
    (tmp_path / "a.tfrecord").write_bytes(
        b"".join(_native.encode_tfrecord({"n": np.full(at, at, "f4"), "b": b"%d" % at}) for at in range(8))
    )
    opened = penstock.open(str(tmp_path)).fields(n=penstock.ragged("float32"), b=penstock.raw())
    (batch,) = on_device(opened, batch_size=8)
    assert batch["n"].values.cpu().tolist() == [float(at) for at in range(8) for _ in range(at)]
    assert batch["n"].offsets.cpu().tolist() == [0, 0, 1, 3, 6, 10, 15, 21, 28]
    assert [bytes(each) for each in batch["b"]] == [b"%d" % at for at in range(8)]


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("workers", [0, 1])
def test_functions_results_reach_the_device(made, workers):
    loader = on_device(dataset(made([1] * 40)).map(mapped.plain, workers=workers), batch_size=3)
    for _ in range(2):
        got = [batch["y"].cpu().tolist() for batch in loader]
        assert [value for batch in got for value in batch] == [2 * at for at in range(40)]


def test_a_slot_is_used_again_only_when_its_copies_are_done(made, late):
    loader = on_device(dataset(made([1] * 40)), batch_size=1, read_ahead=1)
    loader._prepare()
    (device,), copies = late, loader._delivery()
    run = loader._native_feed().start(0, 0)

    def addresses(settles):
        for _ in range(10):
            tensors = run.next()[0]
            yield torch.from_dlpack(tensors["x"]).data_ptr()
            copies.adapt(tensors)
            if settles:
                device.wait()

    device.gate.clear()
    assert len(set(addresses(settles=False))) == 10
    device.gate.set()
    device.wait()
    assert len(set(addresses(settles=True))) <= 6
    copies.end()
    run.close()


def test_the_next_batch_is_on_its_way_before_this_one_is_worked_on(made, late):
    loader = on_device(dataset(made([1] * 12)), batch_size=2)
    walk = ready(loader)
    for number in range(5):
        assert numbers(next(walk)) == [2 * number, 2 * number + 1]
        assert late[0].begun == 2 * (number + 2)  # each batch has two fields
        assert loader.state_dict()["cursor"] == 2 * (number + 1)
    state = loader.state_dict()
    del walk
    resumed = on_device(loader.dataset, batch_size=2)
    resumed.load_state_dict(state)
    assert [numbers(batch) for batch in ready(resumed)] == [[10, 11]]


def is_gone_when_dropped(walks):
    """True if dropping the list frees the pass at once, without the garbage collector."""
    left = weakref.ref(walks[0])
    gc.disable()
    try:
        walks.clear()
        return left() is None
    finally:
        gc.enable()


def test_an_error_that_was_met_ahead_waits_for_its_turn_and_holds_nothing(made, late):
    folder = made([1] * 8, codec="none")
    damaged = folder / "part-0005.tfrecord"
    damaged.write_bytes(damaged.read_bytes()[:-3] + b"???")
    loader = on_device(dataset(folder), batch_size=1)
    walks = [ready(loader)]
    for number in range(5):
        assert numbers(next(walks[0])) == [number]
    assert walks[0]._ahead.exception() is not None
    assert is_gone_when_dropped(walks)
    walk = ready(loader)
    for number in range(5):
        assert numbers(next(walk)) == [number]
    with pytest.raises(Corrupt, match="part-0005"):
        next(walk)
    assert next(walk, None) is None


def test_a_device_without_memory_ends_the_pass_and_what_it_had_begun_stays_untouched(made, late):
    loader = on_device(dataset(made([1] * 20)), batch_size=2, read_ahead=1)
    walk = iter(loader)
    kept = [next(walk)]
    late[0].gate.clear()
    late[0].refuses_at = late[0].begun + 1  # fails at the second field of a batch
    threading.Timer(0.3, late[0].gate.set).start()
    with pytest.raises(torch.cuda.OutOfMemoryError):
        kept.extend(walk)
    assert [numbers(batch) for batch in kept] == [[2 * at, 2 * at + 1] for at in range(len(kept))]
    assert late[0].done == late[0].begun
    assert loader.state_dict()["cursor"] == 2 * len(kept)
    # The same epoch again, complete.
    assert len(list(loader)) == 10


def test_the_consumer_is_two_steps_ahead_of_the_device_and_no_more(made, late):
    loader = on_device(dataset(made([1] * 8)), batch_size=1)
    walk = ready(loader)
    for number in range(8):
        next(walk)
        assert late[0].waited == list(range(max(0, number - 1)))
    assert next(walk, None) is None
    # The time that the device took counts as the consumer's compute time.
    assert loader.report()["compute_s"] >= 6 * 0.01
    # The same holds for passes that are shorter than that, or broken off.
    for _ in range(4):
        next(iter(loader))
    assert late[0].waited == list(range(10))


def test_the_device_holds_a_few_batches(made, late):
    for batch in ready(on_device(dataset(made([1] * 30)), batch_size=1)):
        assert len(batch) == 2
    assert late[0].max_live == 2 * 3  # two fields of three batches: the loop's last one, this one and one ahead


def test_a_pass_that_is_broken_off_waits_for_its_copies(made, late, monkeypatch):
    loader = on_device(dataset(made([1] * 20)), batch_size=2)
    walk = ready(loader)
    copy, gate = late[0].copy, late[0].gate

    def stops_at_the_second_batch(here):
        if late[0].begun == 2:
            gate.clear()
        return copy(here)

    monkeypatch.setattr(late[0], "copy", stops_at_the_second_batch)
    next(walk)
    assert (late[0].done, late[0].begun) == (2, 4)
    threading.Timer(0.2, gate.set).start()
    del walk
    assert late[0].done == 4
    assert [numbers(batch) for batch in loader] == [[2 * at, 2 * at + 1] for at in range(10)]


def test_a_pass_that_another_thread_ends_gives_nothing_that_is_not_its_own(made, late):
    loader = on_device(dataset(made([1] * 200)), batch_size=2, read_ahead=1)
    wrong, until = [], time.monotonic() + 2

    def steps(walk):
        with contextlib.suppress(ConfigError):  # raised when a newer iterator exists
            for batch in walk:
                try:
                    numbers(batch)
                except AssertionError:
                    wrong.append(batch)

    threads = []
    while time.monotonic() < until:
        threads.append(threading.Thread(target=steps, args=(iter(loader),)))
        threads[-1].start()
        time.sleep(0.001 * (len(threads) % 17))
    loader.set_epoch(loader.epoch + 1)
    for each in threads:
        each.join()
    assert not wrong
    assert late[0].done == late[0].begun


def test_an_end_waits_for_copies_that_another_thread_is_beginning(made, late, monkeypatch):
    loader = on_device(dataset(made([1] * 4)), batch_size=2)
    loader._prepare()
    (device,), copies = late, loader._delivery()
    run = loader._native_feed().start(0, 0)
    begins, goes_on, seen = threading.Event(), threading.Event(), []

    def pinned(column):
        begins.set()
        goes_on.wait(20)
        return torch.from_dlpack(column)

    def end():
        copies.end()
        seen.append((device.begun, device.done))

    monkeypatch.setattr(device, "pinned", pinned)
    threads = [threading.Thread(target=copies.adapt, args=(run.next()[0],)), threading.Thread(target=end)]
    threads[0].start()
    assert begins.wait(20)
    threads[1].start()
    time.sleep(0.1)
    goes_on.set()
    for each in threads:
        each.join()
    assert seen == [(2, 2)]
    with pytest.raises(ConfigError, match="already ended"):
        copies.adapt(run.next()[0])
    run.close()


def test_an_end_within_the_beginning_of_copies_leaves_none_alone(made, late, monkeypatch):
    """Simulates a signal handler that loads another state into the loader while copies start."""
    loader = on_device(dataset(made([1] * 4)), batch_size=2)
    loader._prepare()
    (device,), copies = late, loader._delivery()
    run = loader._native_feed().start(0, 0)
    copy, left = device.copy, []

    def ended_within(here):
        copies.end()
        return copy(here)

    def adapts():
        copies.adapt(run.next()[0])
        left.append(device.begun - device.done)

    monkeypatch.setattr(device, "copy", ended_within)
    thread = threading.Thread(target=adapts, daemon=True)
    thread.start()
    thread.join(20)
    assert left == [0]
    run.close()


def test_a_step_that_was_superseded_while_it_waited_moves_nothing(made, late, monkeypatch):
    loader = on_device(dataset(made([1] * 40)), batch_size=2)
    walk = iter(loader)
    for _ in range(3):
        next(walk)
    state = {**loader.state_dict(), "cursor": 20}
    waits, goes_on, result = threading.Event(), threading.Event(), []

    def synchronize(_given):
        waits.set()
        goes_on.wait(20)

    monkeypatch.setattr(_Given, "synchronize", synchronize)

    def step():
        try:
            next(walk)
        except ConfigError as error:
            result.append(str(error))

    thread = threading.Thread(target=step)
    thread.start()
    assert waits.wait(20)
    loader.load_state_dict(state)
    goes_on.set()
    thread.join()
    assert result == ["iterator: ended because load_state_dict was called"]
    assert loader.state_dict()["cursor"] == 20


def test_an_interrupt_of_a_pass_s_end_leaves_no_copy_alone(made, late):
    loader = on_device(dataset(made([1] * 20)), batch_size=2)
    walk = ready(loader)
    next(walk)
    run, late[0].gate = walk._run, threading.Event()
    begun = late[0].begun

    class Interrupted:
        def close(self):
            run.close()
            raise KeyboardInterrupt

    walk._run = Interrupted()
    threading.Timer(0.2, late[0].gate.set).start()
    with pytest.raises(KeyboardInterrupt):
        walk.close()
    assert late[0].done == begun


def test_an_error_met_ahead_holds_nothing_where_it_has_a_cause_either(made, late):
    loader = on_device(dataset(made([1] * 8)).map(mapped.raises_at_7, workers=1), batch_size=1)
    walks = [ready(loader)]
    next(walks[0])
    while walks[0]._ahead is None or walks[0]._ahead.exception() is None:
        next(walks[0])
    assert walks[0]._ahead.exception().__context__ is not None
    assert is_gone_when_dropped(walks)


def test_a_loader_that_has_run_on_a_device_pickles(made, late):
    loader = on_device(dataset(made([1] * 4)), batch_size=2)
    list(loader)
    assert len(list(pickle.loads(pickle.dumps(loader)))) == 2
    assert len(late) == 2


@pytest.mark.parametrize(("count", "output"), [(0, "sees no CUDA devices"), (2, "sees 2 CUDA devices")])
def test_gpu_missing_device_raises(made, monkeypatch, count, output):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    with pytest.raises(Unsupported, match=f"{output}, but cuda:3 was requested") as caught:
        iter(penstock.torch.Loader(dataset(made([1])), batch_size=1, device="cuda:3"))
    assert "nvidia-smi" in caught.value.hint

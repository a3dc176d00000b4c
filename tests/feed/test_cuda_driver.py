# SPDX-License-Identifier: Apache-2.0
"""Tests, with a stand-in CUDA driver, that batch memory is registered once and released in time, or used unregistered.

It is used unregistered if the driver reports an error.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from penstock import _native

_REGISTERS = """
import ctypes, json, os, sys
import numpy as np, penstock
from penstock import _native
from tests.feed.conftest import dataset

driver = ctypes.CDLL("libcuda.so.1")
device = _native.CudaDevice(0)
loader = penstock.Loader(dataset(sys.argv[1]), batch_size=3, read_ahead=2)
counts = []
for epoch in range(4):
    run = loader._native_feed().start(epoch, 0)
    while (got := run.next()) is not None:
        for tensor in got[0].values():
            assert device.hold(tensor)
            array = np.asarray(tensor)
            assert driver.standin_is_registered(ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.nbytes))
        kept = tensor, array
    run.close()
    counts.append(open(os.environ["STANDIN_LOG"]).read().count("+"))
assert array.any()
child = os.fork()
if child == 0:
    # What a GPU reads is never made a copy on write: a child has pages of its own, and registers nothing.
    refused = False
    try:
        device.hold(tensor)
    except penstock.errors.Bug:
        refused = True
    fine = refused and not array.any()
    del got, kept, tensor, array, loader, device
    os._exit(0 if fine else 1)
assert os.waitpid(child, 0)[1] == 0
assert array.any()
del loader, run, device
print(json.dumps({"counts": counts, "held": int(open(os.environ["STANDIN_HELD"]).read())}))
del got, kept, tensor, array
print(open(os.environ["STANDIN_HELD"]).read())
"""


def _with_driver(driver, tmp_path, script, *arguments, **env):
    return subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        env={
            **os.environ,
            "LD_LIBRARY_PATH": str(driver),
            "STANDIN_LOG": str(tmp_path / "log"),
            "STANDIN_HELD": str(tmp_path / "held"),
            **env,
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_memory_is_registered_once_and_let_go_before_it_is_given_back(made, driver, tmp_path):
    ran = _with_driver(driver, tmp_path, _REGISTERS, made([1] * 90))
    assert ran.returncode == 0, ran.stderr
    result, left = ran.stdout.splitlines()
    counts = json.loads(result)["counts"]
    # 120 batches need only as many slots as are in use at once: three in flight, one in `kept`, one or two being
    # returned.
    assert 4 <= counts[0] <= counts[-1] <= 8
    # The last batch's slot and the device stay alive as long as a tensor uses them.
    assert (json.loads(result)["held"], left) == (2, "0")
    log = (tmp_path / "log").read_text()
    assert log.count("+") == log.count("-")


_IS_REFUSED = """
import sys, penstock
from penstock import _native
from tests.feed.conftest import dataset

for number in (1, 0):
    try:
        device = _native.CudaDevice(number)
        loader = penstock.Loader(dataset(sys.argv[1]), batch_size=1)
        device.hold(loader._native_feed().start(0, 0).next()[0]["x"])
    except penstock.errors.PenstockError as error:
        print(f"{type(error).__name__}: {error}")
"""


def test_a_driver_that_refuses_is_quoted(made, driver, tmp_path):
    ran = _with_driver(driver, tmp_path, _IS_REFUSED, made([1]), STANDIN_REFUSES="1")
    assert ran.stdout.splitlines() == [
        "Unsupported: registering memory with CUDA device 1 is not supported by this machine: what a stand-in says",
        "SystemFault: CUDA device 0: the memory of a batch cannot be registered: what a stand-in says",
    ], ran.stderr
    assert (tmp_path / "held").read_text() == "0"


_ONE_SIZE = """
import sys, penstock
from penstock import _native

device = _native.CudaDevice(0)
opened = penstock.open(sys.argv[1])
ragged = penstock.Loader(opened.fields(n=penstock.ragged("float32")), batch_size=4)
tight = opened.fields(n=penstock.tensor("float32", (1 << 18,)))
fixed = [penstock.Loader(tight, batch_size=4, memory_bytes=size) for size in (16 << 20, 1 << 30)]
for loader in (ragged, *fixed):
    held = []
    for epoch in range(10):
        run = loader._native_feed().start(epoch, 0)
        while (got := run.next()) is not None:
            column = got[0]["n"]
            held.append(device.hold(column.values if loader is ragged else column))
    print(len(held), sum(held), open(sys.argv[2]).read().count("+"))
"""


def test_memory_of_one_size_is_registered_once_whatever_the_budget_and_no_other(driver, tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    for number in range(24):
        (folder / f"{number}.tfrecord").write_bytes(_native.encode_tfrecord({"n": np.full(1 << 18, number, "f4")}))
    (tmp_path / "log").touch()
    ran = _with_driver(driver, tmp_path, _ONE_SIZE, folder, tmp_path / "log")
    result = [[int(word) for word in line.split()] for line in ran.stdout.splitlines()]
    assert [row[:2] for row in result] == [[60, 0], [60, 60], [60, 60]], ran.stderr
    # One registration per slot that is in use at the same time, not one for each of the batches.
    registered = result[0][2], result[1][2], result[2][2] - result[1][2]
    assert registered[0] == 0
    assert 1 <= registered[1] <= registered[2] <= 8


_BY_TORCH = """
import contextlib, sys, torch, penstock
from tests.feed.conftest import dataset

# torch as it is where there is a device, but for what needs one.
class Stream:
    def __init__(self, device=None): pass
    def synchronize(self): pass
    def wait_event(self, event): pass
class Event:
    def __init__(self, blocking): pass
    def record(self, stream): pass
    def query(self): return True
    def synchronize(self): pass
cuda = torch.cuda
cuda.is_available, cuda.device_count, cuda.current_device = (lambda: True), (lambda: 1), (lambda: 0)
cuda.Stream, cuda.Event, cuda.current_stream = Stream, Event, Stream
cuda.device = cuda.stream = lambda _: contextlib.nullcontext()
pinned = []
torch.Tensor.pin_memory = lambda tensor: pinned.append(tensor) or tensor
torch.Tensor.to = lambda tensor, device, non_blocking: tensor.clone()
torch.Tensor.record_stream = lambda tensor, stream: None
loader = penstock.torch.Loader(dataset(sys.argv[1]), batch_size=2, device="cuda")
print([int(value) for batch in loader for value in batch["y"][:, 0]], len(pinned))
print(loader.report()["device"])
print(str(loader.report()).count("batches are copied to cuda:0, "))
del loader
"""


_REFUSED = "the rest through torch's (CUDA device 0: the memory of a batch cannot be registered: what a stand-in says)"


@pytest.mark.needs_torch
@pytest.mark.parametrize(
    ("refuses", "pinned", "by"),
    [
        ({}, 0, "100 % of the bytes from registered memory"),
        ({"STANDIN_REFUSES": "1"}, 4, f"0 % of the bytes from registered memory, {_REFUSED}"),
    ],
)
def test_a_driver_that_refuses_costs_a_copy(made, driver, tmp_path, refuses, pinned, by):
    ran = _with_driver(driver, tmp_path, _BY_TORCH, made([1] * 4), **refuses)
    assert ran.stdout.splitlines() == [f"[0, 1, 2, 3] {pinned}", f"cuda:0, {by}", "1"], ran.stderr
    assert (tmp_path / "held").read_text() == "0"


def test_gpu_missing_driver_raises(tmp_path):
    (tmp_path / "libcuda.so.1").write_bytes(b"")  # hides a real driver, if one is installed
    ran = _with_driver(tmp_path, tmp_path, "from penstock import _native; _native.CudaDevice(0)")
    assert "Unsupported: registering memory with CUDA device 0 is not supported by this machine:" in ran.stderr
    assert "libcuda.so.1" in ran.stderr

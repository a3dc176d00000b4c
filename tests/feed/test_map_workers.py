# SPDX-License-Identifier: Apache-2.0
"""Tests that only one thread of one process uses the pipes of map's workers, even if another thread drops a batch."""

from __future__ import annotations

import fcntl
import functools
import gc
import os
import signal
import struct
import subprocess
import sys
import tarfile
import termios
import threading
import time
from io import BytesIO
from pathlib import Path

import pytest

import penstock
from tests.feed import mapped

from .conftest import dataset

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 60


def unread_bytes(connection) -> int:
    """Bytes written to a socket pair that the other end has not read yet (SIOCOUTQ)."""
    return struct.unpack("i", fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, b"\0" * 4))[0]


def test_batches_dropped_by_another_thread_write_to_no_pipe(made):
    loader = penstock.Loader(dataset(made([1] * 40)).map(mapped.plain, workers=1), batch_size=2)
    kept = list(loader)
    (worker,) = loader._worker_pool.workers
    os.kill(worker.process.pid, signal.SIGSTOP)
    try:
        before = unread_bytes(worker.pipe)
        thread = threading.Thread(target=kept.clear)
        thread.start()
        thread.join(LIMIT_S)
        gc.collect()
        assert unread_bytes(worker.pipe) == before == 0
    finally:
        os.kill(worker.process.pid, signal.SIGCONT)
    assert len(list(loader)) == 20
    gc.collect()
    for _ in loader:
        pass
    assert len(worker.outputs) <= 5  # two in use, two spare, one held by the consumer


def test_results_without_arrays_use_their_slots_again(made):
    loader = penstock.Loader(dataset(made([1] * 40)).map(mapped.only_lists, workers=1), batch_size=2)
    for _ in loader:
        pass
    (worker,) = loader._worker_pool.workers
    assert len(worker.outputs) <= 5


FORKED = """
import gc, os, sys
sys.path.insert(0, sys.argv[2])
import penstock as ps
from tests.feed import mapped

def child(kept, walk):
    while kept:  # the newest first: another order than the parent's
        kept.pop()
    gc.collect()
    for _ in range(2):  # an error each time, which is not the end of the epoch
        try:
            next(walk)
            return 1
        except ps.errors.ConfigError as error:
            if "belongs to process" not in str(error):
                return 2
    return 0

if __name__ == "__main__":
    ds = ps.open(sys.argv[1]).fields(x=ps.tensor("int16", (3, 2)), y=ps.tensor("float32", (4,)))
    loader = ps.Loader(ds.map(mapped.plain, workers=1), batch_size=2)
    walk = iter(loader)
    kept = [next(walk) for _ in range(10)]
    pid = os.fork()
    if pid == 0:
        code = 3
        try:
            code = child(kept, walk)
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    kept.clear()
    print(code, len(list(walk)), len(list(loader)))
"""


def run(script: str, tmp_path: Path, *arguments: object) -> tuple[str, str]:
    path = tmp_path / "script.py"
    path.write_text(script)
    command = [sys.executable, str(path), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    return done.stdout, done.stderr[-2000:]


def test_forked_child_that_drops_batches_leaves_the_parents_workers_alone(made, tmp_path):
    assert run(FORKED, tmp_path, made([1] * 40), ROOT) == ("0 10 20\n", "")


HELD = """
import os, sys
sys.path.insert(0, sys.argv[2])
import penstock as ps
from tests.feed import mapped

if __name__ == "__main__":
    ds = ps.open(sys.argv[1]).fields(x=ps.tensor("int16", (3, 2)), y=ps.tensor("float32", (4,)))
    loader = ps.Loader(ds.map(mapped.plain, workers=1), batch_size=2)
    walk = iter(loader)
    batch = next(walk)
    want = batch["y"].tolist()
    done, go = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(go)
        os.read(done, 1)  # until the parent has dropped its batch and read on
        os._exit(0 if batch["y"].tolist() == want else 1)
    del batch
    rest = len(list(walk))
    os.close(go)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), rest)
"""


def test_batch_held_by_a_forked_child_keeps_its_values(made, tmp_path):
    assert run(HELD, tmp_path, made([1] * 40), ROOT) == ("0 19\n", "")


def test_large_bytes_through_workers_both_ways_do_not_block_each_other(tmp_path):
    """Both ends write more than the pipe can hold, so each must read while it writes."""
    with tarfile.open(tmp_path / "large.tar", "w") as tar:
        for number in range(8):
            member = tarfile.TarInfo(f"{number}.bin")
            member.size = 2 << 20
            tar.addfile(member, BytesIO(bytes([number]) * member.size))
    ds = penstock.open(tmp_path / "large.tar").fields(bin=penstock.raw()).map(mapped.same, workers=1)
    got = [batch["bin"][0] for batch in penstock.Loader(ds, batch_size=1)]
    assert [(len(each), each[0]) for each in got] == [(2 << 20, number) for number in range(8)]


def test_newer_iterator_of_another_thread_ends_the_one_that_waits(made):
    loader = penstock.Loader(dataset(made([1] * 8)).map(mapped.slow, workers=2), batch_size=2)
    walk, ended = iter(loader), []

    def consume() -> None:
        try:
            for _ in walk:
                pass
        except penstock.errors.ConfigError as error:
            ended.append(str(error))

    next(walk)
    thread = threading.Thread(target=consume)
    thread.start()
    assert len(list(loader)) == 4
    thread.join(LIMIT_S)
    assert not thread.is_alive()
    assert len(ended) == 1
    assert "a newer iterator of the same loader was made" in ended[0]


def test_signal_handler_that_iterates_the_loader_it_interrupts_gets_an_error(made, tmp_path):
    function = functools.partial(mapped.waits_for_file, tmp_path / "go")
    loader = penstock.Loader(dataset(made([1] * 4)).map(function, workers=1), batch_size=2)
    crew = loader.worker_pool()

    def interrupt() -> None:
        while crew._holder is None:
            time.sleep(0.01)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, lambda *_: list(loader))
    try:
        walk = iter(loader)
        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(penstock.errors.ConfigError, match="a newer iterator"):
            next(walk)
        thread.join(LIMIT_S)
    finally:
        signal.signal(signal.SIGUSR1, before)
    (tmp_path / "go").touch()
    assert len(list(loader)) == 2

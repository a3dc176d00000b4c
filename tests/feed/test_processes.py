# SPDX-License-Identifier: Apache-2.0
"""Tests forks, spawns and Ctrl-C, and that nothing is left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import penstock

from .conftest import dataset

LIMIT_S = 60


def threads_of_ours() -> list[str]:
    names = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # the thread has ended
            names.append((task / "comm").read_text().strip())
    return [name for name in names if name.startswith("penstock-dec")]


CHILDREN = """
import json, multiprocessing, sys
import penstock as ps

def ids(loader):
    return [[int(y) for y in batch["y"][:, 0]] for batch in loader]

def read(loader, queue):
    loader.set_epoch(1)
    loader.set_epoch(0)
    queue.put(ids(loader))

if __name__ == "__main__":
    ds = ps.open(sys.argv[1]).fields(y=ps.tensor("float32", (4,))).shuffle(seed=2)
    loader = ps.Loader(ds, batch_size=3)
    first, second = ids(loader), ids(loader)
    loader.set_epoch(0)
    walk = iter(loader)
    next(walk)  # threads and requests are live in the parent while the child is made
    context = multiprocessing.get_context(sys.argv[2])
    queue = context.Queue()
    child = context.Process(target=read, args=(loader, queue))
    child.start()
    got = queue.get(timeout=50)
    child.join(50)
    rest = [[int(y) for y in batch["y"][:, 0]] for batch in walk]
    print(json.dumps([child.exitcode, got == first, rest == first[1:], ids(loader) == second]))
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_loader_in_use_reads_again_in_a_child(made, tmp_path, method):
    script = tmp_path / "children.py"
    script.write_text(CHILDREN)
    command = [sys.executable, str(script), str(made([1] * 10)), method]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert (done.stdout, done.stderr[-2000:]) == ("[0, true, true, true]\n", "")


FORKED = """
import os, sys
import penstock as ps

loader = ps.Loader(ps.open(sys.argv[1]).fields(y=ps.tensor("float32", (4,))).shuffle(seed=2), batch_size=1)
walk = iter(loader)
next(walk)
child = os.fork()
if child == 0:
    code = 2
    try:
        next(walk)
    except ps.errors.ConfigError as error:
        # A new iterator ends the inherited one and builds its own threads.
        code = 0 if "belongs to process" in str(error) and len(list(loader)) == 10 else 1
    finally:
        os._exit(code)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(status, len(list(walk)))
"""


def test_iterator_of_the_parent_is_refused_in_a_forked_child(made):
    command = [sys.executable, "-c", FORKED, str(made([1] * 10))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert (done.stdout, done.stderr[-2000:]) == ("0 9\n", "")


def test_break_and_del_end_the_threads(made):
    loader = penstock.Loader(dataset(made([1] * 10)).shuffle(2), batch_size=1, threads=3, read_ahead=0)
    for _ in loader:
        until = time.monotonic() + 10  # a thread gets its name some time after its start
        while len(threads_of_ours()) < 3 and time.monotonic() < until:
            time.sleep(0.01)
        assert len(threads_of_ours()) == 3
        break
    assert threads_of_ours() == []
    walk = iter(loader)
    next(walk)
    del walk
    assert threads_of_ours() == []


STALLED = """
import sys, penstock as ps
ds = ps.open("s3://b/d/", manifest=sys.argv[1], records_per_object=1).fields(y=ps.tensor("float32", (4,)))
walk = iter(ps.Loader(ds, batch_size=1))
print("ready", flush=True)
next(walk)
"""


def test_ctrl_c_ends_a_wait_on_a_stalled_store(made, tmp_path):
    folder = made([1])
    manifest = tmp_path / "manifest.json"
    listing = penstock.open(folder).source.manifest().decode()
    manifest.write_text(listing.replace(penstock.open(folder).url, "s3://b/d/"))
    with socket.create_server(("127.0.0.1", 0)) as server:  # accepts connections, but never responds
        held = []
        accepted = threading.Event()

        def accept() -> None:
            while True:
                try:
                    held.append(server.accept()[0])
                except OSError:
                    return
                accepted.set()

        threading.Thread(target=accept, daemon=True).start()
        env = {
            **os.environ,
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.getsockname()[1]}",
            "AWS_ACCESS_KEY_ID": "k",
            "AWS_SECRET_ACCESS_KEY": "s",
            "AWS_REGION": "us-east-1",
        }
        child = subprocess.Popen(
            [sys.executable, "-c", STALLED, str(manifest)],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert child.stdout.readline() == "ready\n"
            assert accepted.wait(LIMIT_S)
            time.sleep(0.2)
            child.send_signal(signal.SIGINT)
            _, err = child.communicate(timeout=LIMIT_S)
        finally:
            child.kill()
            child.wait()
        for connection in held:
            connection.close()
    assert "KeyboardInterrupt" in err
    assert child.returncode in (-signal.SIGINT, 130, 1)


NO_NUMPY = """
import sys
sys.modules["numpy"] = None
import penstock
opened = penstock.open(sys.argv[1]).fields(y=penstock.tensor("float32", (4,)))
try:
    iter(penstock.Loader(opened, batch_size=1))
except penstock.errors.Unsupported as error:
    print(error.hint)
"""


def test_loader_without_numpy_says_what_to_install(made):
    done = subprocess.run(
        [sys.executable, "-c", NO_NUMPY, str(made([1]))], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "pip install 'penstock[numpy]'\n"

# SPDX-License-Identifier: Apache-2.0
"""Tests `map`: batches are the same with and without worker processes, and errors in the function are handled."""

from __future__ import annotations

import gc
import json
import os
import pickle
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import penstock
from tests.feed import mapped

from .conftest import batches, dataset

LIMIT_S = 60


@pytest.fixture
def shuffled(made):
    return dataset(made([2] * 10)).shuffle(5)


def ids(batch) -> list[int]:
    return [int(value) for value in batch["y"]]


def read(shaped, **arguments) -> list[dict]:
    return list(penstock.Loader(shaped, **{"batch_size": 3, "rank": 0, "world": 1, **arguments}))


def same(ours: list[dict], theirs: list[dict]) -> bool:
    return len(ours) == len(theirs) and all(
        a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)
        for a, b in zip(ours, theirs, strict=True)
    )


def test_map_in_processes_gives_the_order_and_the_values_of_map_in_this_one(shuffled):
    want = [[2 * value for value in batch] for batch in batches(penstock.Loader(shuffled, batch_size=3))]
    here = read(shuffled.map(mapped.plain))
    loader = penstock.Loader(shuffled.map(mapped.plain, workers=2), batch_size=3)
    there = list(loader)
    assert [ids(batch) for batch in here] == [ids(batch) for batch in there] == want
    assert same(here, there)
    assert there[0]["x"].dtype == np.float32
    assert there[0]["x"].ctypes.data % 256 == 0
    kept = [batch["x"].copy() for batch in there]
    assert len(list(loader)) == 7  # the next epoch, in the same processes
    assert all((batch["x"] == copy).all() for batch, copy in zip(there, kept, strict=True))


def test_map_seeds_are_the_samples_own_on_any_ranks_and_workers(shuffled):
    for function in (mapped.seeded, mapped.unseeded):
        whole = read(shuffled.map(function), batch_size=20)
        known = dict(zip(ids(whole[0]), whole[0]["draw"].tolist(), strict=True))
        assert len(set(known.values())) == 20
        for workers, world in ((0, 3), (2, 1), (1, 2)):
            for rank in range(world):
                for batch in read(
                    shuffled.map(function, workers), batch_size=None, global_batch=7, rank=rank, world=world
                ):
                    assert [known[sample] for sample in ids(batch)] == batch["draw"].tolist()


def test_map_in_this_process_leaves_its_generators_alone(shuffled):
    random.seed(3)
    want = random.random()
    random.seed(3)
    read(shuffled.map(mapped.unseeded))
    assert random.random() == want


def test_map_lists_come_as_lists(shuffled):
    (batch,) = read(shuffled.map(mapped.ragged, workers=1), batch_size=20)
    assert [len(items) for items in batch["ids"]] == [item[0] for item in batch["raw"]]
    assert batch["name"] == [f"sample {item[0]}" for item in batch["raw"]]
    assert [batch] == read(shuffled.map(mapped.ragged), batch_size=20)


def test_map_after_map_and_padded_tail(shuffled):
    for workers in (0, 2):
        got = read(shuffled.map(mapped.twice, workers).map(mapped.plain_y, workers), tail="pad", batch_size=6)
        assert [len(batch["y"]) for batch in got] == [6] * 4
        assert got[-1]["weight"].tolist() == [1, 1, 0, 0, 0, 0]
        assert got[-1]["y"].tolist()[2:] == got[0]["y"].tolist()[:4]


def test_map_state_counts_delivered_batches_and_resumes(shuffled):
    ds = shuffled.map(mapped.plain, workers=2)
    reference = [ids(batch) for batch in read(ds)]
    loader = penstock.Loader(ds, batch_size=3)
    walk = iter(loader)
    first = [ids(next(walk)) for _ in range(2)]
    state = json.loads(json.dumps(loader.state_dict()))
    assert state["cursor"] == 6
    assert [ids(batch) for batch in loader] == reference  # a new iterator after a break starts the epoch again
    other = penstock.Loader(ds, batch_size=3)
    other.load_state_dict(state)
    assert first + [ids(batch) for batch in other] == reference


def test_map_kept_batches_stay_and_slots_are_used_again(made):
    shuffled = dataset(made([1] * 60)).shuffle(5)
    loader = penstock.Loader(shuffled.map(mapped.plain, workers=1), batch_size=2)
    for _ in loader:
        pass
    gc.collect()
    (worker,) = loader._worker_pool.workers
    assert len(worker.outputs) <= 4  # two in use, two spare, for any number of batches
    kept = list(loader)
    want = batches(penstock.Loader(shuffled, batch_size=2))
    loader.set_epoch(0)
    assert len(kept) == len(want)
    assert [ids(batch) for batch in loader] == [[2 * value for value in batch] for batch in want]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("function", "output"),
    [
        (mapped.raises_at_7, "KeyError: 'seven'"),
        (mapped.changes_shape_at_7, r"fn returned `y` as float64 \[[37]\], but earlier as float64 \[[37]\]"),
        (mapped.no_dict, "fn returned ndarray, not a dict"),
        (mapped.no_array, "fn returned a value that is not an array: `y` is a object"),
    ],
)
def test_map_failure_names_the_sample_and_has_the_traceback(shuffled, function, output, workers):
    loader = penstock.Loader(shuffled.map(function, workers), batch_size=4)
    with pytest.raises(penstock.errors.MapFailed, match=output) as caught:
        list(loader)
    error = caught.value
    assert "part-000" in str(error)
    assert f"position {error.position} of epoch 0" in str(error)
    if function is mapped.raises_at_7:
        assert "record 1 of " in str(error)
        assert "part-0003.tfrecord.gz" in str(error)
        assert 'raise KeyError("seven")' in error.__notes__[-1]
        assert pickle.loads(pickle.dumps(error)).position == error.position
    state = loader.state_dict()
    assert state["cursor"] == error.position // 4 * 4


def test_map_worker_that_is_killed_is_one_clear_error_and_the_next_pass_has_new_ones(shuffled):
    loader = penstock.Loader(shuffled.map(mapped.dies_at_7, workers=2), batch_size=4)
    with pytest.raises(penstock.errors.MapFailed, match=r"worker \d \(process \d+\) was killed by signal 9") as caught:
        list(loader)
    assert "memory" in caught.value.hint
    walk = iter(loader)
    with pytest.raises(penstock.errors.MapFailed):
        list(walk)


def test_map_functions_that_cannot_be_are_refused(shuffled):
    for bad in (lambda: shuffled.map(3), lambda: shuffled.map(mapped.plain, workers=-1)):
        with pytest.raises(penstock.errors.ConfigError):
            bad()
    with pytest.raises(penstock.errors.ConfigError, match="cannot be pickled"):
        shuffled.map(lambda sample: sample, workers=1)
    for late in (
        lambda: shuffled.map(mapped.plain).take(3),
        lambda: shuffled.map(mapped.plain).shuffle(3),
        lambda: penstock.mix({shuffled.map(mapped.plain): 1}),
    ):
        with pytest.raises(penstock.errors.ConfigError, match="map"):
            late()


def test_map_workers_end_with_the_loader(shuffled):
    loader = penstock.Loader(shuffled.map(mapped.slow, workers=2), batch_size=4)
    pids = {int(pid) for batch in loader for pid in batch["pid"]}
    assert len(pids) == 2
    assert os.getpid() not in pids
    del loader
    gc.collect()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


FIRST_IMPORT = """
import json, random, sys
sys.path.insert(0, sys.argv[2])
import penstock as ps
from tests.feed import mapped

if __name__ == "__main__":
    ds = ps.open(sys.argv[1]).fields(y=ps.tensor("float32", (4,)))
    assert "torch" not in sys.modules
    draws = []
    for workers in (2, 0, 0):  # in processes that never saw torch, in this one at first, and in this one again
        batches = ps.Loader(ds.map(mapped.draws_by_torch, workers), batch_size=2)
        draws.append([float(draw) for batch in batches for draw in batch["draw"].flatten()])
    assert "torch" in sys.modules
    assert not any("Torch" in type(finder).__name__ for finder in sys.meta_path)
    print(json.dumps(draws))
"""


@pytest.mark.needs_torch
def test_map_seeds_torch_also_if_the_function_is_the_first_to_import_it(made, tmp_path):
    script = tmp_path / "first.py"
    script.write_text(FIRST_IMPORT)
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, str(script), str(made([1] * 8)), str(root)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * LIMIT_S, check=True)
    first, second, third = json.loads(done.stdout)
    assert first == second == third
    assert len(set(first)) == 8


@pytest.mark.needs_torch
def test_map_seeds_torch_without_queueing_calls_for_cuda(shuffled):
    # `torch.manual_seed` keeps a stack trace of each call until CUDA is initialised.
    import torch

    queued = len(torch.cuda._queued_calls)
    read(shuffled.map(mapped.draws_by_torch))
    assert len(torch.cuda._queued_calls) == queued


INTERRUPTED = """
import sys
sys.path.insert(0, sys.argv[2])
import penstock as ps
from tests.feed import mapped

if __name__ == "__main__":
    ds = ps.open(sys.argv[1]).fields(y=ps.tensor("float32", (4,))).map(mapped.stays, workers=2)
    walk = iter(ps.Loader(ds, batch_size=1))
    print("ready", flush=True)
    next(walk)
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_map_ends_with_its_parent(made, tmp_path, how):
    """Ctrl-C as a terminal sends it, to the whole process group; and a parent that is killed without clean-up."""
    script = tmp_path / "interrupted.py"
    script.write_text(INTERRUPTED)
    root = Path(__file__).resolve().parents[2]
    child = subprocess.Popen(
        [sys.executable, str(script), str(made([1] * 4)), str(root)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert child.stdout.readline() == "ready\n"
        until = time.monotonic() + LIMIT_S
        while len(workers := _children(child.pid)) < 2 and time.monotonic() < until:
            time.sleep(0.05)
        time.sleep(0.5)
        if how == signal.SIGINT:
            os.killpg(child.pid, how)
        else:
            child.kill()
        _, err = child.communicate(timeout=LIMIT_S)
    finally:
        with_group_gone(child)
    assert len(workers) == 2
    if how == signal.SIGINT:
        assert "KeyboardInterrupt" in err
        assert not any(Path(f"/proc/{pid}").exists() for pid in workers)


def with_group_gone(child: subprocess.Popen) -> None:
    import contextlib

    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.communicate()  # also closes its pipes


def _children(pid: int) -> list[int]:
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
            line = (status.parent / "cmdline").read_text()
        except OSError:
            continue
        if int(fields[1]) == pid and "spawn_main" in line:
            found.append(int(status.parent.name))
    return found

# SPDX-License-Identifier: Apache-2.0
"""Tests `decode`: functions that drop and add samples, with and without rebatching, give one sequence and exact states."""

from __future__ import annotations

import gzip
import json
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock.errors import ConfigError, MapFailed, Unsupported
from penstock.feed import lengths
from penstock.feed.states import for_rank
from tests.feed import decoders

from .tfrecords import frame


def write(folder, counts, name="set"):
    """Writes gzip'd TFRecords whose records are numbers as text: 0, 1, 2, ... from object to object."""
    folder = folder / name
    folder.mkdir(parents=True)
    first = 0
    for number, count in enumerate(counts):
        content = b"".join(frame(str(value).encode()) for value in range(first, first + count))
        (folder / f"{number:02d}.tfrecord.gz").write_bytes(gzip.compress(content, 1, mtime=0))
        first += count
    return penstock.open(folder)


@pytest.fixture
def numbers(tmp_path):
    """40 records in 5 objects, shuffled."""
    return write(tmp_path, [8] * 5).shuffle(7)


def loader(dataset, **arguments):
    return penstock.Loader(dataset, **{"batch_size": 6, "rank": 0, "world": 1, **arguments})


def plain(batches):
    """Batches as lists that can be compared."""
    return [
        {name: column if isinstance(column, list) else column.tolist() for name, column in b.items()} for b in batches
    ]


def test_decode_empty_slice_has_the_columns_of_other_batches(numbers):
    dataset = numbers.take(8).decode(lambda record: {"number": np.float32(record), "text": record.decode()})
    *_, last = loader(dataset, batch_size=None, global_batch=6, world=3)
    assert (last["number"].dtype, last["number"].shape, last["text"]) == (np.float32, (0,), [])


def order(dataset, epoch=0):
    """The numbers of an epoch, in order."""
    plain_loader = loader(dataset, batch_size=dataset.samples)
    plain_loader.set_epoch(epoch)
    return [int(record) for batch in plain_loader for record in batch["record"]]


def ys(batches):
    return [int(y) for batch in batches for y in batch["y"]]


@pytest.mark.parametrize("rebatch", [False, True])
def test_decode_in_threads_and_workers_is_as_in_this_one(numbers, rebatch):
    made = []
    for where in ({}, {"threads": 3}, {"workers": 2}):
        decoded = numbers.decode(decoders.mixed, rebatch=rebatch, **where).map(decoders.adds_draw)
        walk = loader(decoded)
        made.append(plain([*walk, *walk]))
    assert made[0] == made[1] == made[2]
    rows = [len(batch["y"]) for batch in made[0]]
    want = [value for epoch in (0, 1) for value in order(numbers, epoch) for _ in range(value % 4)]
    assert [y for batch in made[0] for y in batch["y"]] == want
    draws = [draw for name in ("draw", "more") for batch in made[0] for draw in batch[name]]
    # Each output has its own seed, also those of one record. `mixed` draws several numbers from one seed.
    assert len(set(draws)) == len(draws) - sum(value % 4 > 0 for epoch in (0, 1) for value in order(numbers, epoch))
    assert made[0][0]["text"][0] == f"{made[0][0]['y'][0]}/0"
    if rebatch:
        assert rows == ([6] * 10) * 2
    else:
        source = [order(numbers, epoch)[at : at + 6] for epoch in (0, 1) for at in range(0, 40, 6)]
        assert rows == [sum(value % 4 for value in values) for values in source]


def test_decode_without_rebatching_keeps_the_promise_of_any_ranks(numbers):
    decoded = numbers.decode(decoders.drops_odd, threads=2)
    want = [y for y in order(numbers) if y % 2 == 0]
    assert len(loader(decoded, batch_size=10)) == 4 == len(list(loader(decoded, batch_size=10)))
    assert ys(loader(decoded, batch_size=10)) == want
    ranks = [loader(decoded, batch_size=None, global_batch=20, rank=rank, world=2) for rank in range(2)]
    walks = [iter(rank) for rank in ranks]
    first = [y for walk in walks for y in next(walk)["y"].tolist()]
    states = [json.loads(json.dumps(rank.state_dict())) for rank in ranks]
    assert states[0] == states[1]
    assert states[0]["cursor"] == 20
    other = loader(decoded, batch_size=10)
    other.load_state_dict(states[0])
    assert first + ys(other) == want


@pytest.mark.parametrize("where", [{}, {"threads": 2}])
def test_decode_with_rebatching_resumes_at_every_batch(numbers, where):
    decoded = numbers.decode(decoders.mixed, rebatch=True, **where)
    for tail, arguments in (("ragged", {"batch_size": 7}), ("drop", {"batch_size": 7, "rank": 1, "world": 2})):
        walk = loader(decoded, tail=tail, **arguments)
        with pytest.raises(TypeError, match="no length"):
            len(walk)
        states, batches = [json.dumps(walk.state_dict())], []
        for batch in walk:
            batches.append(*plain([batch]))
            states.append(json.dumps(walk.state_dict()))
        assert {len(batch["y"]) for batch in batches[:-1]} == {7}
        assert (len(batches[-1]["y"]) < 7) == (tail == "ragged")
        assert max(map(len, states)) < 1024
        for at, state in enumerate(states[:-1]):
            other = loader(decoded, tail=tail, **arguments)
            other.load_state_dict(json.loads(state))
            assert plain(other) == batches[at:], at
            assert other.epoch == 1


def test_decode_ranks_share_the_samples_with_rebatching(numbers):
    decoded = numbers.decode(decoders.mixed, rebatch=True)
    found = [ys(loader(decoded, batch_size=4, rank=rank, world=3)) for rank in range(3)]
    assert sorted(y for rank in found for y in rank) == sorted(value for value in range(40) for _ in range(value % 4))


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_prop_rebatched_outputs_are_the_functions_in_order_from_any_state(tmp_path_factory, data):
    counts = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=30))
    size = data.draw(st.integers(1, 9))
    stop = data.draw(st.integers(0, 40))
    dataset = write(tmp_path_factory.mktemp("prop"), [len(counts)])

    def spread(record):
        return [{"y": int(record), "part": part} for part in range(counts[int(record)])]

    decoded = dataset.decode(spread, rebatch=True)
    want = [(number, part) for number, count in enumerate(counts) for part in range(count)]
    walk, found, state = loader(decoded, batch_size=size), [], None
    if not want:
        with pytest.raises(MapFailed, match=f"no output for any of the {len(counts)} samples"):
            list(walk)
        return
    for at, batch in enumerate(walk):
        found += zip(batch["y"].tolist(), batch["part"].tolist(), strict=True)
        if at == stop:
            state = walk.state_dict()
            break
    if state is not None:
        other = loader(decoded, batch_size=size)
        other.load_state_dict(json.loads(json.dumps(state)))
        for batch in other:
            found += zip(batch["y"].tolist(), batch["part"].tolist(), strict=True)
    assert found == want


@pytest.mark.parametrize("where", [{}, {"threads": 2}, {"workers": 1}])
def test_decode_failure_names_the_record_and_has_the_traceback(numbers, where):
    with pytest.raises(
        MapFailed, match=r"decode: record 5 of .*00\.tfrecord\.gz \(position \d+ of epoch 0\): KeyErr"
    ) as c:
        list(loader(numbers.decode(decoders.fails_at_5, **where)))
    assert c.value.position == order(numbers).index(5)
    assert 'raise KeyError("five")' in c.value.__notes__[-1]
    assert pickle.loads(pickle.dumps(c.value)).position == c.value.position


@pytest.mark.parametrize("rebatch", [False, True])
def test_decode_failures_can_be_skipped_and_are_counted(tmp_path, numbers, rebatch):
    in_order = order(numbers)
    want = [y for y in in_order if y != 5]
    for policy in ("skip", "substitute"):
        walk = loader(numbers.decode(decoders.fails_at_5, threads=2, rebatch=rebatch), on_error=policy)
        if policy == "substitute" and not rebatch:
            with pytest.raises(MapFailed, match="five"):
                list(walk)
            continue
        batches = list(walk)
        assert ys(batches) == want
        assert [len(batch["y"]) for batch in batches[:-1]].count(6) == (6 if rebatch else 5)
        assert walk.report()["skipped"] == 1
        assert "decode: record 5 of" in walk.report()["bad_samples"][0]
    # Damaged records are left out, too, and the seeds of the others stay those of their positions.
    whole = {
        y: draw for batch in loader(numbers.decode(decoders.mixed)) for y, draw in zip(*_draws(batch), strict=True)
    }
    path = next(path for path in (tmp_path / "set").iterdir() if path.name.startswith("01"))
    content = bytearray(gzip.decompress(path.read_bytes()))
    content[12] ^= 1  # the payload of its first record, 8
    path.write_bytes(gzip.compress(content, 1, mtime=0))
    damaged = penstock.open(tmp_path / "set").fields(record=penstock.raw(record=True)).shuffle(7)
    walk = loader(damaged.decode(decoders.mixed, rebatch=rebatch), on_error="skip", batch_size=8)
    assert {y: draw for batch in walk for y, draw in zip(*_draws(batch), strict=True)} == whole
    walk = loader(damaged.decode(decoders.number, rebatch=rebatch), on_error="skip", batch_size=8)
    assert ys(walk) == [y for y in in_order if y != 8]
    assert walk.report()["skipped"] == 1


def _draws(batch):
    return batch["y"].tolist(), batch["draw"].tolist()


@pytest.mark.parametrize(
    ("function", "output"),
    [
        (decoders.returns_text, "fn returned str, not a dict, None or an iterable of dicts"),
        (decoders.returns_numbers, "fn returned int, not a dict"),
        (decoders.returns_no_array, "fn returned a value that is not an array: `y`: it has gradients"),
        (
            decoders.changes_shape_at_9,
            r"fn returned `y` as float64 \[[23]\], but earlier as float64 \[[23]\] \(return a list if lengths differ\)",
        ),
        (
            decoders.changes_dtype_at_9,
            r"earlier as (?:int|float)64 \[\] \(convert it to one dtype\)",
        ),
    ],
)
@pytest.mark.parametrize("rebatch", [False, True])
def test_decode_values_of_another_kind_are_one_clear_error(numbers, function, output, rebatch):
    for policy, where in (("raise", {}), ("raise", {"threads": 2}), ("raise", {"workers": 1}), ("skip", {})):
        if policy == "skip" and function is decoders.returns_text:
            continue  # a TypeError of the sample, which may be skipped
        if "workers" in where and (rebatch or function is not decoders.returns_no_array):
            continue  # the worker runs the same code
        with pytest.raises(MapFailed, match=output):
            list(loader(numbers.decode(function, rebatch=rebatch, **where), batch_size=3, on_error=policy))


def test_decode_that_drops_a_whole_batch_says_what_to_do(numbers):
    with pytest.raises(MapFailed, match=r"a batch is empty, because all samples from position 0 to 5") as caught:
        list(loader(numbers.decode(decoders.drops_all)))
    assert "rebatch=True" in caught.value.hint
    with pytest.raises(MapFailed, match="no output for any of the 40 samples of epoch 0"):
        list(loader(numbers.decode(decoders.drops_all, rebatch=True, threads=2)))


@pytest.mark.parametrize("rebatch", [False, True])
@pytest.mark.parametrize("where", [{}, {"threads": 2}])
def test_decode_that_fails_for_a_whole_batch_shows_the_first_error(numbers, rebatch, where):
    def fails(record):
        raise KeyError("no field `label`")

    text = r"; {} samples were left out after errors, the first: decode: record \d of .*: KeyError: 'no field `label`'"
    with pytest.raises(MapFailed, match=text.format(r"\d+")) as caught:
        list(loader(numbers.decode(fails, rebatch=rebatch, **where), on_error="skip"))
    if rebatch:
        assert str(caught.value).startswith(
            "decode: fn returned no output for any of the 40 samples of epoch 0 on this rank; 40 "
        )


def test_decode_with_padded_tail_repeats_the_weights(numbers):
    batches = list(loader(numbers.decode(decoders.mixed), batch_size=16, tail="pad"))
    weights = np.concatenate([batch["weight"] for batch in batches])
    assert len(weights) == len(ys(batches))
    assert weights.sum() == sum(value % 4 for value in range(40))
    with pytest.raises(ConfigError, match='tail: "pad" is not supported'):
        loader(numbers.decode(decoders.mixed, rebatch=True), tail="pad")


@pytest.mark.parametrize("where", [{"threads": 2}, {"workers": 1}])
def test_decode_that_hangs_is_one_error_with_its_traceback(numbers, where):
    walk = loader(numbers.decode(decoders.hangs_at_5, timeout_s=0.3, **where))
    with pytest.raises(MapFailed, match=r"decode: record 5 of .*fn has not returned after 0\.3 s") as caught:
        list(walk)
    assert "hangs_at_5" in caught.value.__notes__[-1]
    assert walk.state_dict()["cursor"] == order(numbers).index(5) // 6 * 6


def test_decode_that_hangs_in_an_ended_pass_is_one_error_in_the_next(tmp_path):
    walk = loader(write(tmp_path, [10]).decode(decoders.hangs_at_5, workers=1, timeout_s=0.5), batch_size=4)
    batches = iter(walk)
    next(batches)
    while not walk._worker_pool.tasks:  # until the worker has the batch with 5
        batches._run.is_ready()
        batches._run._fill(walk._worker_pool)
    with pytest.raises(MapFailed, match=r"decode: record 5 of .*fn has not returned after 0\.5 s"):
        list(walk)


def test_decode_worker_keeps_nothing_of_failed_batches(numbers):
    walk, open_files = loader(numbers.decode(decoders.changes_shape_at_9, workers=1), batch_size=40), []
    for _ in range(5):
        with pytest.raises(MapFailed, match="but earlier as"):
            list(walk)
        (worker,) = walk._worker_pool.workers
        open_files.append(len(list(Path(f"/proc/{worker.process.pid}/fd").iterdir())))
    assert open_files[-1] <= open_files[0] + 1  # a leak adds one for each pass


def test_decode_worker_that_leaks_is_named_with_its_memory(tmp_path):
    with pytest.raises(
        MapFailed, match=r"decode: worker 0 .*signal 9 after its memory had grown from \d+ to \d+ MB"
    ) as c:
        list(loader(write(tmp_path, [8]).decode(decoders.leaks_and_is_killed, workers=1), batch_size=1))
    assert "keeps from call to call" in c.value.hint


def test_decode_states_of_others_are_refused_with_both_values(numbers):
    usual, rebatched = (numbers.decode(decoders.mixed, rebatch=rebatch) for rebatch in (False, True))
    states = [loader(dataset).state_dict() for dataset in (usual, rebatched)]
    assert "valid only for the same rank" in states[1]["promise"]
    for dataset, state, text in (
        (usual, states[1], "saved with decode"),
        (rebatched, states[0], "saved without decode"),
        (rebatched, {**states[1], "world": 2}, "world is 2, but this loader's world is 1"),
        (rebatched, {**states[1], "global_batch": 8}, "global_batch is 8"),
        (rebatched, {**for_rank(states[1], 0), "row": -1}, "row -1 is not valid"),
        (rebatched, {**for_rank(states[1], 0), "row": 6}, "row 6 is not valid"),
    ):
        with pytest.raises(ConfigError, match=text):
            loader(dataset).load_state_dict(state)


def test_decode_state_amid_the_outputs_of_another_function_is_refused(numbers):
    def twice(record):
        return [{"y": int(record)}] * 2

    def thrice(record):
        return [{"y": int(record)}] * 3

    def after(batches, function):
        walk = loader(numbers.decode(function, rebatch=True), batch_size=5)
        for _, _ in zip(range(batches), walk, strict=False):
            pass
        return for_rank(json.loads(json.dumps(walk.state_dict())), 0)

    amid, between = after(1, twice), after(2, twice)
    assert (amid["outputs"], between["outputs"]) == (1, 0)
    other = loader(numbers.decode(thrice, rebatch=True), batch_size=5)
    with pytest.raises(ConfigError, match="1 outputs of a sample were delivered by function") as caught:
        other.load_state_dict(amid)
    assert "`outputs`" in caught.value.hint
    old = {name: value for name, value in amid.items() if name != "function"}
    for state in (between, {**amid, "outputs": 0}, old):
        other.load_state_dict(state)
    loader(numbers.decode(twice, rebatch=True), batch_size=5).load_state_dict(amid)


def test_decode_state_with_more_outputs_than_the_sample_has_is_refused(numbers):
    made = numbers.decode(decoders.mixed, rebatch=True)
    whole = loader(made)
    batches = iter(whole)
    next(batches)
    state = next(rank for _ in batches if (rank := for_rank(whole.state_dict(), 0))["outputs"])
    walk = loader(made)
    walk.load_state_dict({**state, "outputs": 4})
    with pytest.raises(
        ConfigError, match=r"state: 4 outputs of the sample at position \d+ .* fn now returns only [23] outputs"
    ):
        list(walk)
    # A sample that now fails has no outputs; those of the next sample are complete.
    place = order(numbers).index(5)
    failing = loader(numbers.decode(decoders.fails_at_5, rebatch=True), on_error="skip")
    start = {**for_rank(failing.state_dict(), 0), "cursor": place // 6 * 6, "row": place % 6}
    followers = []
    for outputs in (0, 1):
        failing.load_state_dict({**start, "outputs": outputs})
        followers.append(ys(failing))
    assert followers[0] == followers[1] == order(numbers)[place + 1 :]


def test_decode_takes_dicts_unless_the_record_is_the_only_field(tmp_path):
    (tmp_path / "a.bin").write_bytes(b"1")
    (tmp_path / "b.bin").write_bytes(b"2")
    dataset = penstock.open(tmp_path, format="files")
    (batch,) = loader(dataset.decode(decoders.named))
    assert plain([batch]) == [{"y": [1, 2], "key": ["a.bin", "b.bin"]}]
    (batch,) = loader(dataset.fields(record=penstock.raw()).decode(decoders.number))
    assert plain([batch]) == [{"y": [1, 2]}]


def test_decode_where_it_cannot_be_is_refused(numbers, tmp_path):
    decoded, rule = numbers.decode(decoders.number), penstock.buckets([1] * 40, [2], [4, 4])
    assert "decode number in 2 threads" in repr(numbers.decode(decoders.number, threads=2))
    for late, text in (
        (lambda: decoded.take(3), "take: must come before map"),
        (lambda: penstock.mix({decoded: 1}), r"decode\(\) must come after mix"),
        (lambda: numbers.decode(decoders.number, workers=1, threads=1), "give either workers or threads"),
        (lambda: numbers.decode(decoders.number, threads=-1), "threads: -1 is not between"),
        (lambda: numbers.decode(decoders.number, timeout_s=0), "timeout_s: 0 is not above 0 s"),
        (lambda: numbers.decode(decoders.number, timeout_s=5), "timeout_s: 5 s cannot be enforced"),
        (lambda: numbers.decode(3), "decode: 3 is not callable"),
        (lambda: numbers.decode(lambda record: None, workers=1), "cannot be pickled"),
        (lambda: loader(decoded, on_error="skip", tail="pad"), "skip"),
        (
            lambda: loader(numbers.decode(decoders.number, rebatch=True), batch_size=None, batch_by=rule),
            "batch_by: cannot",
        ),
        (
            lambda: loader(numbers.decode(decoders.number, rebatch=True), batch_size=None, global_batch=5, world=2),
            "mult",
        ),
        (
            lambda: loader(penstock.open(tmp_path / "set", indexed=False).decode(decoders.number)),
            "decode: requires sample",
        ),
    ):
        with pytest.raises(ConfigError, match=text):
            late()
    with pytest.raises(
        MapFailed, match=r"fn returned None, not a dict \(map keeps every sample; to drop some, use decode"
    ):
        list(loader(numbers.fields(record=penstock.raw()).map(decoders.drops_all)))


@pytest.mark.needs_torch
def test_decode_in_torch_gives_tensors_and_map_datasets_refuse_it(numbers):
    import torch

    decoded = numbers.decode(decoders.mixed, threads=2, rebatch=True)
    batches = list(penstock.torch.Loader(decoded, batch_size=6))
    assert all(isinstance(batch["y"], torch.Tensor) for batch in batches)
    assert ys(batches) == ys(loader(decoded))
    with pytest.raises(Unsupported, match="MapDataset"):
        penstock.torch.MapDataset(decoded)


INTERRUPTED = """
import sys
sys.path.insert(0, sys.argv[2])
import penstock as ps
from tests.feed import decoders

if __name__ == "__main__":
    ds = ps.open(sys.argv[1]).decode(decoders.hangs_at_5, **{sys.argv[3]: 2})
    walk = iter(ps.Loader(ds, batch_size=5))
    next(walk)
    print("hangs", flush=True)
    next(walk)
"""


@pytest.mark.parametrize("where", ["threads", "workers"])
def test_decode_that_hangs_ends_at_once_with_ctrl_c(tmp_path, where):
    write(tmp_path, [10])
    script = tmp_path / "interrupted.py"
    script.write_text(INTERRUPTED)
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, str(script), str(tmp_path / "set"), str(root), where]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout.readline() == "hangs\n"
            time.sleep(0.3)
            child.send_signal(signal.SIGINT)
            _, errors = child.communicate(timeout=30)  # the function hangs for 600 s
        finally:
            child.kill()
    assert errors.rstrip().endswith("KeyboardInterrupt")


def test_decode_does_not_change_lengths_and_says_so(tmp_path, caplog):
    (tmp_path / "a.jsonl").write_text('{"text": "x"}\n{"text": "xyz"}\n')
    dataset = penstock.open(tmp_path / "a.jsonl").decode(lambda sample: {"text": sample["text"] * 100})
    assert [found.tolist() for found in lengths.of(dataset, "text")] == [[1, 3]]
    assert "These are the lengths of the stored field, before decode()." in caplog.text
    with pytest.raises(ConfigError, match="`tokens` does not exist") as missing:
        lengths.of(dataset, "tokens")
    assert "a field that decode() makes, give an array" in str(missing.value.hint)

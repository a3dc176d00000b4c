# SPDX-License-Identifier: Apache-2.0
"""Tests select and filter: the right samples, in one order, with any number of ranks and after any restart."""

from __future__ import annotations

import contextlib
import logging
import pickle
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

import penstock
from tests.feed import mapped

from .conftest import batches, dataset, write
from .sequences import check_one_sequence, read

COUNTS = [2, 1, 4, 1, 3, 5, 2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write(tmp_path_factory.mktemp("select") / "data", COUNTS)


@pytest.fixture(scope="module")
def plain(folder):
    return dataset(folder)


def number(sample) -> int:
    return int(sample["y"][0])


def is_even(sample) -> bool:
    return number(sample) % 2 == 0


def test_select_returns_the_samples_of_an_index(plain):
    mask = np.arange(18) % 3 == 0
    assert read(plain.select([1, 5, 17])) == [1, 5, 17]
    assert read(plain.select(mask)) == [0, 3, 6, 9, 12, 15]
    assert read(plain.select(mask.tolist())) == [0, 3, 6, 9, 12, 15]
    assert read(plain.select(range(4, 9))) == [4, 5, 6, 7, 8]
    assert read(plain.select(slice(-4, None))) == [14, 15, 16, 17]
    assert read(plain.select(slice(None, None, -6))) == [17, 11, 5]
    assert read(plain.select([])) == []
    assert read(plain.select([7, 2, 2, 16])) == [7, 2, 2, 16]


def test_select_and_the_steps_before_it_combine(plain):
    assert read(plain.take(9).select([8, 0])) == [8, 0]
    assert read(plain.select([3, 5, 8, 9]).select([1, 3])) == [5, 9]
    assert read(plain.select(range(0, 18, 2)).shard(1, 3)) == [6, 8, 10]
    assert read(plain.select([4, 9, 12]).repeat(2)) == [4, 9, 12, 4, 9, 12]
    assert sorted(read(plain.select([12, 4, 9]).shuffle(1).repeat(2).take(6))) == [4, 4, 9, 9, 12, 12]


def test_select_after_a_shuffle_is_of_stored_positions(plain):
    index = [1, 5, 9, 10, 17]
    before, after = plain.select(index).shuffle(3, window=2), plain.shuffle(3, window=2).select(index)
    assert read(before) == read(after)
    assert sorted(read(after)) == sorted(read(after, epoch=5)) == index
    assert read(after) != read(after, epoch=1)
    assert after.identity() == before.identity()


def test_select_of_everything_keeps_the_order(plain):
    shuffled = plain.shuffle(3, window=2)
    assert read(shuffled.select(np.ones(18, bool)), 4) == read(shuffled, 4)


def test_invalid_selections_are_refused(plain, folder):
    for bad, text in (
        (lambda: plain.select([0.5]), "must be a slice, a boolean mask"),
        (lambda: plain.select([[1]]), "must be a slice, a boolean mask"),
        (lambda: plain.select(["a"]), "must be a slice, a boolean mask"),
        (lambda: plain.select(3), "must be a slice, a boolean mask"),
        (lambda: plain.select(slice(0, 4, 0)), "must not be 0"),
        (lambda: plain.select([18]).samples, r"position 18 does not exist \(the dataset has 18 samples\)"),
        (lambda: plain.select([-1]).samples, "position -1 does not exist"),
        (lambda: plain.select([True] * 17).samples, "the mask has 17 values, but there are 18 samples"),
        (lambda: plain.select([2, 2]).shuffle(1).samples, "1 of 2 positions are repeated"),
        (lambda: plain.shuffle(1).take(4).select([1]), "must come before take"),
        (lambda: plain.repeat(2).select([1]), "must come before repeat"),
        (lambda: plain.map(dict).select([1]), "must come before map"),
        (lambda: penstock.open(str(folder), indexed=False).select([1]), "requires sample positions"),
        (lambda: penstock.open(str(folder), indexed=False).filter(is_even), "requires sample positions"),
        (lambda: plain.filter(3), "is not callable"),
    ):
        with pytest.raises(penstock.errors.ConfigError, match=text):
            bad()


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    index=st.lists(st.integers(0, 17), min_size=1, max_size=30),
    seed=st.one_of(st.none(), st.integers(0, 9)),
    batch=st.integers(1, 9),
    world=st.integers(1, 4),
    stop=st.integers(0, 12),
    later=st.tuples(st.integers(1, 9), st.integers(1, 4)),
    epoch=st.integers(0, 5),
)
def test_prop_selection_any_ranks_and_any_restart_give_one_sequence(
    plain, index, seed, batch, world, stop, later, epoch
):
    chosen = plain.select(index) if seed is None else plain.select(sorted(set(index))).shuffle(seed, window=2)
    found = check_one_sequence(chosen, batch, world, stop, later, epoch)
    assert found == index if seed is None else sorted(found) == sorted(set(index))


def test_state_of_another_selection_is_refused(plain):
    state = penstock.Loader(plain.select([1, 2, 3]), batch_size=2).state_dict()
    penstock.Loader(plain.select(np.array([1, 2, 3])), batch_size=2).load_state_dict(state)
    for other in (plain.select([1, 2, 4]), plain.select([1, 2]), plain.take(3), plain):
        with pytest.raises(penstock.errors.ConfigError, match="state: "):
            penstock.Loader(other, batch_size=2).load_state_dict(state)


def test_filter_keeps_the_samples_of_a_function(plain):
    even = plain.filter(is_even)
    assert read(even) == list(range(0, 18, 2))
    assert len(penstock.Loader(even, batch_size=2)) == 5
    assert read(even.filter(lambda sample: number(sample) > 9)) == [10, 12, 14, 16]
    assert read(plain.take(5).filter(is_even).shard(1, 3)) == [2]
    shuffled = plain.shuffle(1, window=2).filter(is_even)
    assert read(shuffled) == read(even.shuffle(1, window=2)) != read(even)
    assert sorted(read(shuffled, 3)) == list(range(0, 18, 2))
    assert repr(even).endswith("filter is_even)")


def test_filter_result_is_computed_once_and_kept(folder, caplog):
    calls = []

    def odd(sample):
        calls.append(number(sample))
        return number(sample) % 2 == 1

    with caplog.at_level(logging.WARNING, "penstock.feed"):
        assert read(dataset(folder).filter(odd, key="odd")) == list(range(1, 18, 2))
    assert calls == list(range(18))
    assert ["reads all 18 samples once" in message for message in caplog.messages].count(True) == 1
    assert sorted(read(dataset(folder).filter(odd, key="odd").shuffle(2))) == list(range(1, 18, 2))
    assert len(calls) == 18
    assert read(dataset(folder).filter(odd, key="another")) == list(range(1, 18, 2))
    assert len(calls) == 36


def test_filter_result_is_not_used_for_other_objects_or_functions(tmp_path, cache):
    threshold = 4

    def above(sample):
        return number(sample) > threshold

    folder = write(tmp_path / "data", [3, 5], codec="none")
    assert read(dataset(folder).filter(above)) == [5, 6, 7]
    threshold = 5
    assert read(dataset(folder).filter(above)) == [6, 7]
    first = folder / "part-0000.tfrecord"
    first.write_bytes((folder / "part-0001.tfrecord").read_bytes()[: first.stat().st_size])
    assert read(dataset(folder).filter(above)) == [6, 7]
    stored = sorted(cache.glob("records/*.samples"))
    assert len(stored) == 3
    contents = [file.read_bytes() for file in stored]
    for damage in (lambda old: old[:-30], lambda old: bytes(200), lambda old: old[:90] + b"\xff" + old[91:]):
        for file, content in zip(stored, contents, strict=True):
            file.write_bytes(damage(content))
        assert read(dataset(folder).filter(above)) == [6, 7]


def test_filter_and_labels_of_another_part_or_crop_are_read_again(tmp_path):
    (tmp_path / "x.jsonl").write_text("".join(f'{{"a": {i % 10}, "b": {i % 3}}}\n' for i in range(100)))
    opened = penstock.open(tmp_path)
    for part, above, classes in (("a", 80, 10), ("b", 33, 3)):
        field = penstock.tensor("int64", ()).of(part)
        assert opened.fields(v=field).filter(lambda sample: sample["v"] > 1, key="above").samples == above
        drawn = opened.fields(v=field).resample(dict.fromkeys(range(classes), 1), labels="v", samples=5, seed=1)
        assert drawn.samples == 5
    folder = tmp_path / "images"
    folder.mkdir()
    Image.new("RGB", (8, 8), "white").save(folder / "a.png")
    for mean, kept in ((0.5, [1]), (2.0, [])):
        field = penstock.image(2, crop="none", dtype="float32", mean=[mean] * 3, std=[1.0] * 3)
        light = penstock.open(folder).fields(image=field).filter(lambda sample: sample["image"].max() > 0, key="light")
        with contextlib.nullcontext() if kept else pytest.raises(penstock.errors.ConfigError, match="keeps none of"):
            assert [light.samples] == kept


def test_filter_that_keeps_nothing_is_one_error(plain):
    with pytest.raises(penstock.errors.ConfigError, match="keeps none of the 18 samples"):
        read(plain.filter(lambda _: False))


def test_filter_whose_function_fails_names_the_record(plain):
    def broken(sample):
        return 1 // (number(sample) - 7) >= 0

    for on_error in ("raise", "skip"):
        failed = pytest.raises(penstock.errors.MapFailed, match=r"^filter: record 0 of .*part-0003.*ZeroDivisionError")
        with failed as caught:
            read(plain.filter(broken, on_error=on_error))
        assert "the function's traceback" in caught.value.__notes__[-1]
    with pytest.raises(penstock.errors.MapFailed, match="must return True or False"):
        read(plain.filter(lambda sample: sample["y"]))


def test_filter_leaves_out_unreadable_samples_if_asked(tmp_path):
    lines = ['{"a": 1}', '{"a": 2}', '{"a": "x"}', "not json", '{"a": 5}', '{"a": 6}'] * 60
    (tmp_path / "a.jsonl").write_text("\n".join(lines) + "\n")
    dataset = penstock.open(tmp_path).fields(a=penstock.tensor("int64", ()))
    with pytest.raises(penstock.errors.Mismatch, match="record 2") as caught:
        list(penstock.Loader(dataset.filter(lambda sample: sample["a"] > 1), batch_size=4, on_error="skip"))
    assert caught.value.__notes__[-1].endswith('filter(fn, on_error="skip")')
    kept = dataset.filter(lambda sample: sample["a"] > 1, on_error="skip")
    assert [n for batch in penstock.Loader(kept, batch_size=7) for n in batch["a"].tolist()] == [2, 5, 6] * 60
    weighted = kept.resample("balanced", labels="a", seed=1)
    assert {n for batch in penstock.Loader(weighted, batch_size=7) for n in batch["a"].tolist()} == {2, 5, 6}
    with pytest.raises(penstock.errors.ConfigError, match="neither raise nor skip"):
        dataset.filter(bool, on_error="substitute")


def test_filter_in_workers_gives_the_same_samples(plain):
    assert read(plain.filter(mapped.is_even, workers=1, key="in workers")) == list(range(0, 18, 2))


def test_filter_pickles_with_its_result(plain):
    even = plain.filter(lambda sample: number(sample) % 2 == 0).shuffle(3)
    copy = pickle.loads(pickle.dumps(even))
    assert copy.identity() == even.identity()
    assert read(copy) == read(even)


def test_filter_of_two_processes_is_computed_by_one(folder, cache):
    script = (
        "import sys, numpy as np, penstock\n"
        "data = penstock.open(sys.argv[1]).fields(y=penstock.tensor('float32', (4,)))\n"
        "def keep(sample):\n"
        "    open(sys.argv[2], 'a').write('x')\n"
        "    return sample['y'][0] > 3\n"
        "print(data.filter(keep, key='slow').samples)\n"
    )
    calls = cache / "calls"
    command = [sys.executable, "-c", script, str(folder), str(calls)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    try:
        assert [process.communicate(timeout=60)[0] for process in running] == ["14\n"] * 2
    finally:
        for process in running:
            process.kill()
    assert calls.read_text() == "x" * 18


def test_substitutes_of_a_selection_are_selected(tmp_path):
    folder = write(tmp_path / "data", [4, 4], codec="none")
    file = folder / "part-0000.tfrecord"
    content = bytearray(file.read_bytes())
    content[len(content) // 4 * 2 + 40] ^= 1  # damages record 2
    file.write_bytes(content)
    chosen = dataset(folder, records_per_object=4).select([0, 2, 5])
    loader = penstock.Loader(chosen, batch_size=3, on_error="substitute", threads=1)
    assert batches(loader) == [[0, 0, 5]]

# SPDX-License-Identifier: Apache-2.0
"""Tests resample: draws follow the weights, and are the same with any number of ranks and after any restart."""

from __future__ import annotations

import json
import math
import pickle
from collections import Counter

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock
from penstock import _native

from .conftest import dataset, write
from .sequences import check_one_sequence, read

COUNTS = [2, 1, 4, 1, 3, 5, 2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write(tmp_path_factory.mktemp("resample") / "data", COUNTS)


@pytest.fixture(scope="module")
def plain(folder):
    return dataset(folder)


@pytest.fixture(scope="module")
def labels():
    """14 samples of class 0, 3 of class 1 and 1 of class 2."""
    return np.array([0] * 9 + [1] * 3 + [0] * 5 + [2])


def counted(drawn, epochs: int, of=None) -> Counter:
    return Counter(sample for epoch in range(epochs) for sample in places(drawn, epoch, of))


def places(drawn, epoch: int, of=None) -> list[int]:
    """Sample numbers in the order of an epoch, without reading."""
    starts = np.cumsum([0, *COUNTS])
    found = drawn.course().places(epoch, range(drawn.samples))
    return [int(starts[item] + record) if of is None else of[int(starts[item] + record)] for _, item, record in found]


def test_resample_draws_in_proportion_to_weights(plain):
    weights = np.arange(18.0)
    drawn = plain.shuffle(5, window=3).resample(weights)
    assert read(drawn, 2) == places(drawn, 2)
    assert len(penstock.Loader(drawn, batch_size=5)) == 4
    hits = counted(drawn, 600)
    share = weights / weights.sum() * 18 * 600
    for sample in range(18):
        assert hits[sample] == pytest.approx(share[sample], abs=5 * math.sqrt(share[sample]) + 1e-9)
    assert hits[0] == 0
    assert places(drawn, 0) != places(drawn, 1)


def test_resample_balances_classes(plain, labels):
    drawn = plain.resample("balanced", labels=labels, samples=300, seed=4)
    hits = counted(drawn, 1, labels.tolist())
    assert [hits[label] for label in range(3)] == pytest.approx([100] * 3, abs=4)
    by_class = plain.resample({0: 1, 1: 0, 2: 14}, labels=labels, samples=280, seed=4)
    hits = counted(by_class, 1, labels.tolist())
    assert [hits[label] for label in range(3)] == pytest.approx([140, 0, 140], abs=3)


def test_resample_labels_are_read_from_a_field_once(plain, tmp_path, labels, caplog):
    """A field of integers, and one of texts."""
    for name, values in (("label", labels.tolist()), ("kind", [b"cat" if label else b"dog" for label in labels])):
        folder = tmp_path / name
        folder.mkdir()
        records = [_native.encode_tfrecord({name: [value]}) for value in values]
        (folder / "a.tfrecord").write_bytes(b"".join(records))
        field = penstock.tensor("int64", ()) if name == "label" else penstock.raw()
        opened = penstock.open(str(folder)).fields(**{name: field})
        caplog.clear()
        drawn = [opened.resample("balanced", labels=name, samples=300, seed=4) for _ in range(2)]
        found = [Counter(values[record] for _, _, record in one.course().places(0, range(300))) for one in drawn]
        assert found[0] == found[1]
        assert sorted(found[0].values()) == pytest.approx([300 / len(found[0])] * len(found[0]), abs=4)
        assert ["reads all 18 samples once" in message for message in caplog.messages].count(True) == 1
    with pytest.raises(penstock.errors.ConfigError, match="labels: must be one integer or text"):
        _ = plain.resample("balanced", labels="y", seed=1).samples
    with pytest.raises(penstock.errors.ConfigError, match="labels: no field `class`"):
        _ = plain.resample("balanced", labels="class", seed=1).samples


def test_resample_labels_of_unreadable_records_say_what_to_do(tmp_path):
    rows = [b'{"label": 0}', b"?", b'{"label": 1}', b'{"label": 0}']
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(rows))
    opened = penstock.open(tmp_path).fields(label=penstock.tensor("int64", ()))
    drawn = opened.resample("balanced", labels="label", seed=1)
    with pytest.raises(penstock.errors.Corrupt, match="record 1") as caught:
        list(penstock.Loader(drawn, batch_size=4, on_error="skip"))
    assert 'ds.filter(lambda sample: True, on_error="skip").resample(' in caught.value.__notes__[-1]
    readable = opened.filter(lambda sample: True, on_error="skip").resample("balanced", labels="label", seed=1)
    assert sum(len(batch["label"]) for batch in penstock.Loader(readable, batch_size=4)) == 3


def test_resample_balances_class_folders_without_reading(tmp_path):
    for name, count in (("ant", 9), ("bee", 1)):
        (tmp_path / name).mkdir()
        for number in range(count):
            (tmp_path / name / f"{number}.jpg").write_bytes(b"not an image")
    images = penstock.open(str(tmp_path), format="images")
    for weights in ("balanced", {"ant": 1, "bee": 9}, {0: 1, 1: 9}):
        drawn = images.resample(weights, samples=100, seed=1)
        bees = sum(item == 9 for _, item, _ in drawn.course().places(0, range(100)))
        assert bees == pytest.approx(50, abs=2)


def test_resample_copies_are_spread_over_passes(plain):
    weights = np.ones(18)
    weights[3] = 100
    spread, packed = plain.shuffle(5).resample(weights), plain.shuffle(5).resample(weights, passes=1)
    gaps = []
    for drawn in (spread, packed):
        assert abs(places(drawn, 0).count(3) - 100 / 117 * 18) <= 1
        gaps.append(drawn.expected_gets(6))
    assert gaps[0] > gaps[1]


@pytest.mark.parametrize(("passes", "left_out"), [(None, 0), (1, 0), (5, 4), (6, 0), (17, 0), (500, 0)])
def test_resample_with_any_passes_draws_each_sample_by_its_share(plain, passes, left_out):
    """Only 5 passes do not divide 36 draws, so 40 are made, and the last pass ends early."""
    weights = np.array([1.0, 2, 3] * 6)
    for drawn, shares in (
        (plain.shuffle(5).resample(weights, samples=36, passes=passes), weights),
        (plain.shuffle(5).resample(np.ones(18), samples=36, passes=passes), np.full(18, 2)),
    ):
        for epoch in range(20):
            hits = Counter(places(drawn, epoch))
            assert sum(abs(hits[sample] - shares[sample]) for sample in range(18)) <= 2 * left_out


def test_resample_without_replacement_draws_each_sample_at_most_once(plain):
    weights = np.array([0.0, 1000, 900, 5, 1, 1, 1, 2, 3, 0, 1, 1, 4, 1, 1, 1, 1, 2])
    drawn = plain.shuffle(5).resample(weights, replacement=False, samples=6)
    hits = Counter()
    for epoch in range(400):
        found = places(drawn, epoch)
        assert len(set(found)) == len(found) == 6
        hits.update(found)
    # The shares of samples 1 and 2 would exceed one draw, so both are drawn in every epoch.
    assert hits[1] == hits[2] == 400
    assert hits[0] == hits[9] == 0
    left = weights.sum() - 1900
    for sample in range(3, 18):
        share = weights[sample] / left * 4 * 400
        assert hits[sample] == pytest.approx(share, abs=5 * math.sqrt(share) + 1e-9)
    every = plain.shuffle(5).resample(weights, replacement=False, samples=16)
    assert sorted(places(every, 3)) == [sample for sample in range(18) if sample not in (0, 9)]


def test_resample_schedule_changes_weights_at_its_epochs(plain, labels):
    easy, hard = (labels == 0).astype(float), (labels > 0).astype(float)
    drawn = plain.shuffle(2).resample(schedule=[(0, easy), (2, hard), (3, {0: 0, 1: 0, 2: 1})], labels=labels)
    of = labels.tolist()
    assert [set(places(drawn, epoch, of)) for epoch in range(5)] == [{0}, {0}, {1, 2}, {2}, {2}]


def test_resample_follows_selections_and_precedes_other_steps(plain):
    drawn = plain.select(range(4, 12)).resample(np.arange(8.0), samples=70).shuffle(3)
    hits = counted(drawn, 4)
    assert hits[4] == 0
    assert hits[11] == pytest.approx(70, abs=4)
    assert set(hits) == set(range(5, 12))
    assert read(drawn.take(5), 1) == places(drawn, 1)[:5]
    assert read(drawn.repeat(2)) == places(drawn, 0) + places(drawn, 1)
    mixed = penstock.mix({drawn: 1, plain.shuffle(1): 1}, samples=20)
    assert len(read(mixed)) == 20


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    weights=st.lists(st.sampled_from([0.0, 1e-30, 0.5, 1.0, 7.0, 1e30]), min_size=18, max_size=18).filter(any),
    count=st.integers(1, 60),
    passes=st.one_of(st.none(), st.integers(1, 5)),
    replacement=st.booleans(),
    batch=st.integers(1, 9),
    world=st.integers(1, 4),
    stop=st.integers(0, 12),
    later=st.tuples(st.integers(1, 9), st.integers(1, 4)),
    epoch=st.integers(0, 5),
)
def test_prop_resample_any_ranks_and_any_restart_give_one_sequence(
    plain, weights, count, passes, replacement, batch, world, stop, later, epoch
):
    if not replacement:
        count, passes = min(count, sum(weight > 0 for weight in weights)), None
    drawn = plain.shuffle(9, window=2).resample(weights, samples=count, passes=passes, replacement=replacement)
    found = places(drawn, epoch)
    assert len(found) == count
    assert all(weights[sample] > 0 for sample in found)
    assert replacement or len(set(found)) == count
    check_one_sequence(drawn, batch, world, stop, later, epoch)


def test_invalid_weights_are_refused(plain, folder, labels):
    def order(*arguments, **named):
        return lambda: plain.shuffle(1).resample(*arguments, **named).samples

    nan, negative = np.ones(18), np.ones(18)
    nan[[4, 6]], negative[5] = np.nan, -1
    for bad, text in (
        (order(nan), r"2 of 18 weights are NaN \(first: sample 4\)"),
        (order(negative), r"1 of 18 weights are negative \(first: sample 5\)"),
        (order([np.inf] * 18), "18 of 18 weights are infinite"),
        (order(np.zeros(18)), "all 18 weights are 0"),
        (order(np.ones(17)), "17 weights were given for 18 samples"),
        (order(np.ones((18, 1))), "must have one dimension"),
        (order(["a"] * 18), "weights: must be an array of numbers"),
        (order("balanced", labels=[[1], [1, 2]]), "labels: must be one integer or text for each sample"),
        (order("balanced", labels=np.array([b"\xff"] * 18)), "labels: must be UTF-8"),
        (order("balance"), 'neither "balanced"'),
        (order("balanced"), "labels: required"),
        (order("balanced", labels=labels[:5]), "one integer or text for each of 18 samples"),
        (order({0: 1, 1: 1}, labels=labels), "no weight for class 2"),
        (order({0: 1, 1: 1, 2: 1, 3: 1}, labels=labels), "no sample of class 3"),
        (order({0: 1, 1: -1, 2: 1}, labels=labels), "weight of class 1 must be finite and at least 0"),
        (order({0: 0, 1: 0, 2: 0}, labels=labels), "weights of all 3 classes are 0"),
        (order(), "give weights, or a schedule"),
        (order(schedule=[(1, np.ones(18))]), "starts at epoch 0"),
        (order(np.ones(18), schedule=[(3, np.ones(18)), (2, np.ones(18))]), "epochs must increase"),
        (order(np.ones(18), samples=0), "samples: must be at least 1"),
        (order(np.ones(18), passes=0), "passes: must be at least 1"),
        (order(np.ones(18), replacement=False), "samples: required with replacement=False"),
        (order([1] * 4 + [0] * 14, replacement=False, samples=5), "5 samples cannot be drawn .* from 4"),
        (order(np.ones(18), seed=2), "already shuffled with seed 1"),
        (lambda: plain.resample(np.ones(18)).samples, "requires a shuffled dataset"),
        (lambda: plain.resample(np.ones(18)).take(3).shuffle(1).samples, "take: must come before resample"),
        (lambda: plain.resample(np.ones(18), seed=1).select([1]), "must come before resample"),
        (lambda: plain.take(0).resample([], seed=1).samples, "has no samples"),
        (lambda: penstock.open(str(folder), indexed=False).resample([1]), "requires sample positions"),
    ):
        with pytest.raises(penstock.errors.ConfigError, match=text):
            bad()


def test_state_of_other_weights_is_refused_and_a_pickle_keeps_them(plain, labels):
    drawn = plain.shuffle(1).resample("balanced", labels=labels)
    state = penstock.Loader(drawn, batch_size=2).state_dict()
    assert len(json.dumps(state)) < 1024
    copy = pickle.loads(pickle.dumps(drawn))
    penstock.Loader(copy, batch_size=2).load_state_dict(state)
    assert places(copy, 1) == places(drawn, 1)
    for other in (plain.shuffle(1).resample(np.ones(18)), plain.shuffle(1)):
        with pytest.raises(penstock.errors.ConfigError, match="state: steps"):
            penstock.Loader(other, batch_size=2).load_state_dict(state)


def test_weights_of_many_samples_take_four_bytes_each(tmp_path):
    folder = write(tmp_path / "data", [1] * 3)
    drawn = dataset(folder, records_per_object=100_000).shuffle(1).resample(np.ones(300_000))
    assert drawn.course().memory_bytes < 4.2 * 300_000
    chosen = dataset(folder, records_per_object=100_000).select(np.arange(300_000) % 3 > 0).shuffle(1)
    assert chosen.course().memory_bytes < 300_000 / 7


@pytest.mark.parametrize("window", [1, 3, 8])
def test_expected_gets_of_chosen_samples_are_those_that_the_order_makes(tmp_path, window):
    """One rank reads an object once per pass."""
    folder = write(tmp_path / "data", [6] * 24)
    weights = (np.arange(144) % 6 == 0) * (np.arange(144.0) + 9)
    whole = dataset(folder).shuffle(3, window=window)
    for chosen, passed in (
        (whole.select(weights > 100), 144),
        (whole.select(slice(0, 36)), 36),
        (whole.resample(weights, samples=120, passes=10), 12),
    ):
        reads = 0
        for epoch in range(30):
            found = chosen.course().places(epoch, range(chosen.samples))
            reads += len({(at // passed, item) for at, (_, item, _) in enumerate(found)})
        assert chosen.expected_gets(12) * chosen.samples / 12 == pytest.approx(reads / 30, rel=0.05)

# SPDX-License-Identifier: Apache-2.0
"""Tests take, shard, repeat and mixtures: samples are correct with any number of ranks and after any restart."""

from __future__ import annotations

import json
import pickle

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock

from .conftest import dataset, write
from .sequences import check_one_sequence, flat, read


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write(tmp_path_factory.mktemp("mix") / "data", [2, 1, 4, 1, 3, 5, 2])


@pytest.fixture(scope="module")
def plain(folder):
    return dataset(folder)


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """Two datasets in two folders; the sample numbers of both start at 0."""
    root = tmp_path_factory.mktemp("parts")
    return dataset(write(root / "a", [3] * 5)).shuffle(1), dataset(write(root / "b", [1] * 7)).shuffle(2)


def test_take_and_shard_before_a_shuffle_are_of_samples_as_stored(plain):
    assert read(plain.take(5)) == [0, 1, 2, 3, 4]
    assert read(plain.take(500)) == list(range(18))
    fifth = [plain.shard(index, 5) for index in range(5)]
    assert flat(read(part) for part in fifth) == list(range(18))
    for part in fifth:
        shuffled = part.shuffle(7, window=2)
        assert shuffled.samples == len(read(part))
        assert sorted(read(shuffled)) == sorted(read(shuffled, epoch=3)) == read(part)
    assert sorted(read(plain.shard(1, 2).take(4).shuffle(3))) == [9, 10, 11, 12]


def test_take_shard_and_repeat_after_a_shuffle_are_of_its_order(plain):
    shuffled = plain.shuffle(7, window=2)
    whole = [read(shuffled, epoch) for epoch in range(4)]
    assert read(shuffled.take(5), 2) == whole[2][:5]
    assert flat(read(shuffled.shard(index, 4), 1) for index in range(4)) == whole[1]
    assert read(shuffled.repeat(2), 1) == whole[2] + whole[3]
    assert read(shuffled.take(4).repeat(2), 0) == whole[0][:4] + whole[1][:4]
    assert read(shuffled.repeat(2).take(20), 0) == (whole[0] + whole[1])[:20]


def test_steps_that_say_nothing_clear_are_refused(plain):
    for bad in (
        lambda: plain.shard(3, 3),
        lambda: plain.repeat(0),
        lambda: plain.take(-1),
        lambda: plain.repeat(2).shuffle(1),
        lambda: plain.shuffle(1).take(3).shuffle(2),
        lambda: penstock.mix({}),
        lambda: penstock.mix({plain: 0.0}),
        lambda: penstock.mix({plain: float("nan")}),
        lambda: penstock.mix([(plain, 1), (plain.fields(y=penstock.tensor("float32", (4,))), 1)]),
        lambda: penstock.mix({plain: 1}, samples=0),
        lambda: penstock.mix([plain]),
        lambda: penstock.mix([plain, (plain, 1)]),
        lambda: penstock.mix([plain], schedule=[(1, [1])]),
        lambda: penstock.mix([plain, plain], schedule=[(0, [1, 1]), (5, [2, 1]), (5, [1, 2])]),
        lambda: penstock.mix([plain, plain], schedule=[(0, [1, 0]), (5, [2, 0])]),
        lambda: penstock.mix([plain, plain], schedule=[(0, [1, 1]), (5, [0, 0])]),
        lambda: penstock.mix([plain], schedule=[(0, [float("nan")])]),
        lambda: penstock.mix([plain], schedule=[(0, [1, 2])]),
        lambda: penstock.mix({plain: 1}, schedule=[(4, {plain.take(3): 1})]),
        lambda: penstock.mix([plain], temperature=0),
        lambda: penstock.mix({plain: 1}, temperature=2),
        lambda: penstock.mix([plain.take(0)], temperature=2),
        lambda: penstock.mix({plain: 1}, names=["a", "b"]),
        lambda: penstock.mix({plain.take(0): 1}).samples,
    ):
        with pytest.raises(penstock.errors.ConfigError):
            bad()


@pytest.mark.parametrize("name", ["fields", "shuffle", "select", "filter", "resample", "cache"])
def test_mixture_method_of_a_part_is_refused_with_its_place(parts, name):
    with pytest.raises(penstock.errors.ConfigError, match=f"{name}: not supported by a mixture") as caught:
        getattr(penstock.mix({parts[0]: 1, parts[1]: 1}), name)(lambda sample: True)
    assert f"a.{name}(...)" in caught.value.hint


def test_nothing_left_makes_no_batch(plain):
    assert read(plain.take(0)) == []
    assert read(plain.shuffle(1).take(0)) == []


def test_mixture_gives_each_part_its_share_and_its_own_order(parts):
    a, b = parts
    mixed = penstock.mix({a: 0.7, b: 0.3}, samples=40)
    own = {0: [], 1: []}
    for epoch in range(3):
        places = mixed.course().places(epoch, range(40))
        drawn = [leaf for leaf, _, _ in places]
        assert abs(drawn.count(0) - 28) <= 2
        for leaf, sample in zip(drawn, read(mixed, epoch), strict=True):
            own[leaf].append(sample)
    for leaf, part in enumerate(parts):
        laps = flat(read(part, epoch) for epoch in range(20))
        assert own[leaf] == laps[: len(own[leaf])]


def test_mixture_default_epoch_is_as_long_as_its_parts_and_says_so(parts):
    mixed = penstock.mix({parts[0]: 3, parts[1]: 1})
    assert len(penstock.Loader(mixed, batch_size=4)) == 6
    assert mixed.weights == (0.75, 0.25)
    assert "0.75: Dataset(" in repr(mixed)
    assert repr(mixed.take(3)).endswith("take 3)")


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    weights=st.tuples(st.integers(1, 50), st.integers(1, 50)),
    count=st.integers(1, 60),
    batch=st.integers(1, 9),
    world=st.integers(1, 4),
    stop=st.integers(0, 12),
    later=st.tuples(st.integers(1, 9), st.integers(1, 4)),
    epoch=st.integers(0, 5),
    memory=st.sampled_from([None, 60_000]),
    change=st.one_of(st.none(), st.tuples(st.integers(1, 200), st.tuples(st.integers(0, 9), st.integers(1, 9)))),
)
def test_prop_mixture_any_ranks_and_any_restart_give_one_sequence(
    parts, weights, count, batch, world, stop, later, epoch, memory, change
):
    schedule = None if change is None else [change]
    mixed = (
        penstock.mix(list(zip(parts, weights, strict=True)), samples=count, schedule=schedule)
        .repeat(2)
        .take(2 * count - 1)
    )

    assert mixed.samples == 2 * count - 1
    check_one_sequence(mixed, batch, world, stop, later, epoch, memory_bytes=memory)


def test_mixture_schedule_changes_weights_at_its_positions(parts):
    a, b = parts
    mixed = penstock.mix([a, b], samples=50, schedule=[(0, {a: 1}), (60, {a: 1, b: 3}), (130, [0, 1])])
    drawn, own = [], {0: [], 1: []}
    for epoch in range(4):
        places = mixed.course().places(epoch, range(50))
        drawn += [leaf for leaf, _, _ in places]
        for leaf, sample in zip((leaf for leaf, _, _ in places), read(mixed, epoch), strict=True):
            own[leaf].append(sample)
    assert set(drawn[:60]) == {0}
    assert abs(drawn[60:130].count(0) - 17.5) <= 2
    assert set(drawn[130:]) == {1}
    for leaf, part in enumerate(parts):
        laps = flat(read(part, epoch) for epoch in range(20))
        assert own[leaf] == laps[: len(own[leaf])]
    assert mixed.weights == (1, 0)
    assert mixed.weights_at(60) == (0.25, 0.75)
    assert "other weights from position 60, other weights from position 130" in repr(mixed)
    same = penstock.mix({a: 2}, samples=50).fingerprint
    assert len({same, mixed.fingerprint, penstock.mix({a: 1}, samples=50, schedule=[(60, [2])]).fingerprint}) == 3


def test_mixture_temperature_flattens_the_shares_of_the_parts(parts):
    a, b = parts  # 15 and 7 samples
    assert penstock.mix([a, b], temperature=1).weights == pytest.approx((15 / 22, 7 / 22))
    root = (15**0.5, 7**0.5)
    assert penstock.mix([a, b], temperature=2).weights == pytest.approx([each / sum(root) for each in root])
    assert penstock.mix([a, b], temperature=1e6).weights == pytest.approx((0.5, 0.5), abs=1e-5)


@pytest.mark.parametrize("tail", ["ragged", "drop", "pad"])
def test_mixture_source_is_the_part_of_each_sample(parts, tail):
    a, b = parts
    nested = penstock.mix([(a, 1), (penstock.mix({b: 1, a: 1}), 3)], samples=22, source=True, names=["a", "both"])
    assert nested.names == ("a", "both")
    assert penstock.mix({a: 1, b: 1}).names == (a.url, b.url)
    places = nested.course().places(1, range(22))
    numbers = [int(leaf > 0) for leaf, _, _ in places]
    for rank in range(2):
        loader = penstock.Loader(nested, global_batch=8, rank=rank, world=2, tail=tail, threads=2)
        loader.set_epoch(1)
        for step, batch in enumerate(loader):
            assert batch["source"].dtype == "int32"
            size = 8 if tail == "pad" else min(8, 22 - step * 8)
            first, last = step * 8 + size * rank // 2, step * 8 + size * (rank + 1) // 2
            assert batch["source"].tolist() == [numbers[at % 22] for at in range(first, last)]
            assert set(batch) == {"x", "y", "source"} | ({"weight"} if tail == "pad" else set())


def test_mixture_source_reaches_map_and_random_access(parts):
    a, b = parts
    mixed = penstock.mix({a: 1, b: 1}, source=True)
    leaves = [leaf for leaf, _, _ in mixed.course().places(0, range(22))]
    found = penstock.torch.MapDataset(mixed).__getitems__([5, 0, 21])
    assert [int(sample["source"]) for sample in found] == [leaves[5], leaves[0], leaves[21]]
    mapped = mixed.map(lambda sample: {"part": sample["source"] + 1})
    (batch,) = penstock.Loader(mapped, batch_size=22)
    assert batch["part"].tolist() == [leaf + 1 for leaf in leaves]
    clash = [part.fields(source=penstock.tensor("float32", (4,)).of("y")) for part in parts]
    with pytest.raises(penstock.errors.ConfigError, match="`source` is reserved for the number of a sample's part"):
        next(iter(penstock.Loader(penstock.mix(dict.fromkeys(clash, 1), source=True), batch_size=2)))


def test_state_of_another_mixture_is_refused(parts):
    a, b = parts
    state = penstock.Loader(penstock.mix({a: 1, b: 1}), batch_size=2).state_dict()
    for other in (penstock.mix({a: 1, b: 2}), penstock.mix({b: 1, a: 1}), penstock.mix({a: 1, b: 1}, samples=9), a):
        with pytest.raises(penstock.errors.ConfigError, match="state: "):
            penstock.Loader(other, batch_size=2).load_state_dict(state)
    with pytest.raises(penstock.errors.ConfigError, match="steps is None, but this loader's steps is 'take:22:0'"):
        penstock.Loader(penstock.mix({a: 1, b: 1}).take(22), batch_size=2).load_state_dict(state)


def test_mixture_of_mixtures_pickles_and_keeps_its_order(parts):
    a, b = parts
    nested = penstock.mix([(penstock.mix({a: 1, b: 1}), 2), (b, 1)], samples=30)
    want = read(nested)
    assert read(pickle.loads(pickle.dumps(nested))) == want


def test_state_of_many_steps_stays_small(plain):
    many = plain.shuffle(1)
    for _ in range(300):
        many = many.take(18)
    state = penstock.Loader(many, batch_size=2).state_dict()
    assert len(json.dumps(state)) < 1024


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(window=st.integers(1, 8), world=st.integers(1, 4), batch=st.integers(1, 12))
def test_prop_expected_gets_are_those_that_the_order_makes(tmp_path_factory, window, world, batch):
    """Counts reads over the positions of 40 epochs: every rank reads an object once per window."""
    folder = tmp_path_factory.getbasetemp() / "gets"
    shuffled = dataset(folder if folder.exists() else write(folder, [6] * 24)).shuffle(3, window=window)
    batch *= world
    course, count = shuffled.course(), shuffled.samples
    reads = 0
    for epoch in range(40):
        seen = set()
        for position, (_, item, _) in enumerate(course.places(epoch, range(count))):
            start = position // batch * batch
            size = min(batch, count - start)
            rank = next(r for r in range(world) if position - start < size * (r + 1) // world)
            seen.add((rank, item))
        reads += len(seen)
    gets = shuffled.expected_gets(batch, world) * count / batch
    assert gets == pytest.approx(reads / 40, rel=0.15)

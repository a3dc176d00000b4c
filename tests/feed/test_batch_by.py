# SPDX-License-Identifier: Apache-2.0
"""Tests batches by length: buckets and budgets, on any number of ranks, resumed anywhere, and bad rules."""

from __future__ import annotations

import gzip
import json
from itertools import chain

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock
from penstock.errors import ConfigError, MapFailed
from penstock.feed import lengths as sample_lengths

from .sequences import flat
from .tfrecords import example, frame

quick = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def write(folder, lengths, per_object=4):
    """TFRecord files whose sample i has lengths[i] tokens with the value i, and the id i."""
    folder.mkdir(exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    records = [frame(example(tokens=[at] * length, id=[at])) for at, length in enumerate(lengths)]
    for number, start in enumerate(range(0, len(records), per_object)):
        (folder / f"{number:04}.tfrecord").write_bytes(b"".join(records[start : start + per_object]))
    dataset = penstock.open(folder).fields(tokens=penstock.ragged("int64"), id=penstock.tensor("int64", ()))
    dataset.counted()  # so that no loader starts before the counts
    return dataset


def ids(loader):
    """Ids of each batch of a loader. Each sample's tokens must be its own."""
    found = []
    for batch in loader:
        mine = batch["id"].tolist()
        tokens = batch["tokens"]
        for row, at in enumerate(mine):
            assert set(tokens.values[tokens.offsets[row] : tokens.offsets[row + 1]].tolist()) <= {at}
        found.append(mine)
    return found


def global_ids(dataset, world, **arguments):
    """Ids of each global batch, over all ranks, and the ids of each rank's part."""
    parts = [ids(penstock.Loader(dataset, rank=rank, world=world, **arguments)) for rank in range(world)]
    assert len({len(part) for part in parts}) == 1, "every rank has equally many batches"
    return [flat(batch) for batch in zip(*parts, strict=True)], parts


lengths_ = st.lists(st.integers(0, 30), min_size=1, max_size=60)
rules = st.one_of(
    st.builds(
        lambda bounds, sizes: penstock.buckets(
            "tokens", sorted(bounds), global_batch_sizes=sizes[: len(bounds) + 1], window=17
        ),
        st.sets(st.integers(1, 30), max_size=4),
        st.lists(st.integers(3, 9), min_size=5, max_size=5),
    ),
    st.builds(
        lambda tokens, most: penstock.budget(length="tokens", global_tokens=tokens, max_samples=most, window=17),
        st.integers(90, 200),
        st.none() | st.integers(3, 12),
    ),
)


@quick
@given(lengths=lengths_, rule=rules, seed=st.none() | st.integers(0, 9), epoch=st.integers(0, 2))
def test_batch_by_gives_every_sample_once_and_the_same_batches_on_any_world(tmp_path, lengths, rule, seed, epoch):
    dataset = write(tmp_path / "d", lengths)
    dataset = dataset if seed is None else dataset.shuffle(seed, window=2)
    whole = penstock.Loader(dataset, batch_by=rule, rank=0, world=1)
    whole.set_epoch(epoch)
    assert len(whole) == len(reference := ids(whole))
    assert sorted(flat(reference)) == list(range(len(lengths)))
    for world in (2, 3):
        loaders = [penstock.Loader(dataset, batch_by=rule, rank=rank, world=world) for rank in range(world)]
        for loader in loaders:
            loader.set_epoch(epoch)
        parts = [ids(loader) for loader in loaders]
        assert [flat(batch) for batch in zip(*parts, strict=True)] == reference
        for batch in zip(*parts, strict=True):
            assert max(map(len, batch)) - min(map(len, batch)) <= 1


@settings(quick, max_examples=15)
@given(
    lengths=st.lists(st.integers(0, 30), min_size=1, max_size=40),
    rule=rules,
    tail=st.sampled_from(["ragged", "drop", "pad"]),
)
def test_batch_by_resumes_after_every_batch_on_another_world(tmp_path, lengths, rule, tail):
    dataset = write(tmp_path / "d", lengths).shuffle(3, window=2)
    loader = penstock.Loader(dataset, batch_by=rule, tail=tail, rank=0, world=1)
    batches = len(loader)  # of this epoch; the next one may have another number
    reference, states = [], [loader.state_dict()]
    for batch in loader:
        reference.append(batch["id"].tolist())
        states.append(json.loads(json.dumps(loader.state_dict())))
    assert batches == len(reference)
    assert max(len(json.dumps(state)) for state in states) < 1000
    for done, state in enumerate(states[:-1]):
        loaders = [penstock.Loader(dataset, batch_by=rule, tail=tail, rank=rank, world=2) for rank in range(2)]
        for each in loaders:
            each.load_state_dict(state)
        parts = [ids(each) for each in loaders]
        assert [flat(batch) for batch in zip(*parts, strict=True)] == reference[done:]
        assert loaders[0].state_dict() == loaders[1].state_dict()


@quick
@given(
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=80),
    boundaries=st.sets(st.integers(1, 39), min_size=1, max_size=5).map(sorted),
    data=st.data(),
)
def test_buckets_fill_in_the_order_of_the_epoch(tmp_path, lengths, boundaries, data):
    sizes = data.draw(st.lists(st.integers(1, 6), min_size=len(boundaries) + 1, max_size=len(boundaries) + 1))
    dataset = write(tmp_path / "d", lengths).shuffle(7, window=3)
    order = flat(ids(penstock.Loader(dataset, batch_size=8)))
    # As tf.data's bucket_by_sequence_length.
    expected, open_ = [], [[] for _ in sizes]
    for sample in order:
        bucket = int(np.searchsorted(boundaries, lengths[sample]))
        open_[bucket].append(sample)
        if len(open_[bucket]) == sizes[bucket]:
            expected.append(open_[bucket])
            open_[bucket] = []
    rests = [rest for rest in open_ if rest]
    rule = penstock.buckets(lengths, boundaries, sizes)
    arguments = {"batch_by": rule, "rank": 0, "world": 1}
    assert ids(penstock.Loader(dataset, **arguments)) == expected + rests
    assert ids(penstock.Loader(dataset, tail="drop", **arguments)) == expected
    padded = list(penstock.Loader(dataset, tail="pad", **arguments))
    assert [batch["id"][batch["weight"] == 1].tolist() for batch in padded] == expected + rests
    for batch, rest in zip(padded[len(expected) :], rests, strict=True):
        assert len(batch["id"]) == sizes[int(np.searchsorted(boundaries, lengths[rest[0]]))]
        assert set(batch["id"].tolist()) == set(rest)


@quick
@given(
    lengths=st.lists(st.integers(0, 50), min_size=1, max_size=150),
    tokens=st.integers(50, 300),
    most=st.none() | st.integers(1, 20),
    world=st.integers(1, 3),
)
def test_budgets_hold_on_every_rank(tmp_path, lengths, tokens, most, world):
    dataset = write(tmp_path / "d", lengths, per_object=16).shuffle(7)
    rule = penstock.budget(tokens, length="tokens", max_samples=most)
    batches, parts = global_ids(dataset, world, batch_by=rule)
    assert sorted(flat(batches)) == list(range(len(lengths)))
    for part in parts:
        for mine in part:
            longest = max((lengths[sample] for sample in mine), default=0)
            assert len(mine) * longest <= tokens
            assert most is None or len(mine) <= most
    # All batches but the last have equally many samples on all ranks.
    for batch in list(zip(*parts, strict=True))[:-1]:
        assert len(set(map(len, batch))) == 1


def test_budgets_waste_little(tmp_path):
    lengths = np.random.default_rng(1).lognormal(5, 0.6, 3000).astype(int).clip(1, 1000)
    dataset = write(tmp_path / "d", [0] * len(lengths), per_object=1000).shuffle(7)
    cost = [
        len(mine) * max(lengths[mine])
        for mine in ids(penstock.Loader(dataset, batch_by=penstock.budget(8192, length=lengths)))
    ]
    assert lengths.sum() / sum(cost) > 0.93
    assert np.mean(cost) > 0.93 * 8192


def test_buckets_pad_fields_to_their_boundaries_on_all_ranks(tmp_path):
    lengths = [1, 9, 3, 12, 4, 30, 8, 2]
    dataset = write(tmp_path / "d", lengths).fields(
        tokens=penstock.ragged("int64").padded("bucket", mask="m"), id=penstock.tensor("int64", ())
    )
    rule = penstock.buckets("tokens", [4, 12], global_batch_sizes=[2, 2, 2])
    for rank in range(2):
        shapes = {}
        for batch in penstock.Loader(dataset, batch_by=rule, rank=rank, world=2):
            assert batch["tokens"].shape == batch["m"].shape
            for sample in batch["id"].tolist():
                shapes[sample] = batch["tokens"].shape[1]
        assert all(shapes[at] == (4 if lengths[at] <= 4 else 12 if lengths[at] <= 12 else 30) for at in shapes)
    other = penstock.buckets([1] * 8, [4], global_batch_sizes=[2])
    with pytest.raises(
        penstock.errors.Mismatch, match=r"record 1: field `tokens` has 9 items, but its row is padded to 4"
    ):
        list(penstock.Loader(dataset, batch_by=other, rank=0, world=1))


def test_batch_by_maps_samples_at_their_positions(tmp_path):
    dataset = write(tmp_path / "d", [5, 1, 2, 7, 3, 1, 2]).shuffle(3)
    seeds = lambda sample, seed: {"id": sample["id"], "seed": seed}  # noqa: E731 - a function of both loaders
    even = {}
    for batch in penstock.Loader(dataset.map(seeds), batch_size=2):
        even.update(zip(batch["id"].tolist(), batch["seed"].tolist(), strict=True))
    for tail in ("ragged", "pad"):
        rule = penstock.buckets("tokens", [2, 9], [2, 2])
        for batch in penstock.Loader(dataset.map(seeds), batch_by=rule, tail=tail):
            for sample, seed in zip(batch["id"].tolist(), batch["seed"].tolist(), strict=True):
                assert even[sample] == seed


def test_batch_by_length_of_a_mixture_that_is_no_list_of_arrays_is_refused(tmp_path):
    a, b = (write(tmp_path / name, [1, 2]) for name in "ab")
    mixed = penstock.mix([(a, 1), (b, 1)])
    for length, text in (([1, 2], "length: must be"), ([[1, 2]], "1 arrays were given for 2"), (len, "1 arrays were")):
        with pytest.raises(ConfigError, match=text) as caught:
            len(penstock.Loader(mixed, batch_by=penstock.buckets(length, [4], [1])))
        assert "array" in caught.value.hint


def test_batch_by_of_a_mixture_takes_an_array_per_dataset(tmp_path):
    a, b = write(tmp_path / "a", [1, 2, 3] * 4).shuffle(1), write(tmp_path / "b", [9, 8] * 4).shuffle(2)
    mixed = penstock.mix({a: 1, b: 1}, samples=40)
    rule = penstock.buckets([[1, 2, 3] * 4, np.array([9, 8] * 4)], [4, 9], [4, 2])
    found = ids(penstock.Loader(mixed, batch_by=rule))
    assert sum(map(len, found)) == 40
    assert found == ids(penstock.Loader(mixed, batch_by=penstock.buckets("tokens", [4, 9], [4, 2])))
    with pytest.raises(ConfigError, match="3 arrays were given for 2 datasets"):
        iter(penstock.Loader(mixed, batch_by=penstock.buckets([[1], [2], [3]], [4], [4])))


def test_lengths_of_a_field_are_read_once_and_kept(tmp_path, caplog):
    lengths = [3, 0, 7, 1, 2]
    dataset = write(tmp_path / "d", lengths)
    rule = penstock.buckets("tokens", [4], [2, 2])
    list(penstock.Loader(dataset, batch_by=rule))
    list(penstock.Loader(penstock.open(tmp_path / "d").fields(**dict(dataset.specs)), batch_by=rule))
    assert caplog.text.count("batch_by `tokens` reads all 5 samples once") == 1
    for spec, expected in [
        (penstock.ragged("int64"), lengths),
        (penstock.ragged("int64").padded(), lengths),
        (penstock.tensor("int64", (), default=9).of("id"), list(range(5))),
    ]:
        assert sample_lengths.of_field(dataset.fields(tokens=spec), "tokens").tolist() == expected
    # A field that the loader does not read.
    assert sample_lengths.of_field(dataset.fields(id=penstock.tensor("int64", ())), "tokens").tolist() == lengths
    write(tmp_path / "d", [1, 1, 1, 1, 1])
    changed = penstock.open(tmp_path / "d").fields(**dict(dataset.specs))
    assert sample_lengths.of_field(changed, "tokens").tolist() == [1] * 5


def test_kept_lengths_that_are_damaged_are_read_again(tmp_path, cache):
    dataset = write(tmp_path / "d", [3, 0, 7])
    assert sample_lengths.of_field(dataset, "tokens").tolist() == [3, 0, 7]
    (kept,) = cache.rglob("*.samples")
    whole = kept.read_bytes()
    at = whole.index(np.array([3, 0, 7], np.uint32).tobytes())
    npy = whole[whole.index(b"\x93NUMPY") : at + 12]
    for damaged in (b"", whole[:-2], npy, npy[:6] + bytes(50), whole[:at] + b"\x04" + whole[at + 1 :]):
        kept.write_bytes(damaged)
        assert sample_lengths.of_field(dataset, "tokens").tolist() == [3, 0, 7]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: penstock.buckets("t", [4, 4], [1, 1]), r"boundaries: must be ascending \(got \[4, 4\]\)"),
        (
            lambda: penstock.buckets("t", [4, 8], [1]),
            r"one size per boundary or one more, .* \(got 1 sizes for 2 boundaries\)",
        ),
        (lambda: penstock.buckets("t", [], []), r"at least 1 size \(got 0 sizes for 0 boundaries\)"),
        (lambda: penstock.buckets("t", [4], [0]), "batch_sizes: must be a whole number from 1"),
        (lambda: penstock.buckets("t", [float("nan")], [1]), "boundaries: must be a whole number"),
        (lambda: penstock.buckets("t", [4], [1], global_batch_sizes=[1]), "give exactly one of batch_sizes"),
        (lambda: penstock.buckets("t", [4]), "give exactly one of batch_sizes"),
        (lambda: penstock.budget(0, length="t"), "tokens: must be a whole number from 1"),
        (lambda: penstock.budget(length="t"), "give exactly one of tokens"),
        (lambda: penstock.budget(9, length="t", max_samples=0), "max_samples: must be"),
        (lambda: penstock.budget(9, length="t", window=-1), "window: must be"),
    ],
)
def test_a_bad_rule_is_an_error(make, text):
    with pytest.raises(ConfigError, match=text):
        make()


@pytest.mark.parametrize(
    ("length", "text"),
    [
        ([1, 2], "length: 2 lengths were given, but the dataset has 3 samples"),
        ([1, -2, 3], "the length of sample 1 is -2, not a whole number"),
        ([1.0, 2.0, float("nan")], "the length of sample 2 is nan"),
        ([1, 2.5, 3], "the length of sample 1 is 2.5"),
        ([1, 2, 2**32], "the length of sample 2 is 4294967296"),
        (["a", "b", "c"], "must be an array of one number per sample"),
        (lambda sample: 1, r"must be an array of one number per sample \(got function\)"),
        ("nothing", "`nothing` does not exist"),
        ("x", r"`x` is float32 \[\]; it must be a ragged"),
    ],
)
def test_bad_lengths_are_an_error(tmp_path, length, text):
    records = [frame(example(tokens=[1], id=[at], x=[0.5])) for at in range(3)]
    (tmp_path / "a.tfrecord").write_bytes(b"".join(records))
    dataset = penstock.open(tmp_path / "a.tfrecord").fields(x=penstock.tensor("float32", ()))
    with pytest.raises(ConfigError, match=text):
        list(penstock.Loader(dataset, batch_by=penstock.buckets(length, [4], [1])))


def test_a_sample_that_fits_no_bucket_or_budget_is_named(tmp_path):
    dataset = write(tmp_path / "d", [1, 2, 3, 4, 5, 9, 1])
    fits = dataset.take(5)
    with pytest.raises(
        ConfigError, match=r"0001\.tfrecord record 1 has length 9, which exceeds the last boundary \(8\)"
    ) as caught:
        list(penstock.Loader(dataset, batch_by=penstock.buckets("tokens", [4, 8], [2, 2])))
    assert "add one size to batch_sizes for a bucket without a bound, or leave out" in caught.value.hint
    assert "ds.filter(fn)" in caught.value.hint
    with pytest.raises(
        ConfigError, match=r"0001\.tfrecord record 1 has length 9, which exceeds the token budget of a batch \(8\)"
    ) as caught:
        list(penstock.Loader(dataset, batch_by=penstock.budget(8, length=np.array([1, 2, 3, 4, 5, 9, 1]))))
    assert "raise tokens to at least the length of the longest sample" in caught.value.hint
    assert "ds.select(lengths <= longest)" in caught.value.hint
    # Samples that are not selected do not matter.
    assert sorted(flat(ids(penstock.Loader(fits, batch_by=penstock.budget(8, length="tokens"))))) == [0, 1, 2, 3, 4]
    budget = penstock.budget(length="tokens", global_tokens=9)
    buckets = penstock.buckets("tokens", [4], global_batch_sizes=[4, 1])
    for rule, problem, advice in (
        (
            budget,
            "the longest samples form batches of 1",
            "raise global_tokens to at least the length of the longest sample times the ranks",
        ),
        (buckets, "the smallest batch size of a bucket is 1", "raise each of global_batch_sizes"),
    ):
        with pytest.raises(ConfigError, match=f"{problem}, which is fewer than the 2 ranks") as c:
            list(penstock.Loader(dataset, batch_by=rule, rank=0, world=2))
        assert advice in c.value.hint


def test_batch_by_reads_each_compressed_object_once(tmp_path):
    lengths = np.random.default_rng(3).lognormal(2, 1, 400).astype(int)
    dataset = write(tmp_path / "d", lengths, per_object=10)
    for path in (tmp_path / "d").iterdir():
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    dataset = penstock.open(tmp_path / "d").fields(**dict(dataset.specs)).shuffle(2, window=4)
    for rule in (penstock.buckets(lengths, [4, 16, 64], [64, 16, 4, 1]), penstock.budget(1000, length=lengths)):
        loader = penstock.Loader(dataset, batch_by=rule, rank=0, world=1, prefetch_next_epoch=False)
        assert sorted(flat(ids(loader))) == list(range(400))
        assert loader.report()["requests"] == 40


def test_one_bucket_of_all_is_a_constant_batch_size(tmp_path):
    dataset = write(tmp_path / "d", [1, 0, 3, 0, 5, 9, 1]).shuffle(5)
    assert ids(penstock.Loader(dataset, batch_by=penstock.buckets("tokens", [], [3]))) == ids(
        penstock.Loader(dataset, batch_size=3)
    )


def test_a_state_of_another_rule_is_refused(tmp_path):
    dataset = write(tmp_path / "d", [1, 2, 3, 4, 5, 6, 7, 8]).shuffle(5)

    def loader(world=1, **arguments):
        return penstock.Loader(dataset, rank=0, world=world, **arguments)

    rule = penstock.buckets("tokens", [4, 8], [2, 2])
    first = loader(batch_by=rule)
    next(iter(first))
    state = first.state_dict()
    others = [
        {"batch_by": penstock.buckets("tokens", [5, 8], [2, 2])},
        {"batch_by": penstock.buckets("tokens", [4, 8], [2, 1])},
        {"batch_by": penstock.buckets([1, 2, 3, 4, 5, 6, 7, 7], [4, 8], [2, 2])},
        {"batch_by": penstock.budget(16, length="tokens")},
        {"batch_by": rule, "world": 2},
        {"batch_size": 2},
    ]
    for arguments in others:
        with pytest.raises(ConfigError, match=r"state: batches is .*but this loader's batches is"):
            loader(**arguments).load_state_dict(state)
    # Two ranks with sizes over all ranks go on.
    loader(world=2, batch_by=penstock.buckets("tokens", [4, 8], global_batch_sizes=[2, 2])).load_state_dict(state)
    inside = loader(batch_by=rule)
    inside.load_state_dict({**state, "cursor": 1})
    with pytest.raises(ConfigError, match="cursor 1 is not the start of a batch"):
        next(iter(inside))


def test_batch_by_that_cannot_be_combined_says_what_to_change(tmp_path):
    dataset = write(tmp_path / "d", [1, 2])
    rule = penstock.buckets("tokens", [4], [2])
    bucketed = dataset.fields(tokens=penstock.ragged("int64").padded("bucket"))
    for make, text, advice in (
        (
            lambda: penstock.Loader(dataset, batch_by=rule, batch_size=2),
            "cannot be combined with b",
            "leave out batch_si",
        ),
        (lambda: penstock.Loader(dataset, batch_by=[4]), "must be a penstock.buckets", "penstock.budget(8192, length"),
        (
            lambda: penstock.Loader(penstock.open(tmp_path / "d", indexed=False), batch_by=rule),
            "requires counted records",
            "open it without indexed=False",
        ),
        (
            lambda: penstock.Loader(dataset.pack(4), batch_by=rule),
            "but the dataset was packed",
            "give batch_size in place of batch_by",
        ),
        (
            lambda: list(penstock.Loader(bucketed, batch_size=2)),
            "padded to its bucket only",
            "give batch_by=penstock.b",
        ),
    ):
        with pytest.raises(ConfigError, match=text) as caught:
            make()
        assert advice in caught.value.hint
    with pytest.raises(ConfigError, match=r"give exactly one of batch_size .* batch_by"):
        penstock.Loader(dataset)


def test_batch_by_with_too_little_memory_for_all_open_batches_still_ends(tmp_path):
    # Long samples are all in one object, so a shuffle window has many more batches than on average.
    lengths = [1] * 600 + [400] * 200
    dataset = write(tmp_path / "d", lengths, per_object=200).shuffle(1, window=1)
    loader = penstock.Loader(
        dataset, batch_by=penstock.buckets("tokens", [1, 400], [100, 1]), memory_bytes=1_400_000, rank=0, world=1
    )
    assert sorted(flat(ids(loader))) == list(range(800))


def test_collate_gets_samples_and_its_errors_are_named(tmp_path):
    dataset = write(tmp_path / "d", [1, 2, 3]).shuffle(5)
    plain = ids(penstock.Loader(dataset, batch_size=2))

    def collate(samples):
        assert all(isinstance(sample["tokens"], np.ndarray) for sample in samples)
        return [int(sample["id"]) for sample in samples], sum(len(sample["tokens"]) for sample in samples)

    made = list(penstock.Loader(dataset, batch_size=2, collate=collate))
    assert [batch for batch, _ in made] == plain
    assert sum(tokens for _, tokens in made) == 6
    mapped = dataset.map(lambda sample: {"id": sample["id"] + 1, "tokens": sample["tokens"].tolist()})
    made = list(penstock.Loader(mapped, batch_size=2, collate=lambda samples: [int(one["id"]) for one in samples]))
    assert made == [[at + 1 for at in batch] for batch in plain]
    failing = penstock.Loader(dataset, batch_size=2, collate=lambda samples: samples[0]["none"])
    with pytest.raises(MapFailed, match=r"collate: batch 0 .* epoch 0 \(2 samples on rank 0\): KeyError: 'none'"):
        next(iter(failing))
    with pytest.raises(ConfigError, match="collate: 3 is not callable"):
        penstock.Loader(dataset, batch_size=2, collate=3)


def test_batch_by_length_of_a_text_batches_its_tokens(tmp_path):
    texts = ["x" * (1 + at * 7 % 20) for at in range(30)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    documents = penstock.open(tmp_path).fields(text=penstock.text()).shuffle(1)
    tokens = documents.tokenize(lambda texts: [list(text.encode()) for text in texts], key="bytes-1")
    made = [
        np.diff(batch["tokens"].offsets)
        for batch in penstock.Loader(tokens, batch_by=penstock.budget(40, length="text"))
    ]
    assert all(len(rows) * rows.max() <= 40 for rows in made)
    assert sorted(chain.from_iterable(row.tolist() for row in made)) == sorted(map(len, texts))
    with pytest.raises(ConfigError, match="`tokens` is made from text by tokenize") as refused:
        next(iter(penstock.Loader(tokens, batch_by=penstock.budget(40, length="tokens"))))
    assert 'length="text"' in str(refused.value.hint)


@pytest.mark.needs_torch
def test_collate_and_batch_by_reach_torch(tmp_path):
    import torch

    dataset = write(tmp_path / "d", [1, 2, 3, 4])
    rule = penstock.buckets("tokens", [2, 4], [2, 2])
    collate = lambda samples: {"id": torch.tensor([int(one["id"]) for one in samples])}  # noqa: E731 - one line
    made = list(penstock.torch.Loader(dataset, batch_by=rule, collate=collate, device="cpu"))
    assert [batch["id"].tolist() for batch in made] == [[0, 1], [2, 3]]


def test_buckets_rank_without_rows_at_a_windows_end_does_not_hang(tmp_path):
    """The rank's empty batch is delivered at once, while its other batches may not be planned yet."""
    dataset = write(tmp_path, [4] * 18)
    rule = penstock.buckets("tokens", [9], global_batch_sizes=[4], window=9)
    first = penstock.Loader(dataset, batch_by=rule, rank=0, world=1)
    batches = iter(first)
    assert [len(next(batches)["id"]) for _ in range(2)] == [4, 4]
    for _ in range(20):
        loader = penstock.Loader(dataset, batch_by=rule, rank=0, world=2)
        loader.load_state_dict(first.state_dict())
        assert list(map(len, ids(loader))) == [0, 2, 2, 0]

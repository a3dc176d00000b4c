# SPDX-License-Identifier: Apache-2.0
"""`pack(count_tokens=True)`: the same windows on any number of ranks, against the packer of `test_pack`."""

from __future__ import annotations

import json
import pickle
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock.errors import ConfigError, MapFailed

from .test_pack import TEXTS, Bytes, packed, windows_of, write

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from .test_pack import Windows


def dataset(
    folder: Path, length: int = 7, plus: int = 0, seed: int | None = None, **arguments: Any
) -> penstock.Dataset:
    text = penstock.open(folder).fields(text=penstock.text())
    text = text if seed is None else text.shuffle(seed, window=2)
    return text.tokenize(Bytes(plus)).pack(length, **{"pad": -1, "documents": 3, "count_tokens": True, **arguments})


def joined(windows: Iterable[Windows]) -> Windows:
    return list(chain.from_iterable(windows))


def over_ranks(made: Any, world: int, state: Any = None, **arguments: Any) -> tuple[list[Windows], list[Any]]:
    """Windows of each global batch of an epoch, and the state after each batch, which all ranks must share."""
    parts, states = [], []
    for rank in range(world):
        loader = penstock.Loader(made, rank=rank, world=world, **arguments)
        if state is not None:
            loader.load_state_dict(state)
        found = [(windows_of([batch]), json.dumps(loader.state_dict())) for batch in loader]
        parts.append([windows for windows, _ in found])
        states.append([state for _, state in found])
    assert all(each == states[0] for each in states)
    return [joined(of) for of in zip(*parts, strict=True)], [json.loads(each) for each in states[0]]


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.text("ab", max_size=20), min_size=1, max_size=12),
    st.integers(1, 9),
    st.booleans(),
    st.sampled_from([None, 999]),
    st.sampled_from([None, 998]),
    st.integers(1, 4),
    st.integers(1, 5),
    st.sampled_from([None, 7]),
    st.data(),
)
def test_counted_windows_are_those_of_a_plain_packer_on_any_number_of_ranks_and_after_resume(
    tmp_path_factory, texts, length, split, eos, bos, world, batch, seed, data
):
    folder = write(tmp_path_factory.mktemp("pack"), texts, 2)
    made = dataset(folder, length, split=split, eos=eos, bos=bos, seed=seed)
    order = penstock.open(folder).fields(text=penstock.text())
    order = order if seed is None else order.shuffle(seed, window=2)
    documents = [list(text.encode()) for each in penstock.Loader(order, batch_size=4) for text in each["text"]]
    want = packed(documents, length, split=split, eos=eos, bos=bos)
    found, states = over_ranks(made, world, global_batch=batch)
    assert joined(found) == want
    assert [len(each) for each in found[:-1]] == [batch] * len(found[:-1])
    full, _ = over_ranks(made, world, global_batch=batch, tail="drop")
    assert full == found[: len(full)]
    assert len(found) - len(full) in (0, 1)
    if found:
        stop = data.draw(st.integers(0, len(states) - 1))
        other, size = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 5))
        if states[stop]["epoch"] == 0:
            rest, _ = over_ranks(made, other, states[stop], global_batch=size)
            assert joined(rest) == want[sum(map(len, found[: stop + 1])) :]


def test_counted_loader_has_a_length_an_epoch_and_a_small_state(tmp_path: Path) -> None:
    made = dataset(write(tmp_path, TEXTS), seed=3)
    loader = penstock.Loader(made, batch_size=2)
    first = list(loader)
    assert (len(first), loader.epoch) == (len(loader), 1)
    second = list(loader)
    assert loader.epoch == 2
    assert windows_of(first) != windows_of(second)
    assert len(json.dumps(loader.state_dict())) < 1000
    assert windows_of(pickle.loads(pickle.dumps(loader))) == windows_of(penstock_epoch(made, 2))


def penstock_epoch(made: Any, epoch: int) -> penstock.Loader:
    loader = penstock.Loader(made, batch_size=2)
    loader.set_epoch(epoch)
    return loader


def test_counted_tokens_are_counted_once(tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: Any) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    made = dataset(write(tmp_path / "data", TEXTS))
    list(penstock.Loader(made, batch_size=2))
    list(penstock.Loader(dataset(tmp_path / "data", length=5), batch_size=2))
    assert caplog.text.count("reads all 9 samples once") == 1
    list(penstock.Loader(dataset(tmp_path / "data", plus=1), batch_size=2))
    assert caplog.text.count("reads all 9 samples once") == 2


def test_counted_pack_keeps_fields_together_and_reads_ready_tokens_and_mixtures(tmp_path: Path) -> None:
    rows = [{"ids": list(range(number)), "labels": [-value for value in range(number)]} for number in (3, 0, 9, 4)]
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "0.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    fields = {name: penstock.ragged("int64") for name in ("ids", "labels")}
    a, b = (penstock.open(tmp_path / name).fields(**fields) for name in "ab")
    for made in (a, penstock.mix([(a, 1), (b, 1)])):
        made = made.pack(4, fields=("ids", "labels"), pad=0, count_tokens=True)
        batches = [batch for rank in range(2) for batch in penstock.Loader(made, global_batch=2, rank=rank, world=2)]
        assert sum(int(batch["mask"].sum()) for batch in batches) in (16, 32)
        assert all((batch["ids"] == -batch["labels"]).all() for batch in batches)


class Changing(Bytes):
    """A tokenizer that returns more tokens in each call."""

    calls = 0

    def __call__(self, texts: list[str]) -> list[list[int]]:
        self.calls += 1
        return [[1] * self.calls for _ in texts]


def test_counted_pack_bad_input_is_one_clear_error(tmp_path: Path) -> None:
    text = penstock.open(write(tmp_path, TEXTS)).fields(text=penstock.text())
    changing = text.tokenize(Changing()).pack(4, count_tokens=True)
    with pytest.raises(MapFailed, match="document 0 of the epoch has 2 tokens, but 1 were counted"):
        list(penstock.Loader(changing, batch_size=2))
    made = dataset(tmp_path)
    state = penstock.Loader(made, batch_size=2).state_dict()
    for change, message in (
        ({"cursor": 10**6}, "cursor 1000000 is not within the windows of the epoch"),
        ({"cursor": -1}, "cursor -1"),
        ({"epoch": None}, "epoch None"),
        ({"tokens": "0"}, "tokens is '0'"),
    ):
        with pytest.raises(ConfigError, match=message):
            penstock.Loader(made, batch_size=2).load_state_dict({**state, **change})
    with pytest.raises(ConfigError, match="packed is"):
        penstock.Loader(dataset(tmp_path, eos=3), batch_size=2).load_state_dict(state)
    with pytest.raises(ConfigError, match="packed is"):
        penstock.Loader(dataset(tmp_path, count_tokens=False), batch_size=2).load_state_dict(state)
    with pytest.raises(ConfigError, match="on_error"):
        penstock.Loader(made, batch_size=2, on_error="skip")
    unindexed = penstock.open(tmp_path, indexed=False).fields(text=penstock.text()).tokenize(Bytes())
    with pytest.raises(ConfigError, match="indexed=False"):
        penstock.Loader(unindexed.pack(4, count_tokens=True), batch_size=2)
    mapped = text.map(lambda sample: sample).tokenize(Bytes()).pack(4, count_tokens=True)
    with pytest.raises(ConfigError, match="map"):
        penstock.Loader(mapped, batch_size=2)


def test_counted_pack_of_empty_documents_has_no_batch(tmp_path: Path) -> None:
    loader = penstock.Loader(dataset(write(tmp_path, ["", ""])), batch_size=2)
    assert (len(loader), list(loader)) == (0, [])
    assert np.array_equal(windows_of(list(penstock.Loader(dataset(tmp_path, eos=5), batch_size=2)))[0][0][:2], [5, 5])


def test_counted_pack_reads_the_fields_of_the_user_beside_those_of_tokenize(tmp_path: Path) -> None:
    rows = [{"p": "abc" * number, "ids": list(range(number))} for number in (2, 0, 5)]
    (tmp_path / "0.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    opened = penstock.open(tmp_path)

    def tokens(batch: Any) -> int:
        return sum(int(each["mask"].sum()) for each in penstock.Loader(batch, batch_size=2))

    def both(texts: list[str]) -> dict[str, list[list[int]]]:
        ids = [list(text.encode()) for text in texts]
        return {"ids": ids, "labels": ids}

    renamed = opened.fields(q=penstock.text().of("p")).tokenize(both, "q", key="both")
    assert tokens(renamed.pack(2, fields=("ids", "labels"), count_tokens=True)) == 21
    ready = opened.fields(p=penstock.text(), ids=penstock.ragged("int64")).tokenize(Bytes(), "p")
    assert tokens(ready.pack(2, fields="ids", count_tokens=True)) == 7


def test_counted_pack_state_of_another_order_is_refused(tmp_path: Path) -> None:
    loader = penstock.Loader(dataset(write(tmp_path, TEXTS), seed=1), batch_size=2)
    with pytest.raises(ConfigError, match="order is 0"):
        loader.load_state_dict({**loader.state_dict(), "order": 0})

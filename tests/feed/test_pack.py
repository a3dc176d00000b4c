# SPDX-License-Identifier: Apache-2.0
"""Tokenization in the feed, and documents packed into windows: against a packer of a few lines in plain Python."""

from __future__ import annotations

import json
import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock.errors import ConfigError, MapFailed
from penstock.feed.states import for_rank

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    Windows = list[tuple[list[int], list[int], list[int]]]


class Bytes:
    """Tokenizer whose tokens are the bytes of the text, plus a number."""

    def __init__(self, plus: int = 0) -> None:
        self.plus, self.digest = plus, f"bytes {plus}"

    def __call__(self, texts: list[str]) -> list[list[int]]:
        return [[byte + self.plus for byte in text.encode()] for text in texts]


def write(folder: Path, texts: Sequence[str], parts: int = 2) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    size = -(-len(texts) // parts)
    for part in range(parts):
        lines = [json.dumps({"text": text}) + "\n" for text in texts[part * size : (part + 1) * size]]
        (folder / f"{part}.jsonl").write_text("".join(lines))
    return folder


def packed(
    documents: Iterable[list[int]], length: int, *, split: bool = True, bos: int | None = None, eos: int | None = None
) -> Windows:
    """Windows as (tokens, segment_ids, position_ids), the last one padded with -1."""
    windows: Windows = []
    row: tuple[list[int], list[int], list[int]] = ([], [], [])

    def put(token: int, segment: int, position: int) -> None:
        for column, value in zip(row, (token, segment, position), strict=True):
            column.append(value)
        if len(row[0]) == length:
            windows.append(tuple(list(column) for column in row))  # type: ignore[arg-type]
            for column in row:
                column.clear()

    for document in documents:
        tokens = [*([] if bos is None else [bos]), *document, *([] if eos is None else [eos])]
        if not split and len(row[0]) and len(tokens) > length - len(row[0]):
            while row[0]:
                put(-1, 0, 0)
        segment, position = max(row[1], default=0) + 1, 0
        for token in tokens:
            if not row[0]:
                segment, position = 1, 0
            put(token, segment, position)
            position += 1
    while row[0]:
        put(-1, 0, 0)
    return windows


def windows_of(batches: Iterable[dict[str, Any]]) -> Windows:
    found = []
    for batch in batches:
        assert (batch["mask"] == (batch["segment_ids"] > 0)).all()
        columns = (batch[name].tolist() for name in ("tokens", "segment_ids", "position_ids"))
        found += list(zip(*columns, strict=True))
    return found


def dataset(folder: Path, length: int = 7, plus: int = 0, **arguments: object) -> penstock.Dataset:
    text = penstock.open(folder).fields(text=penstock.text())
    return text.tokenize(Bytes(plus)).pack(length, **{"pad": -1, "documents": 3, **arguments})


TEXTS = ["", "a", "bc", "", "a longer document than a window is", "xyz", "é", "0123456", "end"]


@pytest.mark.parametrize("split", [True, False])
@pytest.mark.parametrize(("bos", "eos"), [(None, None), (None, 999), (998, 999)])
def test_pack_windows_are_those_of_a_plain_packer(
    tmp_path: Path, split: bool, bos: int | None, eos: int | None
) -> None:
    write(tmp_path, TEXTS)
    made = dataset(tmp_path, split=split, bos=bos, eos=eos)
    loader = penstock.Loader(made, batch_size=2)
    batches = list(loader)
    assert windows_of(batches) == packed((list(t.encode()) for t in TEXTS), 7, split=split, bos=bos, eos=eos)
    assert loader.epoch == 1
    assert [batch["tokens"].dtype for batch in batches[:1]] == [np.int64]
    dropped = list(penstock.Loader(made, batch_size=2, tail="drop"))
    assert windows_of(dropped) == windows_of(batches)[: len(dropped) * 2]
    assert len(dropped) * 2 in (len(windows_of(batches)) // 2 * 2, len(windows_of(batches)) // 2 * 2 - 2)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.text("ab", max_size=20), min_size=1, max_size=12),
    st.integers(1, 9),
    st.booleans(),
    st.sampled_from([None, 999]),
    st.sampled_from([None, 998]),
    st.integers(0, 6),
    st.integers(1, 3),
)
def test_pack_resumes_in_the_middle_of_a_document(tmp_path_factory, texts, length, split, eos, bos, stop, batch):
    folder = write(tmp_path_factory.mktemp("pack"), texts, 1)
    made = dataset(folder, length, split=split, eos=eos, bos=bos)
    want = packed((list(text.encode()) for text in texts), length, split=split, eos=eos, bos=bos)
    loader = penstock.Loader(made, batch_size=2, tail="ragged")
    seen = []
    batches = iter(loader)
    for _, one in zip(range(stop), batches, strict=False):
        seen.append(one)
    state = json.loads(json.dumps(loader.state_dict()))
    again = penstock.Loader(made, batch_size=batch, tail="ragged")
    again.load_state_dict(state)
    if state["ranks"]["0"]["epoch"] == 0:
        assert windows_of([*seen, *again]) == want
        assert again.epoch == 1
    else:
        assert windows_of(seen) == want


def test_pack_ranks_read_each_document_once_and_resume_by_themselves(tmp_path: Path) -> None:
    texts = [f"document {number} " * (number % 4) for number in range(40)]
    write(tmp_path, texts)
    made = penstock.open(tmp_path).fields(text=penstock.text()).shuffle(5)
    made = made.tokenize(Bytes()).pack(16, pad=-1, documents=4, eos=10)
    documents: list[str] = []
    for rank in range(3):
        loader = penstock.Loader(made, batch_size=2, rank=rank, world=3)
        whole = windows_of(loader)
        stream = [token for tokens, _, _ in whole for token in tokens if token >= 0]
        documents += bytes(stream).decode().split("\n")[:-1]
        resumed = penstock.Loader(made, batch_size=2, rank=rank, world=3)
        batches = iter(resumed)
        first = [next(batches), next(batches)]
        state = resumed.state_dict()
        assert state["promise"].startswith("packed: a position in this rank's own documents")
        other = penstock.Loader(made, batch_size=1, rank=rank, world=3)
        other.load_state_dict(state)
        assert windows_of([*first, *other]) == whole
        with pytest.raises(ConfigError, match=r"state: (rank|world) is \d, but this loader's (rank|world) is \d"):
            penstock.Loader(made, batch_size=1, rank=0, world=1).load_state_dict(state)
    assert sorted(documents) == sorted(text for text in texts)


def test_pack_state_is_small_and_refuses_another_tokenizer_or_window(tmp_path: Path) -> None:
    write(tmp_path, TEXTS)
    steps = penstock.open(tmp_path).fields(text=penstock.text()).shuffle(2**64 - 1, window=2**62)
    for _ in range(60):
        steps = steps.take(2**62)
    made = steps.tokenize(Bytes()).pack(7)
    loader = penstock.Loader(made, batch_size=1, rank=2**20, world=2**30)
    state = loader.state_dict()
    mine = {"rank": 10**6, "epoch": 2**63 - 1, "cursor": 2**64 - 1, "document": 2**24 - 1, "token": 2**40 - 1}
    largest = {**state, "ranks": {"1000000": mine}}
    assert len(json.dumps(largest)) < 1000
    state = penstock.Loader(dataset(tmp_path), batch_size=1).state_dict()
    for other, name in ((dataset(tmp_path, plus=1), "tokenizer"), (dataset(tmp_path, eos=3), "packed")):
        with pytest.raises(ConfigError, match=f"state: {name} is '.*', but this loader's {name} is '.*'"):
            penstock.Loader(other, batch_size=1).load_state_dict(state)
    text = penstock.open(tmp_path).fields(text=penstock.text())
    with pytest.raises(ConfigError, match="saved from a packed dataset"):
        penstock.Loader(text, batch_size=1).load_state_dict(state)
    with pytest.raises(ConfigError, match="saved from a dataset that was not packed"):
        penstock.Loader(dataset(tmp_path), batch_size=1).load_state_dict(
            penstock.Loader(text, batch_size=1).state_dict()
        )
    flat = dict(for_rank(state, 0))  # the form of earlier versions
    with pytest.raises(ConfigError, match="order is 0, but"):
        penstock.Loader(dataset(tmp_path), batch_size=1).load_state_dict({**flat, "order": 0})
    del flat["order"]
    penstock.Loader(dataset(tmp_path), batch_size=1).load_state_dict(flat)
    for name, value in (("document", -1), ("token", 1.5), ("cursor", None), ("epoch", 2**63)):
        with pytest.raises(ConfigError, match=f"state: {name} .* is not valid"):
            penstock.Loader(dataset(tmp_path), batch_size=1).load_state_dict({**flat, name: value})


def test_pack_skipped_documents_are_left_out_before_and_after_a_resume(tmp_path: Path) -> None:
    lines = [json.dumps({"text": f"text {number}"}) for number in range(12)]
    lines[3] = lines[7] = "{damaged"
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    made = dataset(tmp_path, 5, documents=5)
    good = [list(json.loads(line)["text"].encode()) for line in lines if line != "{damaged"]
    loader = penstock.Loader(made, batch_size=1, on_error="skip")
    batches = iter(loader)
    for taken in range(1, 12):
        next(batches)
        resumed = penstock.Loader(made, batch_size=1, on_error="skip")
        resumed.load_state_dict(loader.state_dict())
        assert windows_of(resumed) == packed(good, 5)[taken:]


def test_pack_takes_ready_tokens_of_fixed_and_varying_length(tmp_path: Path) -> None:
    np.arange(40, dtype="uint16").tofile(tmp_path / "a.bin")
    fixed = penstock.open(tmp_path / "a.bin", format=penstock.formats.fixed(ids=penstock.tensor("uint16", (8,))))
    (batch,) = penstock.Loader(fixed.pack(20, fields="ids", dtype="int32"), batch_size=4)
    assert batch["ids"].dtype == np.int32
    assert batch["ids"].tolist() == np.arange(40).reshape(2, 20).tolist()
    assert batch["segment_ids"].tolist() == [[1] * 8 + [2] * 8 + [3] * 4, [1] * 4 + [2] * 8 + [3] * 8]
    (tmp_path / "b.jsonl").write_text(
        '{"x": [1, 2, 70000], "y": [0.5, 1, 2]}\n{"x": [], "y": []}\n{"x": [4], "y": [3]}\n'
    )
    rows = penstock.open(tmp_path / "b.jsonl")
    (batch,) = penstock.Loader(rows.pack(3, fields=("x", "y"), pad={"x": -100}), batch_size=4)
    assert batch["x"].tolist() == [[1, 2, 70000], [4, -100, -100]]
    assert batch["y"].dtype == np.float64
    assert batch["y"].tolist() == [[0.5, 1, 2], [3, 0, 0]]
    with pytest.raises(ConfigError, match=r"`x` .* has values from 0 to 70000, which do not fit uint16"):
        list(penstock.Loader(rows.pack(3, fields="x", dtype="uint16"), batch_size=4))
    with pytest.raises(ConfigError, match=r"pack: `z` is not a field of numbers \(the fields are x, y\)"):
        list(penstock.Loader(rows.pack(3, fields="z"), batch_size=4))
    with pytest.raises(ConfigError, match="`x` is not a field of numbers") as caught:
        list(penstock.Loader(rows.map(lambda sample: {"x": sample["x"].tolist()}).pack(3, fields="x"), batch_size=4))
    assert 'tokenize(lambda lists: lists, "x", into="x", key="lists-1")' in str(caught.value.hint)
    lists = rows.map(lambda sample: {"x": sample["x"].tolist()}).tokenize(
        lambda lists: lists, "x", into="x", key="lists-1"
    )
    (batch,) = penstock.Loader(lists.pack(3, fields="x"), batch_size=4)
    assert batch["x"].tolist() == [[1, 2, 70000], [4, 0, 0]]
    (batch,) = penstock.Loader(lists.padded(), batch_size=4)
    assert batch["x"].tolist() == [[1, 2, 70000], [0, 0, 0], [4, 0, 0]]
    (tmp_path / "b.jsonl").write_text('{"x": [1, 2], "y": [1]}\n')
    with pytest.raises(MapFailed, match="`y` and `x` have different lengths"):
        list(penstock.Loader(penstock.open(tmp_path / "b.jsonl").pack(3, fields=("x", "y")), batch_size=4))


@pytest.mark.parametrize("count_tokens", [False, True])
def test_pack_refuses_a_padded_field(tmp_path: Path, count_tokens: bool) -> None:
    (tmp_path / "a.jsonl").write_text('{"x": [1, 2, 3], "t": "ab"}\n{"x": [4], "t": "c"}\n')
    padded = penstock.ragged("int64").padded(value=9)
    stored = penstock.open(tmp_path).fields(x=padded, t=penstock.text())
    with pytest.raises(ConfigError, match=r"pack: `x` is padded .*, so its padding would be packed") as caught:
        penstock.Loader(stored.pack(2, fields="x", count_tokens=count_tokens), batch_size=2)
    assert "leave out .padded(...)" in str(caught.value.hint)
    bare = penstock.open(tmp_path).fields(x=penstock.ragged("int64"), t=padded.of("x"))
    (batch,) = penstock.Loader(bare.pack(2, fields="x", count_tokens=count_tokens), batch_size=2)
    assert batch["x"].tolist() == [[1, 2], [3, 4]]


def test_tokenize_alone_keeps_order_fields_and_resume_on_any_ranks(tmp_path: Path) -> None:
    texts = [f"t{number}" for number in range(20)]
    write(tmp_path, texts)
    fields = {"text": penstock.text(), "copy": penstock.raw().of("text")}
    made = penstock.open(tmp_path).fields(**fields).shuffle(1).map(lambda sample: {**sample, "n": len(sample["text"])})
    made = made.tokenize(Bytes(), dtype="int32")

    def read(loader: penstock.Loader, count: int | None = None) -> list[str]:
        found = []
        for _, batch in zip(range(count or 99), loader, strict=False):
            tokens = np.split(batch["tokens"].values, batch["tokens"].offsets[1:-1])
            assert [bytes(row.tolist()) for row in tokens] == batch["copy"]
            assert batch["n"].tolist() == [len(row) for row in batch["copy"]]
            assert "text" not in batch
            assert batch["tokens"].values.dtype == np.int32
            found += [text.decode() for text in batch["copy"]]
        return found

    loader = penstock.Loader(made, batch_size=4)
    assert len(loader) == 5
    whole = read(loader)
    assert sorted(whole) == sorted(texts)
    loader = penstock.Loader(made, batch_size=4)
    first = read(loader, 2)
    parts = [penstock.Loader(made, global_batch=6, rank=rank, world=2) for rank in range(2)]
    for part in parts:
        part.load_state_dict(loader.state_dict())
    rest = [
        text for pair in zip(*(iter(part) for part in parts), strict=True) for batch in pair for text in batch["copy"]
    ]
    assert [text.encode() for text in whole] == [text.encode() for text in first] + rest
    assert pickle.loads(pickle.dumps(penstock.Loader(made.tokenizing and dataset(tmp_path), batch_size=1))).world == 1


def test_tokenize_gives_each_sample_to_collate(tmp_path: Path) -> None:
    texts = [f"t{number}" for number in range(7)]
    write(tmp_path, texts)
    made = penstock.open(tmp_path).fields(text=penstock.text()).tokenize(Bytes())
    join = lambda samples: [bytes(one["tokens"].tolist()).decode() for one in samples]  # noqa: E731 - one line
    read = list(penstock.Loader(made, batch_size=5, collate=join))
    assert (len(read[0]), sorted(read[0] + read[1])) == (5, texts)


def test_tokenize_function_of_several_fields_returns_several(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"p": "ab", "c": "x"}\n{"p": "", "c": "yz"}\n')

    def chat(prompts: list[str], answers: list[str]) -> dict[str, list[list[int]]]:
        rows = [(p.encode(), c.encode()) for p, c in zip(prompts, answers, strict=True)]
        return {"tokens": [list(p + c) for p, c in rows], "labels": [[-100] * len(p) + list(c) for p, c in rows]}

    text = penstock.open(tmp_path).fields(p=penstock.text(), c=penstock.text())
    made = text.tokenize(chat, ("p", "c"), key="chat-1").pack(5, fields=("tokens", "labels"), pad={"labels": -100})
    (batch,) = penstock.Loader(made, batch_size=2)
    assert batch["tokens"].tolist() == [list(b"abxyz")]
    assert batch["labels"].tolist() == [[-100, -100, *b"xyz"]]
    assert batch["segment_ids"].tolist() == [[1, 1, 1, 2, 2]]


def test_tokenize_and_pack_refuse_what_they_cannot_do(tmp_path: Path) -> None:
    write(tmp_path, TEXTS)
    text = penstock.open(tmp_path).fields(text=penstock.text())
    for call, match in (
        (lambda: text.tokenize(lambda texts: []), "has no digest"),
        (lambda: text.tokenize(3), "3 is neither a tokenizer nor callable"),
        (lambda: text.tokenize(Bytes(), dtype="float32"), "dtype `float32` is not one of"),
        (lambda: text.pack(0), "length must be 1 to"),
        (lambda: text.pack(8, documents=2**24), "documents must be 1 to"),
        (lambda: text.pack(8, fields=("a", "b"), eos=1), "bos and eos cannot be added to several fields"),
        (lambda: text.pack(8, fields=("mask",)), "because pack adds these fields"),
        (lambda: text.pack(8, fields=("a", "a")), "one or more distinct names"),
        (lambda: text.pack(8, pad={"labels": -100}), r"pad names `labels`, which is not one of the fields \(tokens\)"),
        (lambda: text.pack(8, dtype="float32"), "dtype `float32` is not one of uint8"),
        (lambda: list(penstock.Loader(dataset(tmp_path, dtype="uint16"), batch_size=1)), "values from -1 to "),
        (lambda: list(penstock.Loader(dataset(tmp_path, dtype="int16", eos=2**15), batch_size=1)), " to 32768, which"),
        (lambda: text.pack(8).take(3), "take: must come before map"),
        (lambda: text.tokenize(Bytes()).shuffle(1), "shuffle: must come before map"),
        (lambda: text.pack(8).map(dict), "map: must come before tokenize"),
        (lambda: text.pack(8).pack(8), "already packed"),
        (lambda: penstock.Loader(dataset(tmp_path), batch_size=1, tail="pad"), '"pad" is not supported'),
        (lambda: penstock.Loader(dataset(tmp_path), global_batch=3, rank=0, world=2), "must be a multiple"),
    ):
        with pytest.raises(ConfigError, match=match):
            call()
    with pytest.raises(TypeError, match="has no length, because the dataset is packed without count_tokens=True"):
        len(penstock.Loader(dataset(tmp_path), batch_size=1))
    for function, match in (
        (lambda texts: texts[1:], r"the function returned 8 lists of `tokens` for 9 texts"),
        (lambda texts: [["a"] for _ in texts], "is not a list of int64"),
        (lambda texts: [[1.5] for _ in texts], "'float' object cannot be interpreted as an integer"),
        (lambda texts: ["12" for _ in texts], "'str' object cannot be interpreted as an integer"),
        (lambda texts: [np.ones((2, 2), np.int64) for _ in texts], "is not a list of int64 for each text"),
        (lambda texts: [1 for _ in texts], "is not a list of int64 for each text"),
        (lambda texts: None, "is not a list of int64 for each text"),
        (lambda texts: 1 / 0, "the tokenizer raised ZeroDivisionError"),
    ):
        with pytest.raises(MapFailed, match=match):
            list(penstock.Loader(text.tokenize(function, key="f"), batch_size=9))
    stored = text.fields(text=penstock.raw()).tokenize(lambda texts: ["".join(texts)], key="f")
    with pytest.raises(MapFailed, match="the tokenizer raised") as caught:
        list(penstock.Loader(stored, batch_size=9))
    assert caught.value.hint == "read it as text: .fields(text=penstock.text())"
    with pytest.raises(ConfigError, match=r"tokenize: `body` is not a field of text \(the fields are text\)"):
        list(penstock.Loader(text.tokenize(Bytes(), "body"), batch_size=9))


def test_tokenize_with_the_tokenizers_package_uses_its_digest(tmp_path: Path) -> None:
    import tokenizers

    texts = ["the cat sat on the mat"] * 4
    write(tmp_path, texts)

    def trained(size: int) -> Any:
        tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel()
        tokenizer.train_from_iterator(texts, tokenizers.trainers.BpeTrainer(vocab_size=size, show_progress=False))
        return tokenizer

    tokenizer = trained(30)
    text = penstock.open(tmp_path).fields(text=penstock.text())
    (batch,) = penstock.Loader(text.tokenize(tokenizer), batch_size=4)
    assert batch["tokens"].values.tolist() == tokenizer.encode(texts[0]).ids * 4
    state = penstock.Loader(text.tokenize(tokenizer), batch_size=4).state_dict()
    penstock.Loader(text.tokenize(trained(30)), batch_size=4).load_state_dict(state)
    with pytest.raises(ConfigError, match="state: tokenizer is"):
        penstock.Loader(text.tokenize(trained(14)), batch_size=4).load_state_dict(state)


@pytest.mark.parametrize("count_tokens", [False, True])
def test_pack_of_a_mixture_keeps_the_source_of_each_token(tmp_path: Path, count_tokens: bool) -> None:
    texts = {"a": ["aaa", "a", "", "aaaaaaaa"], "b": ["bb", "bbbbb"]}
    a, b = (
        penstock.open(write(tmp_path / name, of, 1)).fields(text=penstock.text()).shuffle(1)
        for name, of in texts.items()
    )
    mixed = penstock.mix({a: 2, b: 1}, source=True).tokenize(Bytes())
    made = mixed.pack(5, bos=7, eos=9, pad=-1, documents=2, split=False, count_tokens=count_tokens)
    batches = list(penstock.Loader(made, batch_size=2))
    tokens, segments, source = (
        np.concatenate([b[name] for b in batches]) for name in ("tokens", "segment_ids", "source")
    )
    assert source.dtype == np.int32
    assert set(source[segments == 0].tolist()) == {-1}
    assert {chr(token): number for token, number in zip(tokens.flat, source.flat, strict=True) if token > 9} == {
        "a": 0,
        "b": 1,
    }
    for row in range(len(tokens)):  # bos and eos belong to their document
        for segment in set(segments[row].tolist()) - {0}:
            assert len(set(source[row][segments[row] == segment].tolist())) == 1
    loader = penstock.Loader(made, batch_size=2)
    walk = iter(loader)
    next(walk)
    again = penstock.Loader(made, batch_size=2)
    again.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    assert [b["source"].tolist() for b in again] == [b["source"].tolist() for b in walk]


def test_pack_leaves_out_a_source_that_a_function_replaced(tmp_path: Path) -> None:
    a = penstock.open(write(tmp_path / "a", ["aaa", "a"], 1)).fields(text=penstock.text())
    mixed = penstock.mix({a: 1}, source=True)
    for function in (lambda sample: {"text": sample["text"]}, lambda sample: {**sample, "source": "name"}):
        (batch,) = penstock.Loader(mixed.map(function).tokenize(Bytes()).pack(4), batch_size=4)
        assert "source" not in batch
    (batch,) = penstock.Loader(mixed.map(dict).tokenize(Bytes()).pack(4), batch_size=4)
    assert batch["source"].tolist() == [[0] * 4]


def refuses(texts: list[str]) -> list[list[int]]:
    if "xyz" in texts:
        raise KeyError("xyz")
    return [[len(text)] for text in texts]


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (refuses, r"the tokenizer raised KeyError: 'xyz'"),
        (
            lambda texts: [[1.5] if text == "xyz" else [1] for text in texts],
            "`tokens` is not a list of int64 .*'float'",
        ),
        (lambda texts: [[2**70] if text == "xyz" else [1] for text in texts], "`tokens` is not a list of int64"),
    ],
)
def test_tokenize_error_names_the_record(tmp_path: Path, function: Any, problem: str) -> None:
    opened = penstock.open(write(tmp_path, TEXTS)).fields(text=penstock.text())
    position = TEXTS.index("xyz")
    place = rf"tokenize: record 0 of .*/1\.jsonl \(position {position} of epoch 0\): {problem}"
    for dataset in (opened, opened.map(dict)):
        for batch, world in ((9, 1), (3, 2), (2, 4)):
            tokens = dataset.tokenize(function, key="f")
            loaders = [penstock.Loader(tokens, batch_size=batch, rank=rank, world=world) for rank in range(world)]
            with pytest.raises(MapFailed, match=place) as caught:
                [list(loader) for loader in loaders]
            assert (caught.value.epoch, caught.value.position) == (0, position)
    rule = penstock.buckets("text", [4], [3, 3])
    with pytest.raises(MapFailed, match=place):
        list(penstock.Loader(opened.tokenize(function, key="f"), batch_by=rule))
    made = opened.tokenize(function, key="f").pack(4, count_tokens=True)
    with pytest.raises(MapFailed, match=place):
        len(penstock.Loader(made, batch_size=2))
    unindexed = penstock.open(tmp_path, indexed=False).fields(text=penstock.text()).tokenize(function, key="f")
    with pytest.raises(MapFailed, match=rf"tokenize: sample \d of a batch of 3 in epoch 0: {problem}"):
        list(penstock.Loader(unindexed, batch_size=3))


def test_tokenize_error_after_a_skipped_record_does_not_name_a_wrong_one(tmp_path: Path) -> None:
    write(tmp_path, TEXTS, 1)
    with (tmp_path / "0.jsonl").open("r+b") as file:
        file.write(b"?")
    opened = penstock.open(tmp_path).fields(text=penstock.text()).tokenize(refuses, key="f")
    with pytest.raises(
        MapFailed, match=r"tokenize: sample 4 of a batch of 8 in epoch 0: the tokenizer raised KeyError"
    ):
        list(penstock.Loader(opened, batch_size=9, on_error="skip"))

# SPDX-License-Identifier: Apache-2.0
"""JSON lines and CSV, written by Python's json and csv, and the text field."""

from __future__ import annotations

import csv
import gzip
import io
import json
import string
import tarfile
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import penstock
from penstock.errors import ConfigError, Corrupt, Mismatch, Unsupported

if TYPE_CHECKING:
    from pathlib import Path

ROWS = [
    {
        "id": 0,
        "text": "naïve\n😀",
        "score": 1,
        "tags": ["a", "b\t"],
        "ids": [1, 2, 3],
        "meta": {"url": "u0", "n": {"k": 7}},
    },
    {"id": 1, "text": "", "score": 2.5, "tags": [], "ids": [], "meta": {"url": "u1"}, "extra": True},
    {"id": 2, "text": "plain", "score": None, "tags": ["ü"], "ids": [4], "meta": {}, "messages": [{"role": "user"}]},
]


def jsonl(rows: list[dict[str, object]]) -> bytes:
    # One row with escapes and one without, and a line end of each kind.
    texts = [json.dumps(row, ensure_ascii=number % 2 == 0) for number, row in enumerate(rows)]
    return "\r\n\n".join(texts).encode()


def batches(dataset: penstock.Dataset, **arguments: object) -> list[dict[str, object]]:
    return list(penstock.Loader(dataset, **{"batch_size": 8, **arguments}))


def texts_of(dataset: penstock.Dataset, **arguments: object) -> list[str]:
    return [text for batch in batches(dataset.fields(text=penstock.text()), **arguments) for text in batch["text"]]


@pytest.mark.parametrize("name", ["a.jsonl", "a.ndjson", "a.json", "a.jsonl.gz", "a.json.gz"])
def test_jsonl_default_fields_return_what_json_wrote(tmp_path: Path, name: str) -> None:
    content = jsonl(ROWS)
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    dataset = penstock.open(tmp_path)
    assert (dataset.format, dataset.samples) == ("jsonl", 3)
    (batch,) = batches(dataset)
    assert batch["text"] == [row["text"] for row in ROWS]
    assert batch["id"].tolist() == [0, 1, 2]
    assert batch["score"].values.tolist() == [1.0, 2.5]  # a number and a fraction: float64; null: no number
    assert batch["ids"].values.tolist() == [1, 2, 3, 4]
    assert batch["ids"].offsets.tolist() == [0, 3, 3, 4]
    assert batch["tags"] == [[tag.encode() for tag in row["tags"]] for row in ROWS]
    assert [json.loads(text) for text in batch["meta"]] == [row["meta"] for row in ROWS]
    assert [json.loads(text) if text else None for text in batch["messages"]] == [None, None, [{"role": "user"}]]


def test_jsonl_dotted_names_read_objects_inside(tmp_path: Path) -> None:
    rows = [{"a": {"b": {"c": [1, 2]}, "d": "x"}, "a.d": "exact"}, {"a": {"b": {"c": [3, 4]}, "d": "y"}, "a.d": "kept"}]
    (tmp_path / "a.jsonl").write_bytes(jsonl(rows))
    fields = {
        "c": penstock.tensor("float32", (2,)).of("a.b.c"),
        "b": penstock.raw().of("a.b"),
        "d": penstock.text().of("a.d"),
        "none": penstock.text(default="-").of("a.b.c.d"),
    }
    (batch,) = batches(penstock.open(tmp_path).fields(**fields))
    assert batch["c"].tolist() == [[1, 2], [3, 4]]
    assert [json.loads(text) for text in batch["b"]] == [row["a"]["b"] for row in rows]
    assert batch["d"] == ["exact", "kept"]
    assert batch["none"] == ["-", "-"]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b'{"text": "a', "is not a JSON object on one line: EOF"),
        (b'{"text": "\xff"}', r"is not UTF-8 \(byte 10 of 13\)"),
        (b'{"text": "\\ud800"}', "`text` has an invalid string"),
        (b"[1]", "is not a JSON object on one line"),
        (b'{"text": "a"} {}', "is not a JSON object on one line"),
    ],
)
def test_jsonl_damaged_line_is_corrupt_and_can_be_skipped(tmp_path: Path, line: bytes, problem: str) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "one"}\n' + line + b'\n{"text": "two"}\n')
    with pytest.raises(Corrupt, match=r"a\.jsonl record 1 " + problem):
        texts_of(penstock.open(tmp_path))
    assert texts_of(penstock.open(tmp_path), on_error="skip") == ["one", "two"]


def test_jsonl_unpaired_surrogate_is_corrupt_in_strings_and_kept_in_json_text(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "\\ud800", "list": ["\\ud800"], "in": {"a": "\\ud800"}}\n')
    dataset = penstock.open(tmp_path)
    for field in (
        penstock.text(errors="replace").of("text"),
        penstock.raw().of("text"),
        penstock.list(penstock.text(errors="ignore")).of("list"),
        penstock.text().of("in.a"),
    ):
        with pytest.raises(Corrupt, match=r"a\.jsonl record 0 `.*` has an invalid string"):
            batches(dataset.fields(x=field))
    (batch,) = batches(dataset.fields(x=penstock.text().of("in")))
    assert batch["x"] == ['{"a": "\\ud800"}']


def test_json_array_is_refused_with_the_way_to_convert_it(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps([{"text": "a"}]))
    with pytest.raises(Unsupported, match="a JSON array instead of JSON lines") as caught:
        texts_of(penstock.open(tmp_path))
    assert "jq -c '.[]'" in caught.value.hint


def test_json_files_of_metadata_do_not_make_a_dataset_of_json(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(4))
    (tmp_path / "info.json").write_text(json.dumps({"description": "x" * 4000}))
    assert penstock.open(tmp_path).format == "npy"


def test_text_that_is_not_utf8_follows_errors_as_in_python(tmp_path: Path) -> None:
    cells = [b"caf\xe9", b"\xf0\x9f\x98", b"ok", b"a\xed\xa0\x80b\xffc"]
    (tmp_path / "a.csv").write_bytes(b"text,n\n" + b"".join(cell + b",1\n" for cell in cells))
    dataset = penstock.open(tmp_path)
    with pytest.raises(Corrupt, match=r"a\.csv record 0.* field `text` is not UTF-8: byte 3 of 4 is 0xe9"):
        texts_of(dataset)
    assert texts_of(dataset, on_error="skip") == ["ok"]
    for errors in ("replace", "ignore"):
        (batch,) = batches(dataset.fields(text=penstock.text(errors=errors)))
        assert batch["text"] == [cell.decode(errors=errors) for cell in cells]
    with pytest.raises(ConfigError, match="errors: `guess` is not one of strict, replace, ignore"):
        penstock.text(errors="guess")
    with pytest.raises(ConfigError, match="default: must be a str"):
        penstock.text(default="\ud800")


def test_csv_columns_are_typed_by_their_cells(tmp_path: Path) -> None:
    rows = [
        ["name", "n", "x", "code", "mixed"],
        ['a, "b"\nc', "1", "2", "007", "1"],
        ["", "-2", "2.5", "010", "x"],
        ["ü", "3", "", "1", ""],
    ]
    with (tmp_path / "a.csv").open("w", newline="", encoding="utf-8-sig") as file:
        csv.writer(file).writerows(rows)
    dataset = penstock.open(tmp_path)
    assert dataset.format == "csv"
    (batch,) = batches(dataset)
    assert batch["name"] == [row[0] for row in rows[1:]]
    assert batch["n"].dtype == np.int64
    assert batch["n"].tolist() == [1, -2, 3]
    assert batch["x"].values.tolist() == [2.0, 2.5]
    assert batch["code"] == ["007", "010", "1"]
    assert batch["mixed"] == ["1", "x", ""]
    (batch,) = batches(
        dataset.fields(x=penstock.tensor("float32", (), default=-1), n=penstock.tensor("uint8", ())), on_error="skip"
    )
    assert batch["x"].tolist() == [2, -1]
    assert batch["n"].tolist() == [1, 3]
    with pytest.raises(Mismatch, match=r"record 2.*the empty value ``"):
        batches(dataset.fields(x=penstock.tensor("float32", ())))


def test_csv_options_set_delimiter_and_names(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("t\tn\nx,y\t1\n")
    (batch,) = batches(penstock.open(tmp_path))
    assert batch["t"] == ["x,y"]
    (tmp_path / "b").mkdir()
    (tmp_path / "b/a.csv").write_text("x|1\n\ny|2\n")
    made = penstock.formats.csv(delimiter="|", header=False, columns=["t", "n"])
    (batch,) = batches(penstock.open(tmp_path / "b", format=made))
    assert (batch["t"], batch["n"].tolist()) == (["x", "y"], [1, 2])
    (tmp_path / "b/a.csv").write_text("a,a\n1,2\n1\n")
    with pytest.raises(Corrupt, match="has two columns with the name `a`"):
        batches(penstock.open(tmp_path / "b"))
    renamed = penstock.open(tmp_path / "b", format=penstock.formats.csv(columns=["p", "q"]))
    with pytest.raises(Corrupt, match=r"record 1 has 1 cells, but there are 2 columns"):
        batches(renamed)
    assert batches(renamed, on_error="skip")[0]["q"].tolist() == [2]
    with pytest.raises(ConfigError, match="without a header, columns must be named"):
        penstock.formats.csv(header=False)
    with pytest.raises(ConfigError, match="delimiter must be one ASCII character"):
        penstock.open(tmp_path / "b", format=penstock.formats.csv(delimiter="||"))


def test_csv_and_jsonl_are_read_by_range_after_a_scan(tmp_path: Path) -> None:
    (tmp_path / "j").mkdir()
    (tmp_path / "c").mkdir()
    for part in range(3):
        numbers = range(part * 50, part * 50 + 50)
        (tmp_path / f"j/{part}.jsonl").write_text("".join(json.dumps({"text": f"t{n}"}) + "\n" for n in numbers))
        (tmp_path / f"c/{part}.csv").write_text("text\n" + "".join(f"t{n}\n" for n in numbers))
    seen = {}
    for folder in ("j", "c"):
        dataset = penstock.open(tmp_path / folder).shuffle(3)
        loader = penstock.Loader(dataset.fields(text=penstock.text()), batch_size=16)
        first, again = ([text for batch in loader for text in batch["text"]] for _ in range(2))
        assert sorted(first) == sorted(again) == sorted(f"t{n}" for n in range(150))
        assert first != again
        seen[folder] = first
    assert seen["j"] == seen["c"]


def test_jsonl_unindexed_returns_every_line(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": str(n)}) + "\n" for n in range(40)))
    assert texts_of(penstock.open(tmp_path, indexed=False)) == [str(n) for n in range(40)]


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(string.ascii_letters, min_size=1), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.fixed_dictionaries({"text": st.text(), "any": json_values}), min_size=1, max_size=5), st.booleans())
def test_jsonl_returns_any_text_and_value_that_json_wrote(tmp_path_factory, rows, ascii_only):
    folder = tmp_path_factory.mktemp("jsonl")
    (folder / "a.jsonl").write_text(
        "\n".join(json.dumps(row, ensure_ascii=ascii_only) for row in rows), encoding="utf-8"
    )
    dataset = penstock.open(folder).fields(text=penstock.text(), any=penstock.text(default="null"))
    rows = [
        row
        for row in rows
        if not (isinstance(row["any"], list) and row["any"] and all(isinstance(v, str) for v in row["any"]))
    ]
    batch = next(iter(penstock.Loader(dataset, batch_size=8, on_error="skip")), {"text": [], "any": []})
    assert batch["text"] == [row["text"] for row in rows]
    for text, row in zip(batch["any"], rows, strict=True):
        if isinstance(row["any"], str):
            assert text == row["any"]
        else:
            assert json.loads(text) == row["any"]


@settings(max_examples=40, deadline=None)
@given(st.binary(max_size=60))
def test_jsonl_of_any_bytes_is_read_or_refused(tmp_path_factory, content):
    assume(content.strip())  # at least one line
    folder = tmp_path_factory.mktemp("bytes")
    (folder / "a.jsonl").write_bytes(content)
    dataset = penstock.open(folder)
    try:
        found = texts_of(dataset)
    except (Corrupt, ConfigError, Mismatch, Unsupported):  # every other error fails the test
        return
    assert len(found) <= content.count(b"\n") + 1


def test_text_field_reads_tar_and_tfrecord_and_goes_through_map(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for number, text in enumerate(["eins", "zwei ü"]):
            info = tarfile.TarInfo(f"{number}.txt")
            info.size = len(text.encode())
            archive.addfile(info, io.BytesIO(text.encode()))
    dataset = penstock.open(tmp_path / "a.tar").fields(txt=penstock.text(), none=penstock.text(default="é").of("md"))
    (batch,) = batches(dataset.map(lambda sample: {**sample, "upper": sample["txt"].upper()}))
    assert batch == {"txt": ["eins", "zwei ü"], "none": ["é", "é"], "upper": ["EINS", "ZWEI Ü"]}


def test_csv_records_have_no_line_end_and_an_open_quote_is_corrupt(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"a,b\r\n1,x\r\n2,y\r\n")
    (batch,) = penstock.Loader(penstock.open(tmp_path).fields(record=penstock.raw()), batch_size=2)
    assert batch["record"] == [b"1,x", b"2,y"]
    (tmp_path / "a.csv").write_bytes(b'a,b\n1,x\n2,"y\n3,z\n')
    with pytest.raises(Corrupt, match="record 1 has a quote that is not closed"):
        list(penstock.Loader(penstock.open(tmp_path), batch_size=1))


@pytest.mark.parametrize("form", ["jsonl", "csv", "npy"])
def test_number_beyond_the_range_of_float32_is_not_made_infinite(tmp_path, form):
    place = tmp_path / f"a.{form}"
    if form == "npy":
        np.save(place, np.array([1.5, 1e300]))
    else:
        place.write_text({"jsonl": '{"x": 1.5}\n{"x": 1e300}\n', "csv": "x\n1.5\n1e300\n"}[form])
    options = {"format": penstock.formats.npy(rows=True)} if form == "npy" else {}
    name = "array" if form == "npy" else "x"
    dataset = penstock.open(place, **options).fields(x=penstock.tensor("float32", ()).of(name))
    with pytest.raises(Mismatch, match="1e300"):
        list(penstock.Loader(dataset, batch_size=2))
    (batch,) = penstock.Loader(dataset, batch_size=2, on_error="skip")
    assert batch["x"].tolist() == [1.5]


def test_text_of_one_character_is_not_a_number_of_one_byte(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"label": 3}\n{"label": "7"}\n')
    dataset = penstock.open(tmp_path).fields(label=penstock.tensor("uint8", ()))
    with pytest.raises(Mismatch, match=r"record 1: field `label`"):
        list(penstock.Loader(dataset, batch_size=2))
    (batch,) = penstock.Loader(dataset, batch_size=2, on_error="skip")
    assert batch["label"].tolist() == [3]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_number_beyond_the_range_of_float64_is_not_made_infinite(tmp_path, dtype):
    (tmp_path / "a.csv").write_text("x\ninf\n1e400\n")
    dataset = penstock.open(tmp_path).fields(x=penstock.tensor(dtype, ()))
    with pytest.raises(Mismatch, match="1e400"):
        list(penstock.Loader(dataset, batch_size=2))
    (batch,) = penstock.Loader(dataset, batch_size=2, on_error="skip")
    assert batch["x"].tolist() == [float("inf")]

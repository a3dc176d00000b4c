# SPDX-License-Identifier: Apache-2.0
"""Tests Parquet datasets: the types of columns, counts without a scan, and unreadable files."""

from __future__ import annotations

import contextlib
import tarfile
from pathlib import Path

import numpy as np
import pytest

import penstock
from penstock.errors import BudgetExceeded, ConfigError, Corrupt, Mismatch, Unsupported

from .parquet import parquet_bytes
from .test_formats import png

# The same 10 rows with several settings, written by pyarrow; see make_parquet.py beside the archive.
GOLDEN = Path(__file__).parents[2] / "crates/record/tests/golden/parquet.tar.gz"


@pytest.fixture(scope="module")
def golden(tmp_path_factory):
    folder = tmp_path_factory.mktemp("golden")
    with tarfile.open(GOLDEN) as archive:
        archive.extractall(folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    return folder


def loaded(url, size=64, **fields):
    (batch,) = penstock.Loader(penstock.open(url).fields(**fields), batch_size=size)
    return batch


@pytest.mark.parametrize("kind", ["plain", "snappy", "zstd", "gzip", "lz4", "brotli"])
def test_columns_of_pyarrow_become_every_kind_of_field(golden, kind):
    batch = loaded(
        golden / f"{kind}.parquet",
        i8=penstock.tensor("int64", ()),
        f16=penstock.tensor("float16", ()),
        bool=penstock.tensor("bool", ()),
        square=penstock.tensor("float32", (3, 1)),
        tokens=penstock.ragged("int64"),
        text=penstock.raw(),
        fixed=penstock.tensor("uint8", (3,)),
        picture=penstock.raw().of("jpg;image.bytes"),
        words=penstock.raw_list(),
    )
    rows = range(10)
    assert batch["i8"].tolist() == [row - 5 for row in rows]
    assert batch["f16"].tolist() == list(rows)
    assert batch["bool"].tolist() == [row % 3 == 0 for row in rows]
    assert batch["square"][:, :, 0].tolist() == [[row, row + 1, row + 2] for row in rows]
    assert batch["tokens"].values.tolist() == [value for row in rows if row != 3 for value in range(row)]
    assert batch["tokens"].offsets.tolist()[:6] == [0, 0, 1, 3, 3, 7]
    assert [bytes(text) for text in batch["text"]] == [b"" if row == 4 else b"row %d" % row for row in rows]
    assert batch["fixed"].tolist() == [[row] * 3 for row in rows]
    assert [bytes(one) for one in batch["picture"]] == [bytes([255, row]) for row in rows]
    assert batch["words"] == [[b"w%d" % at for at in range(row % 3)] for row in rows]


def test_schema_proposes_what_reads(golden):
    schema = penstock.open(golden / "zstd.parquet").schema()
    assert schema["i32"] == penstock.tensor("int32", ())
    assert schema["tokens"] == penstock.ragged("int32")
    assert schema["blob"] == schema["image.bytes"] == penstock.raw()
    names = [name for name, _ in schema.specs]
    assert schema["u32"] == penstock.tensor("uint32", ())
    assert not {"price", "image.path"} & set(names)
    reasons = dict(schema.left_out)
    assert reasons["price"].startswith("a decimal number (column `price` of file://")
    assert "a list of 3 float32" in str(schema)


def test_unsigned_columns_become_unsigned_tensors(golden):
    for name in ("odd1", "odd2"):
        batch = loaded(golden / f"{name}.parquet", u32=penstock.tensor("uint32", ()), u64=penstock.tensor("uint64", ()))
        assert batch["u32"].dtype == np.uint32
        assert batch["u32"].tolist() == [2**32 - 1 - row for row in range(5)]
        assert batch["u64"].tolist() == [2**64 - 1 - row for row in range(5)]


def test_null_structs_inside_lists_are_mismatches(golden):
    url, field = golden / "odd1.parquet", {"o.list.element.x": penstock.ragged("int64")}
    with pytest.raises(Mismatch, match=r"record 0: column `o\.x` contains a null"):
        loaded(url, **field)
    loader = penstock.Loader(penstock.open(url).fields(**field), batch_size=5, on_error="skip")
    values, offsets = next(iter(loader))["o.list.element.x"]
    assert (values.tolist(), offsets.tolist()) == ([5], [0, 0, 0, 1])


def test_columns_of_one_name_are_numbered(golden):
    schema = penstock.open(golden / "odd1.parquet").schema()
    assert {"s.a#1", "s.a#2"} < {name for name, _ in schema.specs}
    number = penstock.tensor("int32", ())
    batch = loaded(golden / "odd1.parquet", column=number.of("s.a#1"), struct=number.of("s.a#2"))
    assert (batch["column"].tolist(), batch["struct"].tolist()) == ([1, 2, 3, 4, 5], [0, 1, 2, 3, 4])
    with pytest.raises(Mismatch, match=r"`s\.a#1` \(int32 \[\]\), `s\.a#2`"):
        loaded(golden / "odd1.parquet", x=number.of("s.a"))


def test_what_does_not_fit_is_named(golden):
    url = golden / "snappy.parquet"
    number = penstock.tensor("int64", ())
    with pytest.raises(Mismatch, match=r"record 0: .*`nothing`.*but the record contains `i8` \(int8 \[\]\)"):
        loaded(url, x=number.of("nothing"))
    with pytest.raises(
        Mismatch, match=r"record 0: .*expects int64 \[\] .*float32 \[\]: float32 cannot be converted to int64"
    ):
        loaded(url, f32=number)
    with pytest.raises(Mismatch, match=r"record 1: .*expects int32 \[0\]|record 1: .*a list of 1 int32"):
        loaded(url, tokens=penstock.tensor("int32", (0,)))
    with pytest.raises(Mismatch, match=r"record 7: field `holes` expects .* but the record contains a null"):
        loaded(url, holes=number)
    with pytest.raises(Unsupported, match=r"decimal"):
        loaded(url, price=number)
    # A null costs only its own row, whichever other rows of the row group are read.
    for world in (1, 3):
        kept = []
        for rank in range(world):
            dataset = penstock.open(url).fields(holes=number)
            loader = penstock.Loader(dataset, global_batch=4, rank=rank, world=world, on_error="skip")
            kept += [value for batch in loader for value in batch["holes"].tolist()]
        assert sorted(kept) == [0, 1, 2, 3, 4, 5, 6, 8, 9]


def test_pictures_in_a_column(tmp_path):
    pictures = [png((row, 10 * row, 200)) for row in range(7)]
    (tmp_path / "a.parquet").write_bytes(parquet_bytes(picture=pictures, label=list(range(7))))
    batch = loaded(tmp_path, image=penstock.image(8, crop="none").of("picture"), label=penstock.tensor("int32", ()))
    assert batch["image"][:, 4, 4].tolist() == [[row, 10 * row, 200] for row in range(7)]
    assert batch["label"].tolist() == list(range(7))


def test_rows_are_counted_by_footers_and_a_file_is_read_once(tmp_path):
    for number in range(3):
        # One file has many row groups, so that its footer is larger than the first request for it.
        rows = list(range(4000 if number == 1 else 5))
        (tmp_path / f"{number}.parquet").write_bytes(parquet_bytes(group=2, x=rows, blob=[bytes(50)] * len(rows)))
    dataset = penstock.open(tmp_path)
    assert (dataset.format, dataset.samples, dataset.rung) == ("parquet", 4010, "format")
    loader = penstock.Loader(dataset.fields(x=penstock.tensor("int64", ())), batch_size=512)
    assert [int(x) for batch in loader for x in batch["x"]] == [*range(5), *range(4000), *range(5)]
    assert loader.report()["bytes_in"] == sum(file.stat().st_size for file in tmp_path.iterdir())
    one = penstock.torch.MapDataset(dataset.fields(x=penstock.tensor("int64", ())))
    assert int(one[4004]["x"]) == 3999


def test_files_that_do_not_read(tmp_path):
    good = parquet_bytes(x=list(range(9)))
    size = len(good)
    bad = {
        "is not a Parquet file, or is truncated": good[:-9],
        "is damaged Parquet: its footer has 4,294,967,303 bytes": good[:-8] + b"\xff\xff\xff\xffPAR1",
        "is not a Parquet file: it has only 5 bytes": good[:5],
        "is damaged Parquet": good[: size - 40] + b"\xff" * 32 + good[-8:],
    }
    for number, (problem, content) in enumerate(bad.items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "a.parquet").write_bytes(content)
        with pytest.raises(Corrupt, match=rf"a\.parquet {problem}"):
            penstock.open(folder).counted()
    (tmp_path / "a.parquet").write_bytes(good[:-4] + b"PARE")
    with pytest.raises(Unsupported, match="encrypted"):
        penstock.open(tmp_path / "a.parquet").counted()


def test_a_page_that_is_damaged_costs_its_rows_on_any_world(tmp_path):
    good = bytearray(parquet_bytes(x=list(range(9)), y=list(range(9))))
    # The header of the second row group's first page.
    at = good.index(b"".join(row.to_bytes(8, "little") for row in (3, 4, 5)))
    good[at - 4 : at] = b"\xff" * 4
    (tmp_path / "a.parquet").write_bytes(good)
    for world in (1, 2):
        kept = []
        for rank in range(world):
            dataset = penstock.open(tmp_path).fields(x=penstock.tensor("int64", ()))
            loader = penstock.Loader(dataset, global_batch=4, rank=rank, world=world, on_error="skip")
            kept += [value for batch in loader for value in batch["x"].tolist()]
        assert sorted(kept) == [0, 1, 2, 6, 7, 8]


def test_any_byte_may_be_anything(tmp_path):
    good = parquet_bytes(group=2, x=list(range(4)), blob=[b"abc"] * 4)
    rng = np.random.default_rng(7)
    file = tmp_path / "a.parquet"
    for _ in range(60):
        bent = bytearray(good)
        for at in rng.integers(0, len(good), 3):
            bent[at] = rng.integers(256)
        file.write_bytes(bent)
        with contextlib.suppress(Corrupt, Unsupported, BudgetExceeded):
            dataset = penstock.open(tmp_path).fields(x=penstock.tensor("int64", ()), blob=penstock.raw())
            next(iter(penstock.Loader(dataset, batch_size=4)))


def test_null_numbers_have_defaults_or_no_items(golden):
    url = golden / "zstd.parquet"
    batch = loaded(url, holes=penstock.tensor("int64", (), default=-1), i8=penstock.tensor("int8", ()))
    assert batch["holes"][7] == -1
    assert -1 not in np.delete(batch["holes"], 7)
    values, offsets = loaded(url, holes=penstock.ragged("int64"))["holes"]
    assert (len(values), np.flatnonzero(np.diff(offsets) == 0).tolist()) == (9, [7])
    schema = penstock.open(url).schema()
    assert isinstance(schema["holes"], type(penstock.ragged("int64")))
    assert "a value in 9 of 10 records" in str(schema)
    # A column that is missing in all files is a mistake, which a default must not hide.
    with pytest.raises(ConfigError, match=r"hole is read from `hole`, but no file of .* has this column"):
        loaded(url, hole=penstock.tensor("int64", (), default=0))


def test_lists_of_strings_keep_their_boundaries(golden):
    url = golden / "zstd.parquet"
    assert penstock.open(url).schema()["words"] == penstock.raw_list()
    want = [[b"w%d" % at for at in range(row % 3)] for row in range(10)]
    dataset = penstock.open(url).fields(words=penstock.raw_list()).shuffle(seed=3)
    found = [words for batch in penstock.Loader(dataset, batch_size=4) for words in batch["words"]]
    assert sorted(found) == sorted(want)
    mapped = penstock.open(url).fields(words=penstock.raw_list()).map(lambda sample: {"count": len(sample["words"])})
    batches = penstock.Loader(mapped, batch_size=4)
    assert [int(count) for batch in batches for count in batch["count"]] == [len(words) for words in want]


@pytest.mark.parametrize("field", [penstock.raw(), penstock.ragged("uint8"), penstock.tensor("uint8", (2,))])
def test_lists_of_strings_are_not_joined_by_other_fields(golden, field):
    # Row 1 holds only one string of 2 bytes, so no boundary could be lost. It is rejected like every other row.
    dataset = penstock.open(golden / "plain.parquet").fields(words=field).shard(1, 10)
    with pytest.raises(Mismatch, match="the record contains a list of 1 byte strings") as caught:
        list(penstock.Loader(dataset, batch_size=1))
    assert isinstance(field, type(penstock.tensor("uint8", ()))) or "raw_list()" in str(caught.value)


def test_text_is_not_read_as_numbers(golden):
    url = golden / "odd1.parquet"
    with pytest.raises(Mismatch, match=r"expects int32 \[5\] \(20 bytes\), but the record contains a text of 20 bytes"):
        loaded(url, prefixed=penstock.tensor("int32", (5,)))
    with pytest.raises(Mismatch, match=r"any number of int32 \[\], but the record contains a text of 20 bytes"):
        loaded(url, prefixed=penstock.ragged("int32"))
    batch = loaded(
        url,
        text=penstock.raw().of("prefixed"),
        characters=penstock.tensor("uint8", (20,)).of("prefixed"),
        binary=penstock.tensor("int64", ()),
    )
    assert batch["text"] == [row.tobytes() for row in batch["characters"]]
    assert batch["text"][4] == b"the same beginning 4"
    # A binary column may hold numbers.
    assert batch["binary"].tolist() == np.frombuffer(b"12345678" * 5, "<i8").tolist()


def test_remote_parquet_object_without_bytes_is_corrupt(tmp_path, emulator, monkeypatch):
    (tmp_path / "a.parquet").write_bytes(b"")
    (tmp_path / "b.parquet").write_bytes(parquet_bytes(x=[1, 2]))
    server = emulator(folder=tmp_path)
    for name, value in server.env.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(Corrupt, match=r"a\.parquet"):
        list(penstock.Loader(penstock.open(server.url), batch_size=2))
    with pytest.raises(Corrupt, match=r"a\.parquet"):
        penstock.open(server.url).schema()

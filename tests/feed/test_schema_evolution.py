# SPDX-License-Identifier: Apache-2.0
"""Tests datasets whose files differ in schema: columns that come and go, wider types, another order, dictionaries."""

from __future__ import annotations

import io
import json
import tarfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.errors import ConfigError, Corrupt, Mismatch

from .nested_parquet import extract_golden, nested_bytes
from .parquet import parquet_bytes
from .test_mds import write as write_mds
from .tfrecords import example, frame


@pytest.fixture(scope="module")
def evolved(tmp_path_factory):
    """Two files of pyarrow: `a` has id int32, score float, label; `b` label, tags, extra, score double, id int64."""
    return extract_golden(tmp_path_factory.mktemp("evolved")) / "evolved"


def loaded(dataset, **fields):
    (batch,) = penstock.Loader(dataset.fields(**fields), batch_size=16)
    return batch


def test_types_widen_and_columns_are_found_by_name(evolved):
    batch = loaded(
        penstock.open(evolved),
        id=penstock.tensor("int64", ()),
        score=penstock.tensor("float64", ()),
        label=penstock.raw(),
        ident=penstock.tensor("float64", ()).of("id"),
    )
    assert batch["id"].tolist() == batch["ident"].tolist() == [0, 1, 2, 3]
    assert batch["score"].tolist() == [0.5, 1.5, 2.5, 3.5]
    assert batch["label"] == [b"a", b"b", b"c", b""]


def test_columns_that_some_files_lack_have_defaults_and_masks(evolved):
    dataset = penstock.open(evolved).fields(
        id=penstock.tensor("int64", ()),
        extra=penstock.tensor("int64", (), default=-1, mask="has_extra"),
        tags=penstock.ragged("int64", mask="has_tags"),
        other=penstock.ragged("int64", default=()).of("tags"),
        label=penstock.raw(default=b"none", mask="has_label"),
    )
    batch = loaded(dataset, **dict(dataset.specs))
    assert batch["extra"].tolist() == [-1, -1, 5, -1]
    assert batch["has_extra"].tolist() == [False, False, True, False]
    assert batch["tags"].to_list() == batch["other"].to_list() == [[], [], [7], []]
    assert batch["has_tags"].tolist() == [False, False, True, False]
    assert (batch["label"], batch["has_label"].tolist()) == ([b"a", b"b", b"c", b"none"], [True, True, True, False])
    # The same rows in another order and on several ranks.
    found = {}
    for rank in range(2):
        for batch in penstock.Loader(dataset.shuffle(seed=1), global_batch=2, rank=rank, world=2):
            found |= dict(zip(batch["id"].tolist(), batch["has_extra"].tolist(), strict=True))
    assert found == {0: False, 1: False, 2: True, 3: False}


def test_column_that_a_file_lacks_is_an_error_that_names_the_file(evolved):
    for field in (penstock.tensor("int64", ()), penstock.ragged("int64")):
        with pytest.raises(Mismatch, match=r"a\.parquet record 0: .*`extra`.* give the field a default if not every"):
            loaded(penstock.open(evolved), extra=field)


def test_column_that_no_file_has_is_an_error_at_the_start(evolved):
    dataset = penstock.open(evolved).fields(exrta=penstock.tensor("int64", (), default=0))
    with pytest.raises(ConfigError, match=r"exrta is read from `exrta`, but no file of .*evolved/ has this column"):
        next(iter(penstock.Loader(dataset, batch_size=2)))
    spec = penstock.tensor("int64", (), default=0).of("old_name;extra")
    assert loaded(penstock.open(evolved), extra=spec)["extra"].tolist() == [0, 0, 5, 0]


def test_columns_are_looked_for_in_all_files(tmp_path):
    for number in range(9):
        rows = {"x": [number] * 3} | ({"rare": [1, 2, 3]} if number == 4 else {})
        (tmp_path / f"{number}.parquet").write_bytes(parquet_bytes(**rows))
    dataset = penstock.open(tmp_path).fields(rare=penstock.tensor("int64", (), mask="has"))
    batches = list(penstock.Loader(dataset, batch_size=27))
    assert int(batches[0]["has"].sum()) == 3
    (tmp_path / "8.parquet").write_bytes(b"PAR1 no footer PAR1")
    dataset = penstock.open(tmp_path).fields(x=penstock.tensor("int64", (), default=0))
    with pytest.raises(Corrupt, match=r"8\.parquet"):
        next(iter(penstock.Loader(dataset, batch_size=2)))


def test_columns_of_a_mixture_may_be_in_any_part(tmp_path):
    columns = {"a": {"x": [1, 2], "p": [3, 4]}, "b": {"x": [5, 6], "q": [7, 8]}, "c": {"x": [9, 10]}}
    for name, rows in columns.items():
        (tmp_path / f"{name}.parquet").write_bytes(parquet_bytes(**rows))

    def mixed(order, **fields):
        parts = [penstock.open(tmp_path / f"{name}.parquet").fields(**fields) for name in order]
        return penstock.mix([(penstock.mix({parts[0]: 1, parts[1]: 1}), 2), (parts[2], 1)])

    optional = {name: penstock.tensor("int64", (), default=0) for name in "pq"}
    for order in ("abc", "cba", "bca"):
        (batch,) = penstock.Loader(mixed(order, **optional), batch_size=6)
        assert (sorted(batch["p"].tolist()), sorted(batch["q"].tolist())) == ([0, 0, 0, 0, 3, 4], [0, 0, 0, 0, 7, 8])
    with pytest.raises(ConfigError, match=r"r is read from `r`, but no file of .* and of 2 other datasets has"):
        list(penstock.Loader(mixed("abc", r=penstock.tensor("int64", (), default=0)), batch_size=6))


def test_integers_that_a_float_does_not_hold_are_mismatches(tmp_path):
    (tmp_path / "a.parquet").write_bytes(parquet_bytes(x=[1, 2**53, 2**53 + 1]))
    dataset = penstock.open(tmp_path).fields(x=penstock.tensor("float64", ()))
    (batch,) = penstock.Loader(dataset, batch_size=4, on_error="skip")
    assert batch["x"].tolist() == [1.0, 2.0**53]
    with pytest.raises(Mismatch, match=r"record 2: .* 9007199254740993 cannot be represented exactly as float64"):
        loaded(dataset, x=penstock.tensor("float64", ()))


def test_lists_become_lists_of_lists_only_by_their_field(tmp_path):
    (tmp_path / "a.parquet").write_bytes(nested_bytes({"x": ["int64"]}, [{"x": [1, 2]}]))
    (tmp_path / "b.parquet").write_bytes(nested_bytes({"x": [["int64"]]}, [{"x": [[3], [4, 5]]}]))
    with pytest.raises(Mismatch, match=r"b\.parquet record 0: field `x` .*a list of 2 lists"):
        loaded(penstock.open(tmp_path), x=penstock.ragged("int64"))


def test_features_and_members_that_some_files_lack_have_masks(tmp_path):
    records, tars = tmp_path / "records", tmp_path / "tars"
    records.mkdir()
    tars.mkdir()
    (records / "a.tfrecord").write_bytes(frame(example(id=[1])))
    (records / "b.tfrecord").write_bytes(frame(example(name=[b"x"], id=[2], w=[0.5])))
    batch = loaded(
        penstock.open(records),
        w=penstock.tensor("float32", (), mask="has_w").of("v;w"),
        name=penstock.raw(mask="has_name"),
        id=penstock.tensor("int64", (), mask="has_id"),
    )
    assert (batch["w"].tolist(), batch["has_w"].tolist()) == ([0.0, 0.5], [False, True])
    assert (batch["name"], batch["has_name"].tolist()) == ([b"", b"x"], [False, True])
    assert batch["has_id"].tolist() == [True, True]
    for name, members in {"a": {"0.json": b"{}"}, "b": {"1.json": b"{}", "1.cls": b"3"}}.items():
        with tarfile.open(tars / f"{name}.tar", "w") as archive:
            for member, content in members.items():
                info = tarfile.TarInfo(member)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    batch = loaded(penstock.open(tars), cls=penstock.tensor("int32", (), default=-1, mask="has_cls"))
    assert (batch["cls"].tolist(), batch["has_cls"].tolist()) == ([-1, 3], [False, True])


@pytest.mark.parametrize("kind", ["arrow", "csv", "npz"])
def test_files_of_other_tables_may_lack_columns(tmp_path, kind):
    import pyarrow as pa

    for at, columns in enumerate(({"a": [1, 2]}, {"b": [5], "a": [3]})):
        path = tmp_path / f"{at}.{kind}"
        if kind == "arrow":
            table = pa.table(columns)
            with pa.ipc.new_file(path, table.schema) as out:
                out.write_table(table)
        elif kind == "csv":
            rows = zip(*columns.values(), strict=True)
            path.write_text("\n".join([",".join(columns), *(",".join(map(str, row)) for row in rows)]) + "\n")
        else:
            np.savez(path, **{name: np.array(values[0]) for name, values in columns.items()})
    a = penstock.tensor("int64", ())
    dataset = penstock.open(tmp_path)
    (batch,) = penstock.Loader(dataset.fields(a=a, b=penstock.tensor("int64", (), default=-1, mask="m")), batch_size=4)
    count = len(batch["a"])
    assert batch["a"].tolist() == [1, 2, 3][-count:] if kind != "npz" else [1, 3]
    assert batch["b"].tolist() == [-1] * (count - 1) + [5]
    assert batch["m"].tolist() == [False] * (count - 1) + [True]
    with pytest.raises(Mismatch, match="give the field a default if not every file has the value"):
        list(penstock.Loader(dataset.fields(a=a, b=penstock.tensor("int64", ())), batch_size=4))


def test_shards_of_mds_may_lack_columns(tmp_path):
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    new.mkdir()
    write_mds(old, {"x": "int"}, [[{"x": (7).to_bytes(8, "little")}]])
    write_mds(new, {"x": "int", "y": "int"}, [[{"x": bytes(8), "y": (5).to_bytes(8, "little")}]])
    index = json.loads((old / "index.json").read_text())
    (added,) = json.loads((new / "index.json").read_text())["shards"]
    added["raw_data"]["basename"] = "shard.00001.mds"
    (old / "shard.00001.mds").write_bytes((new / "shard.00000.mds").read_bytes())
    (old / "index.json").write_text(json.dumps({**index, "shards": [*index["shards"], added]}))
    dataset = penstock.open(old)
    batch = loaded(dataset, x=penstock.tensor("int64", ()), y=penstock.tensor("int64", (), mask="has_y"))
    assert (batch["x"].tolist(), batch["y"].tolist(), batch["has_y"].tolist()) == ([7, 0], [0, 5], [False, True])
    with pytest.raises(Mismatch, match=r"shard\.00000\.mds record 0: .*`y`"):
        loaded(dataset, y=penstock.tensor("int64", ()))
    with pytest.raises(ConfigError, match=r"no file of .* has this column"):
        loaded(dataset, z=penstock.tensor("int64", (), default=0))


def test_masks_have_names_of_their_own(evolved):
    dataset = penstock.open(evolved)
    with pytest.raises(ConfigError, match="fields: two fields have the name a; one of them is the mask or rate of b"):
        dataset.fields(a=penstock.raw(), b=penstock.raw(mask="a"))
    with pytest.raises(ConfigError, match="fields: two fields have the name m; one of them is the mask or rate of b"):
        dataset.fields(a=penstock.raw(mask="m"), b=penstock.raw(mask="m"))
    with pytest.raises(ConfigError, match=r"default: must be `\(\)`, which means an empty list \(got 0\)"):
        penstock.ragged("int64", default=0)
    assert str(penstock.tensor("int8", (), mask="m")) == "int8 [], default 0, mask m"
    assert np.dtype(bool) == loaded(dataset, id=penstock.tensor("int64", (), mask="m"))["m"].dtype


@pytest.mark.parametrize("form", ["parquet", "arrow"])
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_times_of_unlike_units_are_not_mixed(tmp_path, form, on_error):
    for name, unit in (("a", pa.timestamp("ms")), ("b", pa.timestamp("us")), ("c", pa.timestamp("ms", "UTC"))):
        table = pa.table({"t": pa.array([1, 2], unit), "n": [1, 2]})
        if form == "parquet":
            pq.write_table(table, tmp_path / f"{name}.parquet")
        else:
            with pa.ipc.new_file(tmp_path / f"{name}.arrow", table.schema) as out:
                out.write_table(table)
    # Which of two unlike objects is read first depends on the system.
    b, other = r"timestamp\[us\] in .*b\.[^,]*", r"timestamp\[ms(, UTC)?\] in .*[ac]\.[^,]*"
    with pytest.raises(ConfigError, match=f"`t` is ({b}, but {other}|{other}, but {b})"):
        list(penstock.Loader(penstock.open(tmp_path), batch_size=8, threads=1, on_error=on_error))
    # Other columns can be read, and a time zone does not change the integers.
    assert loaded(penstock.open(tmp_path), n=penstock.tensor("int64", ()))["n"].tolist() == [1, 2] * 3
    same = penstock.open(f"{tmp_path}/{{a,c}}.*")
    assert loaded(same, t=penstock.tensor("int64", ()))["t"].tolist() == [1, 2] * 2

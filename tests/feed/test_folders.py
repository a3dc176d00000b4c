# SPDX-License-Identifier: Apache-2.0
"""Tests the meaning of a dataset's folders: image classes, and Hive partitions of Parquet."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest

import penstock
from penstock.errors import ConfigError, Mismatch
from penstock.feed.pool_locality import Locality

from .parquet import parquet_bytes
from .test_formats import png

FIELDS = {"image": penstock.image(8, crop="none"), "label": penstock.tensor("int64", ())}


def images_in(folder, *names):
    for at, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(png((at, 0, 0)))
    return folder


def labels_of(dataset):
    return [label for batch in penstock.Loader(dataset.fields(**FIELDS), batch_size=2) for label in batch["label"]]


def test_classes_of_image_folders_are_their_names_in_the_order_of_labels(tmp_path):
    dataset = penstock.open(images_in(tmp_path, "dog/0.png", "cat/0.png", "emu/deep/0.png"))
    assert dataset.classes == ("cat", "dog", "emu")
    assert dataset.class_to_idx == {"cat": 0, "dog": 1, "emu": 2}
    assert pickle.loads(pickle.dumps(dataset)).classes == dataset.classes
    assert labels_of(dataset) == [0, 1, 2]


def test_validation_folder_with_fewer_classes_takes_the_labels_of_training(tmp_path):
    train = penstock.open(images_in(tmp_path / "train", "cat/0.png", "dog/0.png", "emu/0.png"))
    folder = images_in(tmp_path / "val", "dog/1.png", "emu/0.png", "emu/1.png")
    assert labels_of(penstock.open(folder)) == [0, 1, 1]
    val = penstock.open(folder, format=penstock.formats.images(classes=train.classes))
    assert labels_of(pickle.loads(pickle.dumps(val))) == [1, 2, 2]
    assert val.classes == train.classes
    images_in(folder, "yak/0.png")
    with pytest.raises(ConfigError, match=r"1 class folders of .* are not among the 3 given classes: `yak`"):
        penstock.open(folder, format=penstock.formats.images(classes=train.classes))


def test_part_of_a_node_keeps_the_labels_of_the_whole_dataset(tmp_path):
    folder = images_in(tmp_path, "cat/0.png", "dog/0.png", "emu/0.png")
    located = Locality("a", 2, 1, 2, 3, frozenset({"dog/0.png", "emu/0.png"}))
    local = replace(penstock.open(folder), locality=located).local()
    assert local.classes == ("cat", "dog", "emu")
    assert labels_of(local) == [1, 2]


def test_classes_that_do_not_exist_are_refused(tmp_path):
    folder = images_in(tmp_path, "cat/0.png", "1.png", "2.png")
    with pytest.raises(ConfigError, match=r"2 of 3 images are not in a class folder \(first: 1\.png\)"):
        _ = penstock.open(folder).classes
    with pytest.raises(ConfigError, match="2 of 3 images are not in a class folder"):
        penstock.open(folder, format=penstock.formats.images(classes=["cat"]))
    (tmp_path / "t.parquet").write_bytes(parquet_bytes(a=[1]))
    with pytest.raises(ConfigError, match="has no class folders"):
        _ = penstock.open(tmp_path / "t.parquet").classes
    for arguments in ({"classes": ["a", "a"]}, {"classes": "cat"}, {"classes": ["a"], "labels": "a.csv"}):
        with pytest.raises(ConfigError, match="format: "):
            penstock.formats.images(**arguments)


@pytest.fixture
def partitioned(tmp_path):
    for number, folder in enumerate(("year=2023/kind=a", "year=2024/kind=a", "year=2024/kind=b")):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "part-0.parquet").write_bytes(parquet_bytes(x=[number], kind=[b"stored"]))
    return tmp_path


def test_hive_partitions_are_columns_of_the_default_fields(partitioned):
    dataset = penstock.open(partitioned)
    # `kind` is also a column in the files, which is used.
    assert [name for name, _ in dataset.schema().specs] == ["x", "kind", "year"]
    assert "int64, a Hive partition in the folder names" in str(dataset.schema())
    (batch,) = penstock.Loader(dataset, batch_size=8)
    assert (batch["x"].tolist(), batch["year"].tolist()) == ([0, 1, 2], [2023, 2024, 2024])
    assert (batch["year"].dtype, list(map(bytes, batch["kind"]))) == ("int64", [b"stored"] * 3)
    fields = {"y": penstock.tensor("int32", ()).of("year")}
    (batch,) = penstock.Loader(dataset.fields(**fields).shuffle(seed=1), batch_size=8)
    assert sorted(batch["y"].tolist()) == [2023, 2024, 2024]


def test_hive_partition_values_are_decoded_and_may_be_null(tmp_path):
    values = ("a%2Fb", "caf%C3%A9", "__HIVE_DEFAULT_PARTITION__", "03")
    for number, value in enumerate(values):
        folder = (
            tmp_path / f"n={number:02d}" / f"t={value}" / ("m=-7" if number < 2 else "m=__HIVE_DEFAULT_PARTITION__")
        )
        folder.mkdir(parents=True)
        (folder / "f.parquet").write_bytes(parquet_bytes(x=[number]))
    dataset = penstock.open(tmp_path)
    (batch,) = penstock.Loader(dataset, batch_size=8)
    assert batch["n"].tolist() == [0, 1, 2, 3]
    assert [bytes(text) for text in batch["t"]] == [b"a/b", "caf\u00e9".encode(), b"", b"03"]
    assert [row.tolist() for row in np.split(batch["m"].values, batch["m"].offsets[1:-1])] == [[-7], [-7], [], []]
    (batch,) = penstock.Loader(dataset.fields(m=penstock.tensor("int64", (), default=5)), batch_size=8)
    assert batch["m"].tolist() == [-7, -7, 5, 5]
    with pytest.raises(Mismatch, match="null"):
        list(penstock.Loader(dataset.fields(m=penstock.tensor("int64", ())), batch_size=8))
    assert penstock.torch.MapDataset(dataset.fields(n=penstock.tensor("int64", ())))[3]["n"] == 3

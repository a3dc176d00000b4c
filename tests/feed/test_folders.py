# SPDX-License-Identifier: Apache-2.0
"""Tests the meaning of a dataset's folders: image classes, and Hive partitions of Parquet."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

import penstock
from penstock.errors import ConfigError
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
    with pytest.raises(ConfigError, match=r"has 1 class folders that are not among the 3 given classes: `yak`"):
        penstock.open(folder, format=penstock.formats.images(classes=train.classes))


def test_part_of_a_node_keeps_the_labels_of_the_whole_dataset(tmp_path):
    folder = images_in(tmp_path, "cat/0.png", "dog/0.png", "emu/0.png")
    located = Locality("a", 2, 1, 2, 3, frozenset({"dog/0.png", "emu/0.png"}))
    local = replace(penstock.open(folder), locality=located).local()
    assert local.classes == ("cat", "dog", "emu")
    assert labels_of(local) == [1, 2]


def test_classes_that_do_not_exist_are_refused(tmp_path):
    folder = images_in(tmp_path, "cat/0.png", "1.png", "2.png")
    with pytest.raises(ConfigError, match=r"2 of 3 images are not in a class folder, such as 1\.png"):
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


def test_hive_partition_is_left_out_by_schema_with_its_values(partitioned, caplog):
    dataset = penstock.open(partitioned)
    # `kind` is also a column in the files, so only `year` is missing.
    assert [name for name, _ in dataset.schema().left_out] == ["year"]
    assert "a Hive partition of 2 values (`year=2023`, `year=2024`)" in str(dataset.schema())
    (batch,) = penstock.Loader(dataset, batch_size=8)
    assert batch["x"].tolist() == [0, 1, 2]
    assert "the default fields do not include `year`" in caplog.text


def test_field_of_a_hive_partition_is_refused_and_one_of_the_files_is_read(partitioned):
    dataset = penstock.open(partitioned)
    with pytest.raises(
        ConfigError, match=r"y cannot be read from `year`, which is a Hive partition of 2 values"
    ) as caught:
        next(iter(penstock.Loader(dataset.fields(y=penstock.tensor("int64", ()).of("year")), batch_size=1)))
    assert "year=VALUE/**" in str(caught.value.hint)
    (batch,) = penstock.Loader(dataset.fields(kind=penstock.raw()), batch_size=8)
    assert list(batch["kind"]) == [b"stored"] * 3
    (batch,) = penstock.Loader(penstock.open(f"{partitioned}/year=2024/**").fields(x=FIELDS["label"]), batch_size=8)
    assert batch["x"].tolist() == [1, 2]

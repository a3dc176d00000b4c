# SPDX-License-Identifier: Apache-2.0
"""Tests the paths that `open` accepts: folders, patterns, single objects, manifests; local and over S3."""

from __future__ import annotations

import json

import pytest

import penstock
from penstock.errors import ConfigError, Denied, NotFound, SystemFault

from .conftest import batches, dataset, write


def order(url, seed=5):
    return batches(penstock.Loader(dataset(url).shuffle(seed), batch_size=4))


def test_open_takes_folders_patterns_and_single_objects(made, monkeypatch):
    folder = made([1] * 12)
    assert order(folder) == order(f"file://{folder}/") == order(f"{folder}/*.tfrecord.gz") == order(f"{folder}/part-*")
    assert batches(penstock.Loader(dataset(f"{folder}/part-000[12]*"), batch_size=4)) == [[1, 2]]
    assert batches(penstock.Loader(dataset(folder / "part-0007.tfrecord.gz"), batch_size=4)) == [[7]]
    monkeypatch.chdir(folder.parent)
    assert order("data") == order(folder)
    with pytest.raises(NotFound, match=r"\.nothing"):
        penstock.open(f"{folder}/*.nothing")


def test_open_of_a_folder_with_pattern_letters_in_its_name_is_that_folder(tmp_path):
    assert order(write(tmp_path / "run [1]?*", [1] * 6)) == order(write(tmp_path / "plain", [1] * 6))


def test_open_of_an_empty_text_does_not_list_the_working_directory(made, monkeypatch):
    monkeypatch.chdir(made([1]))
    with pytest.raises(ConfigError, match="empty"):
        penstock.open("")


def test_open_of_an_empty_folder_says_that_it_holds_nothing(tmp_path):
    with pytest.raises(NotFound, match="no object under file://"):
        penstock.open(tmp_path)


def test_open_with_a_manifest_that_cannot_be_read_is_one_of_our_errors(made, tmp_path):
    folder = made([1])
    with pytest.raises(NotFound, match=r"no\.json"):
        penstock.open(folder, manifest=tmp_path / "no.json")
    with pytest.raises(SystemFault, match="directory"):
        penstock.open(folder, manifest=tmp_path)


def test_open_of_objects_beside_their_inflated_copies_is_refused(tmp_path):
    folder = write(tmp_path / "both", [1, 1])
    write(folder, [1, 1], codec="none")
    with pytest.raises(ConfigError, match=r"`part-0000.tfrecord` and as `part-0000.tfrecord.gz`"):
        penstock.open(folder)
    assert order(f"{folder}/*.gz") == order(f"{folder}/*.tfrecord")


def test_dataset_repr_says_what_it_is(made):
    text = repr(dataset(made([1, 1])).shuffle(3))
    assert all(part in text for part in ("/data/", "2 objects", "x int16 [3, 2]", "seed 3"))


def test_open_takes_the_listing_from_a_manifest(made, tmp_path):
    folder = made([1] * 6)
    listing = json.loads(penstock.open(folder).source.manifest())
    listing["objects"] = listing["objects"][:4]
    for entry in listing["objects"]:
        entry["records"] = 1
    (tmp_path / "manifest.json").write_text(json.dumps(listing))
    opened = dataset(folder, manifest=tmp_path / "manifest.json")
    assert opened.counted().rung == "manifest"
    assert batches(penstock.Loader(opened, batch_size=4)) == [[0, 1, 2, 3]]
    with pytest.raises(ConfigError, match="manifest: it is the manifest of"):
        penstock.open(tmp_path / "elsewhere", manifest=tmp_path / "manifest.json")


@pytest.mark.needs_s3
def test_feed_over_s3_has_the_order_of_the_local_copy(versitygw, monkeypatch, tmp_path):
    write(versitygw.bucket("feed") / "train", [1] * 30)
    write(versitygw.bucket("feed") / "training", [1])  # another folder with the same prefix
    local = write(tmp_path / "plain", [1] * 30, codec="none")
    for name, value in versitygw.env.items():
        monkeypatch.setenv(name, value)
    assert order("s3://feed/train/") == order("s3://feed/train") == order("s3://feed/train/*.gz") == order(local)
    loader = penstock.Loader(dataset("s3://feed/train/").shuffle(5), batch_size=4)
    list(loader)
    report = loader.report()
    assert (report["samples"], report["counts"], report["throttles"]) == (30, "sizes", 0)
    assert report["requests"] == 30
    assert report["bytes_in"] == sum(path.stat().st_size for path in (versitygw.bucket("feed") / "train").iterdir())
    with pytest.raises(NotFound):
        penstock.open("s3://feed/nothing/")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(Denied):
        penstock.open("s3://feed/train/")

# SPDX-License-Identifier: Apache-2.0
"""Tests the other locations that `open` accepts: lists, braces, `~`, and the URL schemes of other programs."""

from __future__ import annotations

import re

import h5py
import numpy as np
import pytest

import penstock
from penstock.errors import ConfigError, NotFound


@pytest.fixture
def shards(tmp_path):
    """Writes twelve objects of two records in two folders; record n is the number n."""
    for number in range(12):
        folder = tmp_path / ("train" if number < 8 else "val")
        folder.mkdir(exist_ok=True)
        np.save(folder / f"s-{number:03d}.npy", np.array([2 * number, 2 * number + 1], dtype="int64"))
    return tmp_path


def numbers(dataset):
    dataset = dataset.fields(array=penstock.tensor("int64", ()))
    return [int(n) for batch in penstock.Loader(dataset, batch_size=4) for n in batch["array"]]


def opened(place):
    return penstock.open(place, format=penstock.formats.npy(rows=True))


def test_braces_take_a_range_and_alternatives(shards):
    assert numbers(opened(f"{shards}/train/s-{{002..004}}.npy")) == list(range(4, 10))
    assert numbers(opened(f"{shards}/{{train,val}}/s-00[67].npy")) == [12, 13, 14, 15]


def test_list_of_objects_folders_and_patterns_is_one_dataset(shards):
    place = [shards / "val", f"{shards}/train/s-{{000..001}}.npy", shards / "train/s-007.npy"]
    assert numbers(opened(place)) == [0, 1, 2, 3, 14, 15, *range(16, 24)]
    assert opened(place[:1]).samples == 8


def test_list_that_names_what_is_not_there_is_refused(shards):
    with pytest.raises(NotFound, match=r"s-999\.npy \(one of the 2 objects that the URL names\) does not"):
        opened([shards / "train/s-000.npy", shards / "train/s-999.npy"])


def test_list_with_a_url_whose_objects_are_all_of_other_formats_is_refused(shards):
    (shards / "tars").mkdir()
    for number in range(3):
        (shards / f"tars/{number}.tar").write_bytes(bytes(1024))
        (shards / f"train/{number}.idx").write_bytes(b"0 1")
    (shards / "notes.md").write_bytes(b"words")
    for other in ("tars", "tars/", "tars/1.tar", "tars/*.tar", "tars/[0-1].tar", "t*/{0..2}.tar", "notes.md"):
        with pytest.raises(ConfigError, match=re.escape(f"/{other} contains no npy objects")) as caught:
            opened([shards / "train", shards / "val/*.npy", f"{shards}/{other}"])
        assert "penstock.mix" in caught.value.hint
    both = [f"{shards}/t*/*", shards / "val", shards / "train/0.idx"]
    assert opened(both).source.objects == 12
    assert opened([f"{shards}/", shards / "val/s-008.npy"]).source.objects == 12


@pytest.mark.parametrize(
    ("pattern", "missing"),
    [
        ("train/s-{006..009}.npy", r"train/s-008\.npy \(the first of 2 missing objects; the URL names 4\)"),
        ("{train/s-000,val/s-{010,11}}.npy", r"val/s-11\.npy \(one of the 3 objects"),
        ("train/s-00{6..10}.npy", r"train/s-0010\.npy \(the first of 3 missing objects; the URL names 5\)"),
    ],
)
def test_braces_that_name_what_is_not_there_are_refused(shards, pattern, missing):
    with pytest.raises(NotFound, match=missing):
        opened(f"{shards}/{pattern}")


def test_braces_may_name_objects_that_are_not_data(shards):
    (shards / "train/s-000.idx").write_bytes(b"0 1")
    (shards / "train/notes.md").write_bytes(b"words")
    assert numbers(opened(f"{shards}/train/s-000.{{npy,idx}}")) == [0, 1]
    assert penstock.open(f"{shards}/train/{{s-000.npy,notes.md}}").source.objects == 1
    with pytest.raises(NotFound, match=r"s-099\.npy \(one of the 3 objects"):
        penstock.open(f"{shards}/train/{{s-000.npy,notes.md,s-099.npy}}")
    with pytest.raises(NotFound, match=r"train/s-099\.npy does not exist"):
        penstock.open([f"{shards}/*/*.{{npy,md}}", f"{shards}/train/s-099.npy"])


def test_braces_may_name_absent_index_files_but_no_folder(shards):
    assert numbers(opened(f"{shards}/train/s-000.{{npy,idx}}")) == [0, 1]
    with pytest.raises(ConfigError, match=r"/train is a folder; write `/\*\*` after it"):
        opened(f"{shards}/{{train,val}}")


def test_braces_of_hdf5_may_name_other_objects(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.arange(3)
    (tmp_path / "notes.md").write_bytes(b"words")
    assert penstock.open(f"{tmp_path}/{{a.h5,notes.md}}", format=penstock.formats.hdf5("x")).samples == 3


def test_braces_beside_wildcards_and_literal_braces_select(shards):
    assert numbers(opened(f"{shards}/train/{{s,t}}-*[67].npy")) == [12, 13, 14, 15]
    (shards / "train/s-{x}.npy").write_bytes((shards / "train/s-000.npy").read_bytes())
    assert numbers(opened(f"{shards}/train/s-{{x}}.npy")) == [0, 1]
    assert numbers(opened(f"{shards}/train/s-{{x}}.n*")) == [0, 1]


def test_manifest_of_a_parent_folder_is_narrowed_to_the_url(shards, tmp_path_factory):
    manifest = tmp_path_factory.mktemp("manifest") / "all.json"
    manifest.write_bytes(penstock.open(shards).source.manifest())
    form = penstock.formats.npy(rows=True)
    for place, expected in [
        ("", range(24)),
        ("val", range(16, 24)),
        ("val/s-009.npy", [18, 19]),
        ("{train,val}/s-00[78].npy", [14, 15, 16, 17]),
        ("train/s-{000..001}.npy", range(4)),
    ]:
        assert numbers(penstock.open(f"{shards}/{place}", manifest, format=form)) == list(expected), place
    with pytest.raises(NotFound, match="s-099"):
        penstock.open(f"{shards}/val/s-099.npy", manifest, format=form)


@pytest.mark.parametrize(
    ("place", "problem"),
    [
        ([], "the list is empty"),
        (None, r"must be a URL or a path \(got None\)"),
        (["/data/x.npy", None], r"must be a URL or a path \(got None\)"),
        ("/data/\udcff.npy", r"'/data/\\udcff.npy' is not UTF-8"),
        (["s3://a/x.npy", "s3://b/x.npy"], "different stores or buckets"),
        (["s3://a/x.npy", "s3://a/x.npy"], "in the list twice"),
        (["s3://a/x,y.npy", "s3://a/z.npy"], "contains a comma"),
        (["/data/x.npy", "s3://a/x.npy"], "the list mixes a local path and s3://"),
        (["gs://a/x.npy", "s3://a/x.npy"], "the list mixes gs:// and s3://"),
        (["hf://datasets/a/b/x.npy", "hf://datasets/a/c/x.npy"], "different stores or buckets"),
        ("abfss://box@account.dfs.core.windows.net/x.npy", "write az://CONTAINER/KEY, and set AZURE_STORAGE_ACCOUNT"),
    ],
)
def test_places_that_cannot_be_are_refused(place, problem):
    with pytest.raises(ConfigError, match=problem):
        penstock.open(place)


def test_home_and_other_programs_schemes_are_known(shards, monkeypatch, emulator):
    monkeypatch.setenv("HOME", str(shards))
    assert opened("~/val").samples == 8
    store = emulator(shards)
    for name, value in store.env.items():
        monkeypatch.setenv(name, value)
    assert opened(f"s3a://{store.url.removeprefix('s3://')}val/").samples == 8


def test_home_of_an_unknown_user_is_a_name_like_any_other():
    with pytest.raises(NotFound, match="~unknown-user/data"):
        penstock.open("~unknown-user/data/")


def test_written_folder_of_an_unknown_user_is_a_name_like_any_other(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    penstock.write([{"x": 1}], "~unknown-user/data", format="tfrecord")
    assert penstock.open(tmp_path / "~unknown-user/data").samples == 1

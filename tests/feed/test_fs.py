# SPDX-License-Identifier: Apache-2.0
"""Tests the fsspec filesystem: listings and reads equal those of fsspec's local filesystem, on a folder and on S3."""

from __future__ import annotations

import json
import pickle

import fsspec
import pytest

import penstock

FILES = {"a.csv": b"x,y\n1,2\n", "sub/b.bin": bytes(range(256)) * 40, "sub/deep/c.txt": b"deep", "sub/d e.txt": b""}


@pytest.fixture(params=["file", "s3"])
def root(request, tmp_path, monkeypatch):
    if request.param == "file":
        folder, url = tmp_path / "data", f"file://{tmp_path}/data"
    else:
        peer = request.getfixturevalue("versitygw")
        for name, value in peer.env.items():
            monkeypatch.setenv(name, value)
        bucket = f"fs-{tmp_path.name.replace('_', '-').lower()[-20:].strip('-')}"
        folder, url = peer.bucket(bucket), f"s3://{bucket}"
    for name, content in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    fsspec.AbstractFileSystem.clear_instance_cache()
    penstock.fs.FileSystem.clear_instance_cache()
    return url


pytestmark = pytest.mark.needs_s3


def test_fs_lists_as_the_local_one_does(root):
    fs = penstock.fs.FileSystem()
    assert fs.ls(root, detail=False) == [f"{root}/a.csv", f"{root}/sub"]
    assert {entry["name"]: (entry["type"], entry["size"]) for entry in fs.ls(f"{root}/sub/")} == {
        f"{root}/sub/b.bin": ("file", 10240),
        f"{root}/sub/d e.txt": ("file", 0),
        f"{root}/sub/deep": ("directory", 0),
    }
    assert fs.find(root) == sorted(f"{root}/{name}" for name in FILES)
    assert fs.glob(f"{root}/**/*.txt") == [f"{root}/sub/d e.txt", f"{root}/sub/deep/c.txt"]
    assert fs.glob(f"{root}/*.csv") == [f"{root}/a.csv"]
    assert (fs.isdir(f"{root}/sub"), fs.isfile(f"{root}/a.csv"), fs.exists(f"{root}/nothing")) == (True, True, False)
    assert fs.size(f"{root}/sub/b.bin") == 10240
    with pytest.raises(FileNotFoundError, match="does not exist"):
        fs.info(f"{root}/nothing")


def test_fs_reads_whole_files_and_ranges(root):
    fs = penstock.fs.FileSystem()
    content, path = FILES["sub/b.bin"], f"{root}/sub/b.bin"
    assert fs.cat_file(path) == content
    assert fs.cat_file(path, 100, 300) == content[100:300]
    assert fs.cat_file(path, -10) == content[-10:]
    assert fs.cat_file(path, 5, -5) == content[5:-5]
    assert fs.cat_file(f"{root}/sub/d e.txt") == b""
    ranges = fs.cat_ranges([path, f"{root}/a.csv", path], [0, 1, 10_000], [10, 3, 20_000])
    assert ranges == [content[:10], b",y", content[10_000:]]
    (lost,) = fs.cat_ranges([f"{root}/nothing"], 0, 3)
    assert isinstance(lost, FileNotFoundError)
    with pytest.raises(FileNotFoundError):
        fs.cat_ranges([f"{root}/nothing"], 0, 3, on_error="raise")
    with fs.open(path) as file:
        assert file.read(7) == content[:7]
        assert file.seek(-5, 2) == 10235
        assert file.read() == content[-5:]
    assert pickle.loads(pickle.dumps(fs)).cat_file(f"{root}/a.csv") == FILES["a.csv"]
    with pytest.raises(ValueError, match="this file system is read-only"):
        fs.open(path, "wb")


def test_fs_serves_those_who_take_a_file_system(root):
    # An installed package does the same through its entry point.
    fsspec.register_implementation("penstock", penstock.fs.FileSystem, clobber=True)
    with fsspec.filesystem("penstock").open(f"{root}/a.csv", "r") as file:
        assert file.readlines() == ["x,y\n", "1,2\n"]
    mapper = penstock.fs.FileSystem().get_mapper(f"{root}/sub")
    assert mapper["deep/c.txt"] == b"deep"
    assert json.dumps(sorted(mapper)) == '["b.bin", "d e.txt", "deep/c.txt"]'

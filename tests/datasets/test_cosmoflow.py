# SPDX-License-Identifier: Apache-2.0
"""Tests the generated CosmoFlow files: names, bytes, errors."""

import gzip
import json
import subprocess
import sys

import numpy as np
import pytest

from penstock import _native, errors
from penstock.datasets import cosmoflow


def make(out, **kw):
    return cosmoflow.generate(out, **{"samples": 3, "voxels": 16, "seed": 1, **kw})


def contents(folder):
    return {p.name: p.read_bytes() for p in folder.iterdir()}


def test_generate_writes_published_names_and_nothing_else(tmp_path):
    summary = make(tmp_path / "d", samples=10, cubes_per_universe=8)
    names = sorted(contents(tmp_path / "d"))
    assert names[0] == "univ_ics_2019-03_a0000000_000.tfrecord.gz"
    assert names[-1] == "univ_ics_2019-03_a0000001_001.tfrecord.gz"
    assert len(names) == summary.samples == 10
    assert summary.bytes_stored == sum(map(len, contents(tmp_path / "d").values()))


def test_generate_sample_decodes_to_its_universe(tmp_path):
    make(tmp_path)
    data = (tmp_path / cosmoflow.sample_name(2, 0, "gzip")).read_bytes()
    (sample,) = _native.decode_tfrecord(gzip.decompress(data))
    y, (x,) = cosmoflow.universe(2, seed=1, voxels=16, box_mpc=cosmoflow.default_box_mpc(16))
    assert sorted(sample) == ["x", "y"]
    assert np.array_equal(np.frombuffer(sample["x"], "<i2").reshape(x.shape), x)
    assert np.array_equal(np.float32(sample["y"]), y)


def test_generate_same_seed_same_bytes_whatever_the_workers(tmp_path):
    make(tmp_path / "a", workers=1)
    make(tmp_path / "b", workers=3)
    make(tmp_path / "c", seed=2)
    assert contents(tmp_path / "a") == contents(tmp_path / "b") != contents(tmp_path / "c")


def test_generate_first_universe_continues_the_set(tmp_path):
    make(tmp_path / "all", samples=3)
    make(tmp_path / "tail", samples=1, first_universe=2)
    name = cosmoflow.sample_name(2, 0, "gzip")
    assert contents(tmp_path / "tail") == {name: contents(tmp_path / "all")[name]}


@pytest.mark.parametrize("compress", ["none", "zstd"])
def test_generate_other_codecs_hold_the_same_record(tmp_path, compress):
    make(tmp_path / "gz", samples=1)
    make(tmp_path / "other", samples=1, compress=compress)
    gz = contents(tmp_path / "gz")[cosmoflow.sample_name(0, 0, "gzip")]
    other = contents(tmp_path / "other")[cosmoflow.sample_name(0, 0, compress)]
    assert _native.decode_tfrecord(other, codec=compress) == _native.decode_tfrecord(gz, codec="gzip")


def test_generate_compresses_like_counts(tmp_path):
    summary = make(tmp_path, voxels=32, samples=4)
    assert 4 < summary.bytes_inflated / summary.bytes_stored < 9


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"samples": 0}, "samples"),
        ({"voxels": 4}, "voxels"),
        ({"cubes_per_universe": 7}, "cubes-per-universe"),
        ({"compress": "rar"}, "compress"),
        ({"box_mpc": -1.0}, "box"),
        ({"first_universe": 9_999_998}, "seven digits"),
        ({"seed": -1}, "seed"),
    ],
)
def test_generate_impossible_argument_is_named(tmp_path, wrong, named):
    with pytest.raises(errors.ConfigError, match=named):
        make(tmp_path, **wrong)


def test_generate_folder_of_others_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(errors.ConfigError, match=r"1 other files \(thesis.tex"):
        make(tmp_path)
    assert contents(tmp_path) == {"thesis.tex": b"years of work"}


def test_generate_removes_what_a_killed_run_left(tmp_path):
    (tmp_path / ".penstock-part-0123").write_bytes(b"half")
    make(tmp_path)
    assert all(name.startswith("univ_ics") for name in contents(tmp_path))


def test_dataset_verb_prints_one_json_line(tmp_path):
    argv = ["dataset", "cosmoflow", str(tmp_path / "d"), "--samples", "2", "--voxels", "16", "--seed", "4", "--json"]
    done = subprocess.run([sys.executable, "-m", "penstock", *argv], capture_output=True, text=True, check=True)
    facts = json.loads(done.stdout)
    assert (facts["samples"], facts["voxels"], facts["compress"]) == (2, 16, "gzip")
    assert done.stderr == ""


def test_dataset_verb_into_a_store_is_refused_and_makes_no_folder(tmp_path, run_cli, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ran = run_cli("dataset", "cosmoflow", "s3://frames/train", "--samples", "1", "--voxels", "16")
    assert (ran.code, ran.out, "s3://frames/train" in ran.err) == (3, "", True)
    assert not list(tmp_path.iterdir())

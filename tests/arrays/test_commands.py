# SPDX-License-Identifier: Apache-2.0
"""Tests `penstock array` on the command line: info, convert, verify, diff and slice."""

from __future__ import annotations

import json

import numpy as np
import pytest

import penstock.arrays
from penstock.arrays.convert.run import convert
from penstock.arrays.model_volumes import model_volume
from tests.arrays.segy_files import grid_numbers, noise, write_segy

INLINES, CROSSLINES = grid_numbers(10, 14)


@pytest.fixture
def segy(tmp_path):
    return write_segy(tmp_path / "a.sgy", noise((140, 60)), inlines=INLINES, crosslines=CROSSLINES)


@pytest.fixture
def run(run_cli):
    """Function `run(*argv, code=0)`, which runs the command and returns its output."""

    def call(*argv: object, code: int = 0) -> str:
        found = run_cli("array", *map(str, argv))
        assert found.code == code, found
        return found.out

    return call


def test_info_describes_and_ranks(segy, run):
    text = run("info", segy, "--scan", "--headers")
    assert "segy: amplitude, 10 × 14 × 60 float32" in text
    assert "inline=189:i4,crossline=193:i4: 100.0% of 10 × 14 filled, 0 duplicates" in text
    assert "C 1 test volume" in text
    facts = json.loads(run("info", segy, "--scan", "--json"))
    assert facts["dims"][0] == {"name": "inline", "size": 10, "first": 100, "last": 109, "units": None}
    assert facts["candidates"][0]["map"] == "inline=189:i4,crossline=193:i4"


def test_convert_verify_and_diff(segy, tmp_path, run):
    plan = run("convert", segy, tmp_path / "a.zarr", "--access", "inline,crossline", "--dry-run")
    assert "a slice across inline reads" in plan
    assert not (tmp_path / "a.zarr").exists()
    facts = json.loads(run("convert", segy, tmp_path / "a.zarr", "--json"))
    assert facts["is_complete"]
    assert "was complete already" in run("convert", segy, tmp_path / "a.zarr")
    assert "identical" in run("verify", segy, tmp_path / "a.zarr", "-o", tmp_path / "certificate.json")
    assert json.loads((tmp_path / "certificate.json").read_text())["is_identical"]
    assert run("diff", segy, tmp_path / "a.zarr").strip() == "equal"
    other = write_segy(tmp_path / "b.sgy", noise((140, 60), seed=2), inlines=INLINES, crosslines=CROSSLINES)
    assert "samples differ" in run("diff", other, tmp_path / "a.zarr", code=1)
    assert "different from byte" in run("verify", other, tmp_path / "a.zarr", code=1)


@pytest.mark.parametrize("name", ["a.sgy", "a.h5", "a.zarr"])
def test_created_volumes_are_the_same_in_each_format(name, tmp_path, run):
    facts = json.loads(run("create", tmp_path / name, "--shape", "6,7,40", "--seed", "3", "--json"))
    found = penstock.arrays.open(tmp_path / name, **facts["open_with"])
    values, dims, coords, _ = model_volume("seismic", (6, 7, 40), seed=3)
    assert found.dims == dims
    assert np.array_equal(found[...], values)
    assert np.array_equal(found.coords["cdp_x"].values, coords["cdp_x"].values)
    layered = json.loads(
        run("create", tmp_path / f"layered-{name}", "--kind", "layered", "--shape", "6,7,40", "--json")
    )
    there = penstock.arrays.open(tmp_path / f"layered-{name}", **layered["open_with"])
    assert there.dims == ("inline", "crossline", "depth")
    assert set(np.unique(there[...])) == {1.5, 2.0, 2.5, 3.0, 3.5}


def test_slice_is_a_picture_or_an_array(segy, tmp_path, run):
    convert(segy, tmp_path / "a.zarr")
    run("slice", tmp_path / "a.zarr", "--at", "crossline=303", "-o", tmp_path / "s.npy")
    want = noise((140, 60)).reshape(10, 14, 60)[:, 3]
    assert np.array_equal(np.load(tmp_path / "s.npy"), want)
    run("slice", segy, "-o", tmp_path / "s.png")
    assert (tmp_path / "s.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--at", "depth=3", "-o", "s.png"], "`depth` is not one of inline, crossline, time"),
        (["--at", "inline=99999", "-o", "s.png"], "is outside the range of the axis (100 to 109)"),
        (["--at", "inline", "-o", "s.png"], "is not DIMENSION=NUMBER"),
        (["--at", "inline=a", "-o", "s.png"], "is not DIMENSION=NUMBER"),
        (["--at", "inline=100", "--at", "time=0", "-o", "s.png"], "exactly 2 free dimensions (got 1: crossline)"),
        (["-o", "s.tiff"], "`.tiff` is not one of .png, .npy, .sgy, .segy"),
    ],
)  # fmt: skip
def test_slice_that_cannot_be_is_refused(argv, words, segy, tmp_path, monkeypatch, run_cli):
    monkeypatch.chdir(tmp_path)
    found = run_cli("array", "slice", str(segy), *argv)
    assert found.code != 0
    assert words in found.err
    assert not (tmp_path / "s.png").exists()

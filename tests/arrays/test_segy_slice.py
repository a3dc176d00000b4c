# SPDX-License-Identifier: Apache-2.0
"""Tests slices written as SEG-Y: traces keep their headers byte for byte, or get headers made from coordinates.

Issue 15, point 2.
"""

from __future__ import annotations

import numpy as np
import pytest
import segyio
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock.arrays
from penstock.arrays.convert.run import convert
from tests.arrays.segy_files import grid_numbers, ibm_words, noise, write_segy

INLINES, CROSSLINES = grid_numbers(10, 14)
TRACE = 240 + 4 * 60
MAP = ["--map", "inline=189:i4,crossline=193:i4"]


@pytest.fixture
def run(run_cli):
    """Function `run(*argv, code=0)`, which runs `penstock array slice` and returns its output, including errors."""

    def call(*argv: object, code: int = 0) -> str:
        found = run_cli("array", "slice", *map(str, argv))
        assert found.code == code, found
        return found.out + found.err

    return call


def traces(path, which) -> bytes:
    """The stored bytes of the traces with these numbers."""
    content = path.read_bytes()
    return b"".join(content[3600 + TRACE * int(n) : 3600 + TRACE * (int(n) + 1)] for n in which)


@pytest.mark.parametrize("name", ["a.sgy", "a.zarr", "a.h5", "a.mdio"])
def test_slice_has_the_bytes_of_its_traces(name, tmp_path, run):
    order = np.random.default_rng(3).permutation(140)
    words = ibm_words(noise((140, 60)))
    words[::3] = np.random.default_rng(4).integers(0, 2**32, words[::3].shape, dtype=np.uint64)  # un-normalised
    source = write_segy(
        tmp_path / "a.sgy", noise((140, 60)), inlines=INLINES[order], crosslines=CROSSLINES[order], random_bytes=7,
        format=1, words=words,
    )  # fmt: skip
    if name != "a.sgy":
        convert(source, tmp_path / name, map=MAP[1], format=1)
    flags = [*MAP, "--format", 1] if name == "a.sgy" else []
    run(tmp_path / name, "--at", "crossline=303", "-o", tmp_path / "s.sgy", *flags)
    want = np.flatnonzero(CROSSLINES[order] == 303)
    assert (tmp_path / "s.sgy").read_bytes() == source.read_bytes()[:3600] + traces(source, want)
    found = penstock.arrays.open(tmp_path / "s.sgy", map=MAP[1], format=1)
    assert found.shape == (10, 1, 60)
    assert not list(tmp_path.glob(".penstock*"))


def test_slice_leaves_out_missing_traces_and_keeps_the_first_of_duplicates(tmp_path, run):
    which = np.r_[np.arange(0, 140, 2), 28, 28]
    source = write_segy(
        tmp_path / "a.sgy", noise((140, 60))[which], inlines=INLINES[which], crosslines=CROSSLINES[which], extended=2,
        trailing=b"tail",
    )  # fmt: skip
    run(source, "--at", "inline=102", "-o", tmp_path / "s.sgy", "--allow-trailing", *MAP)
    content = source.read_bytes()
    assert (tmp_path / "s.sgy").read_bytes() == content[:10000] + content[10000 + 14 * TRACE : 10000 + 21 * TRACE]


@pytest.mark.parametrize("revision", [1, 2])
def test_time_slice_has_traces_of_one_sample_that_state_their_time(revision, tmp_path, run):
    samples = noise((140, 60))
    source = write_segy(tmp_path / "a.sgy", samples, inlines=INLINES, crosslines=CROSSLINES, revision=revision)
    run(source, "--at", "time=40", "-o", tmp_path / "s.sgy")
    found = penstock.arrays.open(tmp_path / "s.sgy")
    assert found.shape == (10, 14, 1)
    assert np.array_equal(found[..., 0].reshape(-1), samples[:, 10])
    assert found.coords["time"].values.tolist() == [40.0]
    with segyio.open(tmp_path / "s.sgy", strict=False) as peer:
        assert peer.bin[segyio.BinField.Samples] == 1
        assert peer.header[5][segyio.TraceField.CROSSLINE_3D] == 305


def test_slice_of_a_volume_without_headers_gets_them_from_its_coordinates(tmp_path, run):
    values = noise((5, 6, 30))
    group = zarr.open_group(str(tmp_path / "a.zarr"), mode="w")
    dims = ("inline", "crossline", "time")
    group.create_array("amplitude", shape=values.shape, dtype="f4", dimension_names=dims)[:] = values
    for name, numbers in zip(dims, (range(7, 12), range(20, 32, 2), range(0, 60, 2)), strict=True):
        found = group.create_array(name, shape=(len(numbers),), dtype="i4", dimension_names=(name,))
        found[:] = list(numbers)
    group["time"].attrs["units"] = "ms"
    run(tmp_path / "a.zarr", "--at", "inline=9", "-o", tmp_path / "s.sgy")
    with segyio.open(tmp_path / "s.sgy", strict=False) as peer:
        assert np.array_equal(peer.trace.raw[:], values[2])
        assert peer.attributes(segyio.TraceField.INLINE_3D)[:].tolist() == [9] * 6
        assert peer.attributes(segyio.TraceField.CROSSLINE_3D)[:].tolist() == list(range(20, 32, 2))
        assert peer.bin[segyio.BinField.Interval] == 2000
    run(tmp_path / "a.zarr", "--at", "time=8", "-o", tmp_path / "t.sgy")
    there = penstock.arrays.open(tmp_path / "t.sgy")
    assert np.array_equal(there[..., 0], values[:, :, 4])
    assert there.coords["time"].values.tolist() == [8.0]


def test_slice_of_foreign_mdio_keeps_the_fields_of_its_headers(tmp_path, run):
    kind = np.dtype([("inline", "<i4"), ("energy_source_point_num", "<i4"), ("samples_per_trace", "<i2")])
    rows = np.zeros((4, 5), dtype=kind)
    rows["inline"], rows["energy_source_point_num"] = np.arange(1, 5)[:, None], 1000 + np.arange(20).reshape(4, 5)
    rows["samples_per_trace"] = 77
    values = noise((4, 5, 8))
    rows[2, 1], values[2, 1] = np.zeros((), dtype=kind), np.nan
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("warnings.warn", lambda *args, **kwargs: None)  # of types without a specification
        group = zarr.open_group(str(tmp_path / "a.mdio"), mode="w")
        names = {"dimension_names": ("inline", "crossline", "time")}
        group.create_array("amplitude", shape=(4, 5, 8), dtype="f4", **names)[:] = values
        group.create_array("headers", shape=(4, 5), dtype=kind)[:] = rows
        group.attrs["attributes"] = {"defaultVariableName": "amplitude"}
    run(tmp_path / "a.mdio", "--at", "inline=2", "-o", tmp_path / "s.sgy")
    with segyio.open(tmp_path / "s.sgy", strict=False) as peer:
        assert np.array_equal(peer.trace.raw[:], np.nan_to_num(values[2]))
        assert peer.attributes(segyio.TraceField.EnergySourcePoint)[:].tolist() == [1010, 0, 1012, 1013, 1014]
        assert peer.attributes(segyio.TraceField.TraceIdentificationCode)[:].tolist() == [1, 2, 1, 1, 1]
        assert peer.attributes(segyio.TraceField.TRACE_SAMPLE_COUNT)[:].tolist() == [8] * 5


def test_slice_to_a_file_that_exists_or_without_traces_is_refused(tmp_path, run):
    which = np.flatnonzero(INLINES != 104)
    fields = {189: ("i4", INLINES[which] * 1), 193: ("i4", CROSSLINES[which])}
    source = write_segy(tmp_path / "a.sgy", noise((126, 60)), fields=fields)
    (tmp_path / "s.sgy").write_bytes(b"precious")
    assert "exists" in run(source, "--at", "inline=102", "-o", tmp_path / "s.sgy", code=1)
    assert (tmp_path / "s.sgy").read_bytes() == b"precious"
    odd = write_segy(tmp_path / "odd.sgy", noise((140, 60)), inlines=INLINES, crosslines=CROSSLINES, interval=500)
    assert "time: SEG-Y traces cannot start at 0.5" in run(odd, "--at", "time=0.5", "-o", tmp_path / "t.sgy", code=3)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 2**16),
    dim=st.sampled_from(["inline", "crossline"]),
    at=st.integers(0, 4),
    kept=st.integers(20, 30),
)
def test_prop_slice_is_those_traces_in_the_order_of_the_file(seed, dim, at, kept, tmp_path_factory):
    from penstock.arrays.convert.segy_slice import write_segy_slice
    from penstock.arrays.convert.source import open_source
    from penstock.arrays.location import Location
    from penstock.arrays.pictures import place_of

    folder = tmp_path_factory.mktemp("slice")
    order = np.random.default_rng(seed).permutation(30)[:kept]
    inlines, crosslines = grid_numbers(5, 6)
    source = write_segy(
        folder / "a.sgy",
        noise((30, 60), seed)[order],
        inlines=inlines[order],
        crosslines=crosslines[order],
        random_bytes=seed,
    )
    numbers = (inlines if dim == "inline" else crosslines)[order]
    first = 100 if dim == "inline" else 300
    want = np.flatnonzero(numbers == first + at)
    volume = penstock.arrays.open(source, map=MAP[1])
    if not len(want) or first + at not in volume.coords[dim].values:
        return
    key = place_of(volume, {dim: float(first + at)})
    count = write_segy_slice(
        Location(str(folder / "s.sgy")), open_source(Location(str(source)), map=MAP[1]), volume, key
    )
    assert count == len(want)
    assert (folder / "s.sgy").read_bytes()[3600:] == traces(source, want)

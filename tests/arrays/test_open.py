# SPDX-License-Identifier: Apache-2.0
"""Tests that one program reads the same values from SEG-Y, HDF5, NetCDF-4, Zarr and MDIO, in files and on S3."""

from __future__ import annotations

import pickle
from pathlib import Path

import dask
import h5py
import netCDF4
import numpy as np
import pytest
import segyio
import xarray
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock.arrays
from penstock.arrays.convert.run import convert
from penstock.arrays.indexing import select
from penstock.emulator import Emulator
from penstock.errors import ConfigError, NotFound, Unsupported
from tests.arrays.segy_files import grid_numbers, ibm_words, noise, write_segy

SHAPE = (10, 14, 60)
INLINES, CROSSLINES = grid_numbers(10, 14)


@pytest.fixture(scope="module")
def backends(tmp_path_factory):
    """URLs of the same volume in every format, and the volume's values."""
    folder = tmp_path_factory.mktemp("volumes")
    samples = noise((140, 60))
    source = write_segy(folder / "a.sgy", samples, inlines=INLINES, crosslines=CROSSLINES)
    convert(source, folder / "flat.h5")
    convert(source, folder / "chunked.h5", codec="gzip", chunks="4,4,16")
    convert(source, folder / "plain.zarr", codec="none", shards="none", chunks="4,4,16")
    convert(source, folder / "blosc.zarr", codec="lz4", chunks="4,4,16", shards="8,8,64")
    (folder / "store").mkdir()
    with Emulator(folder / "store") as emulator, pytest.MonkeyPatch.context() as patch:
        for name, value in emulator.env.items():
            patch.setenv(name, value)
        bucket = emulator.url.rstrip("/")
        convert(source, f"{bucket}/a.zarr", chunks="4,4,16", shards="8,8,64")
        (folder / "store/a.sgy").write_bytes(source.read_bytes())
        (folder / "store/a.h5").write_bytes((folder / "chunked.h5").read_bytes())
        local = ["a.sgy", "flat.h5", "chunked.h5", "plain.zarr", "blosc.zarr"]
        urls = {name: str(folder / name) for name in local}
        urls |= {f"s3 {name}": f"{bucket}/{name}" for name in ("a.zarr", "a.sgy", "a.h5")}
        yield urls, samples.reshape(SHAPE)


def program(url: str) -> list[np.ndarray]:
    """An application that reads a volume; only the URL differs between formats."""
    volume = penstock.arrays.open(url)
    inline, crossline, time = volume.read_many([np.s_[3], np.s_[:, 5], np.s_[:, :, 7]])
    return [
        inline, crossline, time, volume[2:9:3, ..., ::-2], volume[[9, 0, 0, 4], 3:5], volume[-1, -1, -1],
        volume[...], volume.coords["inline"].values, volume.coords["time"].values, volume.coords["cdp_x"].values,
        volume.headers(np.s_[2, 3:6])["crossline"].astype(np.int32),
    ]  # fmt: skip


BACKENDS = ["a.sgy", "flat.h5", "chunked.h5", "plain.zarr", "blosc.zarr", "s3 a.zarr", "s3 a.sgy", "s3 a.h5"]


@pytest.mark.parametrize("name", BACKENDS)
def test_one_program_gets_the_same_numbers_from_every_backend(name, backends):
    urls, samples = backends
    volume = penstock.arrays.open(urls[name])
    assert volume.dims == ("inline", "crossline", "time")
    assert (volume.shape, volume.dtype, volume.ndim, len(volume)) == (SHAPE, np.float32, 3, 10)
    assert volume.coords["time"].attrs["units"] == "ms"
    assert volume.coords["cdp_x"].attrs["units"] == "m"
    got, want = program(urls[name]), program(urls["a.sgy"])
    for one, other in zip(got, want, strict=True):
        assert np.array_equal(one, other)
        assert np.asarray(one).dtype == np.asarray(other).dtype
    assert np.array_equal(got[6], samples)
    assert np.array_equal(got[3], samples[2:9:3, ..., ::-2])
    assert np.array_equal(got[4], samples[[9, 0, 0, 4], 3:5])


@pytest.mark.parametrize("name", ["a.sgy", "chunked.h5", "blosc.zarr", "s3 a.zarr"])
def test_xarray_and_dask_read_lazily(name, backends):
    urls, samples = backends
    volume = penstock.arrays.open(urls[name])
    found = volume.to_xarray()
    assert volume.stats()["bytes_returned"] == (0 if name != "a.sgy" else volume.stats()["bytes_returned"])
    assert np.array_equal(found.sel(inline=103).values, samples[3])
    assert np.array_equal(found.isel(crossline=[1, 5], time=slice(None, None, -1)).values, samples[:, [1, 5], ::-1])
    assert found.inline.values[0] == 100
    with dask.config.set(scheduler="threads"):
        assert np.array_equal(volume.to_xarray(chunks={}).max(dim="time").values, samples.max(axis=2))
        assert np.array_equal(volume.to_dask()[1:3].compute(), samples[1:3])
    assert np.array_equal(pickle.loads(pickle.dumps(volume))[4], samples[4])


def test_slice_of_shards_costs_an_index_and_the_chunks_that_it_needs(backends):
    urls, _ = backends
    volume = penstock.arrays.open(urls["s3 a.zarr"])
    _ = volume[3]
    first = volume.stats()
    # There are two shards along crossline. Each needs two requests: one for its index, and one for a range.
    assert first["requests"] <= 2 * 2
    _ = volume[5]
    assert volume.stats()["requests"] - first["requests"] <= 2 + 2
    assert first["bytes_read"] <= 1.2 * first["bytes_needed"]
    assert first["in_flight"] == 0 < first["max_in_flight"]


def test_segy_headers_are_scanned_once(tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    source = write_segy(tmp_path / "a.sgy", noise((140, 60)), inlines=INLINES, crosslines=CROSSLINES)
    first = penstock.arrays.open(source)
    again = penstock.arrays.open(source)
    assert again.stats()["bytes_read"] < first.stats()["bytes_read"] / 10
    assert np.array_equal(again.coords["cdp_x"].values, first.coords["cdp_x"].values)
    # A new version of the file is scanned again.
    write_segy(source, noise((140, 60)), inlines=INLINES + 5, crosslines=CROSSLINES)
    assert penstock.arrays.open(source).coords["inline"].values[0] == 105


def test_segyio_and_penstock_read_the_same_file(tmp_path):
    samples = noise((140, 60))
    for code in (1, 5):
        path = write_segy(tmp_path / f"{code}.sgy", samples, inlines=INLINES, crosslines=CROSSLINES, format=code)
        volume = penstock.arrays.open(path)
        with segyio.open(path) as file:
            assert np.array_equal(volume[...], segyio.tools.cube(file))
            assert list(volume.coords["inline"].values) == list(file.ilines)
            assert volume.headers(np.s_[1, 1])["cdp_x"] == file.header[15][181]
    assert ibm_words(np.array([-118.625]))[0] == 0xC276A000


def test_segyio_writes_and_penstock_reads(tmp_path):
    samples = noise((30, 40)).reshape(5, 6, 40)
    for endian in ("big", "little"):
        path = tmp_path / f"{endian}.sgy"
        segyio.tools.from_array3D(path, samples.copy(), format=5, dt=2000)
        if endian == "little":
            spec = segyio.spec()
            spec.ilines, spec.xlines, spec.samples = range(1, 6), range(1, 7), np.arange(40) * 2.0
            spec.format, spec.sorting, spec.endian = 5, 2, "little"
            with segyio.create(path, spec) as file:
                for trace in range(30):
                    file.header[trace] = {189: trace // 6 + 1, 193: trace % 6 + 1}
                    file.trace[trace] = samples.reshape(30, 40)[trace]
        volume = penstock.arrays.open(path)
        assert volume.shape == (5, 6, 40)
        assert volume.attrs["byte_order"] == endian
        assert np.array_equal(volume[...], samples)


def test_two_dimensional_line_and_gathers_have_their_dimensions(tmp_path):
    line = write_segy(tmp_path / "line.sgy", noise((50, 40)), fields={21: ("i4", np.arange(1, 51))})
    assert penstock.arrays.open(line).dims == ("cdp", "time")
    offsets = np.tile(np.arange(100, 700, 100), 20)
    gathers = write_segy(
        tmp_path / "gathers.sgy",
        noise((120, 40)),
        fields={21: ("i4", np.repeat(np.arange(20), 6)), 37: ("i4", offsets)},
    )
    volume = penstock.arrays.open(gathers)
    assert (volume.dims, volume.shape) == (("cdp", "offset", "time"), (20, 6, 40))
    assert volume.coords["offset"].attrs["units"] == "m"
    shots = write_segy(
        tmp_path / "shots.sgy", noise((120, 40)),
        fields={9: ("i4", np.repeat(np.arange(1, 11), 12)), 13: ("i4", np.tile(np.arange(1, 13), 10))},
    )  # fmt: skip
    assert penstock.arrays.open(shots, vertical="depth").dims == ("shot", "channel", "depth")
    stack = write_segy(
        tmp_path / "prestack.sgy", noise((120, 40)), inlines=np.repeat([1, 2, 3, 4], 30), crosslines=np.tile(np.repeat([7, 8, 9, 10, 11], 6), 4),
        fields={37: ("i4", np.tile(np.arange(6), 20))},
    )  # fmt: skip
    assert penstock.arrays.open(stack).shape == (4, 5, 6, 40)


def test_map_places_fields_anywhere(tmp_path):
    path = write_segy(tmp_path / "a.sgy", noise((140, 60)), fields={73: ("i4", INLINES * 3), 201: ("i2", CROSSLINES)})
    volume = penstock.arrays.open(path, map="inline=73:i4,crossline=201:i2")
    assert volume.shape == SHAPE
    assert list(volume.coords["inline"].values[:2]) == [300, 303]


def test_missing_traces_are_nan_and_counted(tmp_path):
    kept = np.delete(np.arange(140), [3, 77])
    path = write_segy(tmp_path / "a.sgy", noise((140, 60))[kept], inlines=INLINES[kept], crosslines=CROSSLINES[kept])
    volume = penstock.arrays.open(path)
    assert volume.attrs["missing_traces"] == 2
    assert np.isnan(volume[0, 3]).all()
    assert np.isnan(volume.coords["cdp_x"].values[0, 3])
    assert volume.headers(np.s_[0, 3])["inline"] == 0


def test_zarr_of_other_writers(tmp_path):
    values = noise((6, 7, 8)).reshape(6, 7, 8)
    zarr.create_array(str(tmp_path / "v3"), data=values, chunks=(2, 3, 4), dimension_names=["a", None, "c"])
    zarr.create_array(str(tmp_path / "v2"), data=values, chunks=(2, 3, 4), zarr_format=2)
    xarray.Dataset({"temperature": (("x", "y", "z"), values)}, coords={"x": np.arange(6) * 2.0}).to_zarr(
        tmp_path / "ds2", zarr_format=2
    )
    xarray.Dataset({"temperature": (("x", "y", "z"), values)}, coords={"x": np.arange(6) * 2.0}).to_zarr(
        tmp_path / "ds3", zarr_format=3, consolidated=False
    )
    for name in ("v3", "v2", "ds2", "ds3"):
        assert np.array_equal(penstock.arrays.open(tmp_path / name)[1:, 2:5, ::3], values[1:, 2:5, ::3]), name
    assert penstock.arrays.open(tmp_path / "v3").dims == ("a", "dim_1", "c")
    volume = penstock.arrays.open(tmp_path / "ds2")
    assert (volume.name, volume.dims) == ("temperature", ("x", "y", "z"))
    assert list(volume.coords["x"].values) == [0, 2, 4, 6, 8, 10]
    with pytest.raises(ConfigError, match="only `temperature`"):
        penstock.arrays.open(tmp_path / "ds2", array="humidity")


@pytest.mark.filterwarnings("ignore:Numcodecs codecs are not")
def test_codec_that_the_core_lacks_is_read_by_zarr_python(tmp_path):
    values = (noise((20, 30)) * 100).astype(np.int32)
    from zarr.codecs.numcodecs import Delta

    zarr.create_array(str(tmp_path / "a"), data=values, chunks=(7, 9), filters=[Delta(dtype="<i4")])
    volume = penstock.arrays.open(tmp_path / "a")
    assert np.array_equal(volume[3:, 4], values[3:, 4])


def test_netcdf4_has_its_coordinates(tmp_path):
    values = noise((4, 5)).astype(np.float64)
    with netCDF4.Dataset(tmp_path / "a.nc", "w") as file:
        file.createDimension("depth", 4)
        file.createDimension("station", 5)
        depth = file.createVariable("depth", "f8", ("depth",))
        depth[:] = [0, 10, 20, 50]
        depth.units = "m"
        file.createVariable("salinity", "f8", ("depth", "station"), zlib=True)[:] = values
    volume = penstock.arrays.open(tmp_path / "a.nc")
    assert (volume.name, volume.dims) == ("salinity", ("depth", "station"))
    assert np.array_equal(volume[...], values)
    assert volume.coords["depth"].attrs["units"] == "m"
    assert "station" not in volume.coords


def test_hdf5_arrays_are_chosen_by_name(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["big"] = noise((20, 30))
        file["group/small"] = np.arange(5, dtype=">i2")
        file.create_dataset("never/written", shape=(7, 1 << 20), dtype="f4", fillvalue=3)
    assert penstock.arrays.open(tmp_path / "a.h5", array="group/small")[1:4].tolist() == [1, 2, 3]
    assert penstock.arrays.open(tmp_path / "a.h5", array="never/written")[2, 5:7].tolist() == [3, 3]
    with pytest.raises(ConfigError, match="no dataset `none`"):
        penstock.arrays.open(tmp_path / "a.h5", array="none")


def test_what_is_no_volume_is_refused_by_its_content(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/readme").write_text("hello")
    with pytest.raises(Unsupported, match="contains no Zarr metadata"):
        penstock.arrays.open(tmp_path / "folder")
    with pytest.raises(NotFound, match="does not exist"):
        penstock.arrays.open(tmp_path / "none.zarr")
    (tmp_path / "old.nc").write_bytes(b"CDF\x01" + bytes(5000))
    with pytest.raises(Unsupported, match="NetCDF-3"):
        penstock.arrays.open(tmp_path / "old.nc")
    zarr.create_array(str(tmp_path / "a.zarr"), shape=(3, 3), dtype="f4")[:] = 1
    with pytest.raises(ConfigError, match=r"supported only for SEG-Y, but .* is zarr"):
        penstock.arrays.open(tmp_path / "a.zarr", samples=5)
    with pytest.raises(ConfigError, match="url: must not be empty"):
        penstock.arrays.open("")


@pytest.mark.parametrize(
    "key", [10, (0, 0, 60), (0, 0, 0, 0), (..., ...), ([0, 1], [0, 1]), 1.5, "a", np.ones((2, 2), bool), [99]]
)
def test_wrong_indexes_raise_index_errors(key, backends):
    with pytest.raises(IndexError):
        penstock.arrays.open(backends[0]["blosc.zarr"])[key]


_SIDES = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 5)), min_size=1, max_size=4)


@settings(max_examples=300, deadline=None)
@given(sides=_SIDES, data=st.data())
def test_any_index_is_numpys(sides, data):
    shape, chunks = tuple(side for side, _ in sides), tuple(chunk for _, chunk in sides)
    values = np.arange(int(np.prod(shape))).reshape(shape)
    keys: list[object] = []
    has_list = False
    for side in shape[: data.draw(st.integers(0, len(shape)))]:
        kind = data.draw(st.sampled_from(["slice", "integer", "list", "mask"]))
        if kind in ("list", "mask") and has_list:
            kind = "slice"
        if kind == "slice":
            keys.append(data.draw(st.slices(side)))
        elif kind == "integer":
            keys.append(data.draw(st.integers(-side, side - 1)))
        elif kind == "list":
            keys.append(data.draw(st.lists(st.integers(-side, side - 1), max_size=6)))
        else:
            keys.append(np.array(data.draw(st.lists(st.booleans(), min_size=side, max_size=side)), dtype=bool))
        has_list = has_list or kind in ("list", "mask")
    if data.draw(st.booleans()):
        keys = [*keys, ...] if data.draw(st.booleans()) or len(keys) < len(shape) else [*keys[:1], ..., *keys[1:]]
    # Converted to integers, because NumPy makes an empty list an array of floats.
    keys = [np.array(each, dtype=np.int64) if isinstance(each, list) else each for each in keys]
    key = tuple(keys)
    want = values[key]
    selection = select(key, shape, chunks)
    assert np.array_equal(
        selection.assemble([values[tuple(slice(*side) for side in box)] for box in selection.boxes]), want
    )


def test_mdio_group_opens_read_only(tmp_path):
    """A group in the layout of MDIO version 1 (checked against multidimio's own files in benches/peers/arrays)."""
    group = zarr.open_group(str(tmp_path / "a.mdio"), mode="w", zarr_format=2)
    group.attrs["attributes"] = {"defaultVariableName": "amplitude"}
    values = noise((5, 6, 7)).reshape(5, 6, 7)
    dims = ["inline", "crossline", "time"]
    made = group.create_array("amplitude", data=values, chunks=(2, 3, 7))
    made.attrs.update({"_ARRAY_DIMENSIONS": dims, "coordinates": "cdp_x"})
    group.create_array("trace_mask", data=np.ones((5, 6), dtype=bool)).attrs["_ARRAY_DIMENSIONS"] = dims[:2]
    group.create_array("cdp_x", data=np.ones((5, 6))).attrs["_ARRAY_DIMENSIONS"] = dims[:2]
    group.create_array("inline", data=np.arange(5)).attrs["_ARRAY_DIMENSIONS"] = dims[:1]
    zarr.consolidate_metadata(group.store)
    volume = penstock.arrays.open(Path(tmp_path / "a.mdio"))
    assert (volume.name, volume.dims) == ("amplitude", tuple(dims))
    assert np.array_equal(volume[2], values[2])
    assert set(volume.coords) == {"inline", "cdp_x"}

# SPDX-License-Identifier: Apache-2.0
"""Tests lossy compression with zfp: its error is measured, stored and printed, and the result is not certified.

Issue 15, point 2.
"""

from __future__ import annotations

import json

import h5py
import numpy as np
import pytest
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock.arrays
from penstock.arrays.convert.run import convert
from penstock.arrays.convert.verify import verify
from penstock.arrays.convert.zfp import parse_zfp
from penstock.emulator import Emulator
from penstock.errors import ConfigError, Unsupported
from tests.arrays.segy_files import grid_numbers, write_segy

INLINES, CROSSLINES = grid_numbers(12, 20)


def smooth(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (np.sin(np.arange(shape[-1]) / 9 + rng.random((*shape[:-1], 1)) * 6) * 100).astype(np.float32)


@pytest.fixture
def survey(tmp_path):
    return write_segy(tmp_path / "a.sgy", smooth((240, 75)), inlines=INLINES, crosslines=CROSSLINES, random_bytes=3)


MAP = {"map": "inline=189:i4,crossline=193:i4"}


@pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr version 3")
@pytest.mark.parametrize("shards", ["none", "8,16,96"])
def test_zfp_is_within_its_tolerance_and_opens_in_zarr_python(shards, survey, tmp_path):
    report = convert(survey, tmp_path / "a.zarr", codec="zfp:tolerance=0.01", chunks="4,8,32", shards=shards, **MAP)
    want = smooth((240, 75)).reshape(12, 20, 75)
    got = zarr.open_group(str(tmp_path / "a.zarr"), mode="r")["amplitude"][:]
    worst = float(np.abs(got.astype(np.float64) - want).max())
    assert 0 < worst <= 0.01
    assert report.lossy == {
        "codec": "zfp", "tolerance": 0.01, "samples": want.size, "missing_traces_are": 0, "max_error": worst,
        "rms_error": pytest.approx(np.sqrt(np.square(got.astype(np.float64) - want).mean())),
    }  # fmt: skip
    there = penstock.arrays.open(tmp_path / "a.zarr")
    assert np.array_equal(there[...], got)
    assert there.attrs["penstock_lossy"] == report.lossy
    # The headers (240 bytes of 240 traces) are not counted, because they are random and do not compress.
    assert report.stored_bytes - 240 * 240 < want.nbytes / 2
    assert (
        convert(survey, tmp_path / "a.zarr", codec="zfp:tolerance=0.01", chunks="4,8,32", shards=shards, **MAP).lossy
        == report.lossy
    )


def test_lossy_volume_is_not_certified_and_what_is_made_of_it_says_so(survey, tmp_path):
    report = convert(survey, tmp_path / "a.zarr", codec="zfp:rate=8", **MAP)
    assert report.lossy is not None
    again = convert(tmp_path / "a.zarr", tmp_path / "b.h5")
    assert again.lossy == report.lossy
    back = convert(tmp_path / "a.zarr", tmp_path / "b.sgy")
    assert back.lossy == report.lossy
    for made in ("a.zarr", "b.h5"):
        found = verify(survey, tmp_path / made)
        assert not found.is_identical
        assert found.lossy is not None
        assert found.lossy["headers_are_identical"]
        assert found.lossy["max_error"] == report.lossy["max_error"]
        assert found.lossy["rms_error"] == pytest.approx(report.lossy["rms_error"])
        assert json.loads(found.to_json())["lossy"]["codec"] == "zfp"


def test_lossy_volume_that_loses_nothing_is_not_certified_either(tmp_path):
    source = write_segy(tmp_path / "a.sgy", np.ones((240, 75), np.float32), inlines=INLINES, crosslines=CROSSLINES)
    report = convert(source, tmp_path / "a.zarr", codec="zfp:precision=32")
    assert report.lossy is not None
    assert report.lossy["max_error"] == 0
    found = verify(source, tmp_path / "a.zarr")
    assert found.first_difference is None
    assert not found.is_identical


def test_error_is_printed_by_convert_and_verify(survey, tmp_path, run_cli):
    argv = ["array", "convert", survey, tmp_path / "a.zarr", "--codec", "zfp:precision=12", "--map", MAP["map"]]
    found = run_cli(*map(str, argv))
    assert found.code == 0, found
    assert "lossy: zfp, 12 bits of precision: largest error" in found.out
    assert f"of {240 * 75:,} samples" in found.out
    checked = run_cli("array", "verify", str(survey), str(tmp_path / "a.zarr"))
    assert checked.code == 1
    assert "not certified, the volume is lossy (zfp" in checked.out
    assert "trace headers identical" in checked.out


def test_missing_traces_are_nan_after_zfp_and_not_part_of_the_error(tmp_path):
    kept = np.sort(np.random.default_rng(2).permutation(240)[:200])
    samples = smooth((240, 75))[kept]
    source = write_segy(tmp_path / "a.sgy", samples, inlines=INLINES[kept], crosslines=CROSSLINES[kept])
    report = convert(source, tmp_path / "a.zarr", codec="zfp:tolerance=0.1", chunks="4,8,32", shards="8,16,96")
    assert report.lossy is not None
    assert report.lossy["samples"] == samples.size
    there, here = penstock.arrays.open(source)[...], penstock.arrays.open(tmp_path / "a.zarr")[...]
    assert np.array_equal(np.isnan(there), np.isnan(here))
    assert np.nanmax(np.abs(there - here)) <= 0.1
    found = verify(source, tmp_path / "a.zarr")
    assert found.lossy is not None
    assert found.lossy["headers_are_identical"]


def test_interrupted_lossy_conversion_reports_the_error_of_the_whole_volume(survey, tmp_path):
    options = {"codec": "zfp:tolerance=0.5", "chunks": "4,4,75", "shards": "none", "threads": 1, **MAP}
    whole = convert(survey, tmp_path / "a.zarr", **options)

    class Stop(Exception):
        pass

    def stop(phase: str, done: int, total: int) -> None:
        if phase == "convert" and done == 7:
            raise Stop

    with pytest.raises(Stop):
        convert(survey, tmp_path / "b.zarr", progress=stop, **options)
    found = convert(survey, tmp_path / "b.zarr", **options)
    assert found.resumed >= 7
    assert found.lossy == whole.lossy


def test_lossy_volume_in_s3_opens(survey, tmp_path, monkeypatch):
    (tmp_path / "store").mkdir()
    with Emulator(tmp_path / "store") as emulator:
        for name, value in emulator.env.items():
            monkeypatch.setenv(name, value)
        url = f"{emulator.url.rstrip('/')}/a.zarr"
        report = convert(survey, url, codec="zfp:tolerance=0.5", chunks="4,8,32", shards="8,16,96", **MAP)
        got = penstock.arrays.open(url)[3:5, :, 10]
    want = smooth((240, 75)).reshape(12, 20, 75)[3:5, :, 10]
    assert 0 < np.abs(got - want).max() <= 0.5
    assert report.lossy is not None


@pytest.mark.parametrize(("code", "dtype"), [(2, "int32"), (3, "int16"), (8, "int8"), (11, "uint16")])
def test_zfp_of_integers_is_refused(code, dtype, tmp_path):
    source = write_segy(tmp_path / "a.sgy", np.ones((240, 75)), inlines=INLINES, crosslines=CROSSLINES, format=code)
    with pytest.raises(Unsupported, match=f"zfp does not support {dtype} samples"):
        convert(source, tmp_path / "a.zarr", codec="zfp:tolerance=0.1")
    assert not (tmp_path / "a.zarr").exists()


@pytest.mark.parametrize(
    "setting", ["zfp", "zfp:", "zfp:9", "zfp:tolerance=0", "zfp:tolerance=nan", "zfp:tolerance=x", "zfp:rate=65",
                "zfp:precision=1.5", "zfp:precision=0", "zfp:quality=3", "zfp:tolerance=inf"],
)  # fmt: skip
def test_zfp_without_a_stated_loss_is_refused(setting):
    with pytest.raises(ConfigError, match="is not a valid zfp setting") as found:
        parse_zfp(setting, np.dtype(np.float32), 3)
    assert "zfp:tolerance=0.01" in (found.value.hint or "")


def test_what_zfp_cannot_hold_is_refused(survey, tmp_path):
    samples = smooth((240, 75))
    samples[7, 3] = np.inf
    source = write_segy(tmp_path / "b.sgy", samples, inlines=INLINES, crosslines=CROSSLINES)
    with pytest.raises(Unsupported, match="zfp supports only finite samples, but 1 samples are not finite"):
        convert(source, tmp_path / "b.zarr", codec="zfp:tolerance=0.1")
    with pytest.raises(Unsupported, match="zfp does not support 5 dimensions"):
        parse_zfp("zfp:rate=8", np.dtype(np.float32), 5)
    with pytest.raises(ConfigError, match="HDF5 does not support `zfp:rate=8`, only none, gzip"):
        convert(survey, tmp_path / "b.h5", codec="zfp:rate=8", **MAP)
    assert not h5py.is_hdf5(tmp_path / "b.h5") if (tmp_path / "b.h5").exists() else True


@pytest.mark.slow
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 2**16), chunks=st.tuples(st.integers(1, 5), st.integers(1, 6), st.integers(1, 33)),
    grows=st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3)), is_sharded=st.booleans(),
    tolerance=st.floats(1e-6, 10),
)  # fmt: skip
def test_prop_error_is_what_is_stated_and_within_the_tolerance(
    seed, chunks, grows, is_sharded, tolerance, tmp_path_factory
):
    folder = tmp_path_factory.mktemp("zfp")
    inlines, crosslines = grid_numbers(5, 6)
    source = write_segy(folder / "a.sgy", smooth((30, 33), seed), inlines=inlines, crosslines=crosslines)
    shards = ",".join(str(a * b) for a, b in zip(chunks, grows, strict=True)) if is_sharded else "none"
    report = convert(
        source,
        folder / "a.zarr",
        chunks=",".join(map(str, chunks)),
        shards=shards,
        codec=f"zfp:tolerance={tolerance!r}",
    )
    gap = np.abs(penstock.arrays.open(folder / "a.zarr")[...].astype(np.float64) - penstock.arrays.open(source)[...])
    assert report.lossy is not None
    assert report.lossy["max_error"] == gap.max()
    # zfp guarantees its tolerance for exact arithmetic. Near 100, float32 rounding adds up to 4e-6.
    assert gap.max() <= tolerance + 8e-6

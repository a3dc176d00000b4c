# SPDX-License-Identifier: Apache-2.0
"""Tests that SEG-Y survives a round trip through Zarr and HDF5 byte for byte, and that conversions resume after a kill.

Also tests that a second writer of a destination is rejected.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import xarray
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock.arrays
from penstock.arrays.convert.run import convert
from penstock.arrays.convert.verify import verify
from penstock.emulator import Emulator
from penstock.errors import Busy, ConfigError, Mismatch, Unsupported
from penstock.ranks import Rank
from tests.arrays.segy_files import grid_numbers, ibm_words, noise, write_segy

INLINES, CROSSLINES = grid_numbers(12, 20)
SHAPE = (12, 20, 75)


def volume(path: Path, **options: object) -> Path:
    samples = options.pop("samples", noise((240, 75)))
    return write_segy(path, samples, inlines=INLINES, crosslines=CROSSLINES, **options)  # type: ignore[arg-type]


def random_headers(path: Path) -> Path:
    return volume(path, random_bytes=7)


def unnormalised_ibm(path: Path) -> Path:
    rng = np.random.default_rng(3)
    words = ibm_words(noise((240, 75)))
    odd = rng.integers(0, 2**32, words.shape, dtype=np.uint64).astype(np.uint32)
    return volume(path, format=1, words=np.where(rng.random(words.shape) < 0.3, odd, words))


def irregular(path: Path) -> Path:
    """Write a file with missing and duplicate traces in random order, extended text headers and trailing bytes."""
    rng = np.random.default_rng(5)
    kept = np.sort(rng.permutation(240)[:220])
    order = rng.permutation(np.concatenate([kept, kept[:7]]))
    return write_segy(
        path, noise((240, 75))[order], inlines=INLINES[order], crosslines=CROSSLINES[order], random_bytes=9,
        trailing=b"tail" * 19, extended=2,
    )  # fmt: skip


NASTY = {
    "clean": volume,
    "random headers": random_headers,
    "un-normalised IBM": unnormalised_ibm,
    "irregular": irregular,
}
OPTIONS = {"un-normalised IBM": {"format": 1}, "irregular": {"allow_trailing": True}}


@pytest.mark.parametrize("kind", NASTY)
def test_segy_comes_back_byte_for_byte_through_zarr_and_hdf5(kind, tmp_path):
    source = NASTY[kind](tmp_path / "a.sgy")
    convert(source, tmp_path / "a.zarr", chunks="4,8,32", shards="8,16,96", **OPTIONS.get(kind, {}))
    convert(tmp_path / "a.zarr", tmp_path / "b.h5", codec="gzip")
    convert(tmp_path / "b.h5", tmp_path / "c.zarr", shards="none")
    for number, through in enumerate(("a.zarr", "b.h5", "c.zarr")):
        convert(tmp_path / through, tmp_path / f"{number}.sgy")
        assert (tmp_path / f"{number}.sgy").read_bytes() == source.read_bytes(), through


@pytest.mark.parametrize("kind", NASTY)
def test_certificate_of_a_conversion_says_identical(kind, tmp_path):
    source = NASTY[kind](tmp_path / "a.sgy")
    convert(source, tmp_path / "a.zarr", chunks="4,8,32", **OPTIONS.get(kind, {}))
    found = verify(source, tmp_path / "a.zarr")
    assert found.is_identical
    assert found.source_sha256 == found.round_trip_sha256
    assert json.loads(found.to_json())["target_bytes"] > 0


def test_certificate_of_a_changed_source_names_the_byte(tmp_path):
    source = volume(tmp_path / "a.sgy")
    convert(source, tmp_path / "a.zarr")
    content = bytearray(source.read_bytes())
    content[5000] ^= 1
    source.write_bytes(content)
    found = verify(source, tmp_path / "a.zarr")
    assert not found.is_identical
    assert found.first_difference == 5000


@pytest.mark.parametrize("code", [2, 3, 5, 6, 7, 8, 9, 10, 11, 12, 15, 16])
@pytest.mark.parametrize("order", [">", "<"])
def test_each_sample_format_comes_back(code, order, tmp_path):
    values = np.clip(noise((240, 75)).astype(np.float64) * 100, -120, 120)
    values = np.abs(values) if code in (10, 11, 12, 15, 16) else values
    values = values if code in (5, 6) else values.astype(np.int64)
    source = volume(tmp_path / "a.sgy", samples=values, format=code, order=order)
    convert(source, tmp_path / "a.zarr", codec="zstd")
    convert(tmp_path / "a.zarr", tmp_path / "b.sgy")
    assert (tmp_path / "b.sgy").read_bytes() == source.read_bytes()
    got = zarr.open_array(str(tmp_path / "a.zarr/amplitude"))[:]
    assert np.array_equal(got.reshape(240, 75), values.astype(got.dtype))


def test_zarr_opens_in_xarray_and_zarr_python_without_a_plugin(tmp_path):
    samples = noise((240, 75))
    convert(volume(tmp_path / "a.sgy", samples=samples), tmp_path / "a.zarr", chunks="4,8,32", shards="8,16,96")
    found = xarray.open_zarr(tmp_path / "a.zarr", chunks=None)
    assert found.amplitude.dims == ("inline", "crossline", "time")
    assert np.array_equal(found.amplitude.values, samples.reshape(SHAPE))
    assert found.amplitude.sel(inline=105, crossline=303, time=40.0).item() == samples.reshape(SHAPE)[5, 3, 10]
    assert found.time.attrs["units"] == "ms"
    # A coordinate scalar of -10 means division by 10.
    assert found.cdp_x.values[0, 0] == (5000 + 125 * 300) / 10
    assert zarr.open_group(str(tmp_path / "a.zarr"), mode="r")["amplitude"].shards == (8, 16, 96)


def test_conversion_to_and_from_s3_is_the_same(tmp_path, monkeypatch):
    source = irregular(tmp_path / "a.sgy")
    (tmp_path / "store").mkdir()
    with Emulator(tmp_path / "store") as emulator:
        for name, value in emulator.env.items():
            monkeypatch.setenv(name, value)
        bucket = emulator.url.rstrip("/")
        convert(source, f"{bucket}/a.zarr", chunks="4,8,32", shards="8,16,96", allow_trailing=True)
        convert(f"{bucket}/a.zarr", f"{bucket}/b.sgy")
        convert(f"{bucket}/b.sgy", tmp_path / "c.zarr", allow_trailing=True)
        found = verify(f"{bucket}/b.sgy", f"{bucket}/a.zarr")
    assert found.is_identical
    assert (tmp_path / "store/b.sgy").read_bytes() == source.read_bytes()


def test_killed_conversion_resumes_and_repeats_only_what_was_in_flight(tmp_path):
    inlines, crosslines = grid_numbers(64, 64)
    source = write_segy(tmp_path / "a.sgy", noise((4096, 250)), inlines=inlines, crosslines=crosslines)
    script = (
        "import sys, time\nfrom penstock.arrays.convert import zarr_destination as z\nfrom penstock.arrays.convert.run import convert\n"
        "put = z.ZarrDestination.write\n"
        "def slow(*args):\n    time.sleep(0.05)\n    return put(*args)\n"
        "z.ZarrDestination.write = slow\n"
        f"convert({str(source)!r}, {str(tmp_path / 'a.zarr')!r}, chunks='8,8,250', shards='none', threads=2)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", script])
    done = tmp_path / "a.zarr/.penstock/done"
    until = time.monotonic() + 60
    # Names with a dot are temporary files of a write. They are not markers.
    while time.monotonic() < until and len(list(done.glob("[!.]*"))) < 10:
        time.sleep(0.01)
    child.send_signal(signal.SIGKILL)
    child.wait()
    before = {entry.name: entry.stat().st_mtime_ns for entry in done.glob("[!.]*")}
    assert 10 <= len(before) < 64
    report = convert(source, tmp_path / "a.zarr", chunks="8,8,250", shards="none", threads=2)
    assert report.resumed == len(before)
    assert {name: (done / name).stat().st_mtime_ns for name in before} == before
    convert(tmp_path / "a.zarr", tmp_path / "b.sgy")
    assert (tmp_path / "b.sgy").read_bytes() == source.read_bytes()


def test_second_writer_is_refused_and_other_settings_too(tmp_path):
    source = volume(tmp_path / "a.sgy")
    script = (
        "import time\nfrom penstock.arrays.convert import zarr_destination as z\nfrom penstock.arrays.convert.run import convert\n"
        "z.ZarrDestination.write = lambda *args: time.sleep(60)\n"
        f"convert({str(source)!r}, {str(tmp_path / 'a.zarr')!r})\n"
    )
    child = subprocess.Popen([sys.executable, "-c", script])
    try:
        until = time.monotonic() + 60
        while time.monotonic() < until and not (tmp_path / "a.zarr/.penstock/plan.json").exists():
            time.sleep(0.02)
        with pytest.raises(Busy, match=f"process {child.pid} on"):
            convert(source, tmp_path / "a.zarr")
    finally:
        child.kill()
        child.wait()
    with pytest.raises(Mismatch, match="a different codec"):
        convert(source, tmp_path / "a.zarr", codec="zstd")
    # The lease of a dead process on this machine can be taken over immediately.
    assert convert(source, tmp_path / "a.zarr").is_complete
    assert convert(source, tmp_path / "a.zarr").resumed == 1


def test_two_ranks_share_the_objects(tmp_path):
    source = volume(tmp_path / "a.sgy")
    script = (
        "import sys\nfrom penstock.arrays.convert.run import convert\nfrom penstock.ranks import Rank\n"
        f"r = convert({str(source)!r}, {str(tmp_path / 'a.zarr')!r}, chunks='4,4,75', shards='none', rank=Rank(rank=1, world=2))\n"
        "sys.exit(0 if r.stored_bytes else 1)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", script])
    report = convert(source, tmp_path / "a.zarr", chunks="4,4,75", shards="none", rank=Rank(rank=0, world=2))
    assert child.wait() == 0
    assert report.is_complete
    assert verify(source, tmp_path / "a.zarr").is_identical


@pytest.mark.parametrize("name", ["a.zarr", "a.sgy", "a.h5"])
def test_destination_that_exists_is_refused_and_kept(name, tmp_path):
    source = volume(tmp_path / "in.sgy")
    place = tmp_path / name
    if name == "a.zarr":
        zarr.create_array(str(place), shape=(3,), dtype="i4")[:] = 7
    else:
        place.write_bytes(b"precious")
    before = sorted((each.name, each.stat().st_size) for each in tmp_path.rglob("*"))
    with pytest.raises(Mismatch, match="exists"):
        convert(source, place)
    assert sorted((each.name, each.stat().st_size) for each in tmp_path.rglob("*")) == before


def test_settings_that_cannot_be_are_refused(tmp_path):
    source = volume(tmp_path / "a.sgy")
    for settings_, words in [
        ({"codec": "lz5"}, "`lz5` is not one of"),
        ({"codec": "lz4:44"}, "`44` is not a valid level for lz4"),
        ({"chunks": "4,4"}, "must be 3 whole numbers"),
        ({"chunks": "4,4,0"}, "must be 3 whole numbers"),
        ({"chunks": "4,4,32", "shards": "6,8,96"}, "6 is not a multiple"),
        ({"access": ("depth",)}, "`depth` is not one of"),
        ({"map": "inline=250:i4"}, "not within a trace header"),
        ({"map": "inline"}, "is not of the form DIMENSION=BYTE:TYPE"),
        ({"map": "a=1:i4,b=5:i4"}, "traces would fill less than 2% of the resulting grid"),
    ]:
        with pytest.raises(ConfigError, match=words):
            convert(source, tmp_path / "b.zarr", **settings_)
    with pytest.raises(ConfigError, match="does not determine the format"):
        convert(source, tmp_path / "b.tiff")
    zarr.create_array(str(tmp_path / "plain.zarr"), shape=(4, 4, 4), dtype="f4")[:] = 1
    with pytest.raises(Unsupported, match="requires trace headers"):
        convert(tmp_path / "plain.zarr", tmp_path / "b.sgy")
    assert not (tmp_path / "b.zarr").exists()


def test_dry_run_explains_and_writes_nothing(tmp_path):
    report = convert(volume(tmp_path / "a.sgy"), tmp_path / "b.zarr", access=("time",), dry_run=True)
    assert any("a slice across time reads" in line for line in report.explanation)
    assert [each.name for each in tmp_path.iterdir()] == ["a.sgy"]


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 2**16), chunks=st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(1, 40)),
    grows=st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3)), is_sharded=st.booleans(),
)  # fmt: skip
def test_any_chunks_and_shards_come_back(seed, chunks, grows, is_sharded, tmp_path_factory):
    folder = tmp_path_factory.mktemp("any")
    rng = np.random.default_rng(seed)
    kept = rng.permutation(30)[: rng.integers(20, 31)]
    inlines, crosslines = grid_numbers(5, 6)
    source = write_segy(
        folder / "a.sgy", noise((len(kept), 33), seed), inlines=inlines[kept], crosslines=crosslines[kept]
    )
    clipped = tuple(min(chunk, side) for chunk, side in zip(chunks, (5, 6, 33), strict=True))
    shards = ",".join(str(a * b) for a, b in zip(clipped, grows, strict=True)) if is_sharded else "none"
    where = {"map": "inline=189:i4,crossline=193:i4"}
    convert(source, folder / "a.zarr", chunks=",".join(map(str, clipped)), shards=shards, **where)
    convert(folder / "a.zarr", folder / "b.sgy")
    assert (folder / "b.sgy").read_bytes() == source.read_bytes()
    there = penstock.arrays.open(folder / "a.zarr")
    assert np.array_equal(there[...], penstock.arrays.open(source, **where)[...], equal_nan=True)

# SPDX-License-Identifier: Apache-2.0
"""Tests that damaged, hostile and contradictory volumes each raise one clear error, and never return wrong values."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock.arrays
from penstock.arrays.convert.run import convert
from penstock.emulator import Emulator
from penstock.errors import Corrupt, Denied, PenstockError, Unsupported
from tests.arrays.segy_files import grid_numbers, ibm_words, noise, write_segy

INLINES, CROSSLINES = grid_numbers(10, 14)


@pytest.fixture
def segy(tmp_path):
    """Function `segy(**options)`, which writes a file of 140 traces with 60 samples each."""

    def make(**options):
        samples = options.pop("samples_", noise((140, 60)))
        return write_segy(tmp_path / "a.sgy", samples, inlines=INLINES, crosslines=CROSSLINES, **options)

    return make


@pytest.mark.parametrize("cut", [0, 1, 3199, 3200, 3599, 3600, 3601, 3700, 4079, 30_001])
def test_truncated_segy_says_where_it_ends(cut, segy):
    path = segy()
    os.truncate(path, cut)
    if cut == 3600:
        assert penstock.arrays.open(path).shape[0] == 0
        return
    with pytest.raises(Corrupt, match=r"ends inside (the file headers|trace [0-9]+)|is not SEG-Y"):
        penstock.arrays.open(path)


def test_file_cut_between_traces_is_found_by_the_count_of_revision_2(segy):
    path = segy(revision=2, binary={3313: ("u8", 140)})
    assert penstock.arrays.open(path).shape == (10, 14, 60)
    os.truncate(path, path.stat().st_size - 480)
    with pytest.raises(Corrupt, match="states 140 traces, but contains 139"):
        penstock.arrays.open(path)


def test_missing_text_header_is_named(segy):
    path = segy()
    path.write_bytes(path.read_bytes()[3200:])
    with pytest.raises(Corrupt, match="the text header is missing"):
        penstock.arrays.open(path)


def test_wrong_byte_order_is_found_out_and_a_forced_one_refused(segy):
    path = segy(order="<")
    assert penstock.arrays.open(path).attrs["byte_order"] == "little"
    with pytest.raises(PenstockError):
        penstock.arrays.open(path, byte_order="big")


def test_ieee_samples_under_an_ibm_header_are_refused(segy):
    samples = noise((140, 60))
    path = segy(format=1, words=samples.view(np.uint32), samples_=samples)
    with pytest.raises(Corrupt, match=r"states IBM floating point samples .* look like IEEE") as caught:
        penstock.arrays.open(path)
    assert "format=5" in str(caught.value.hint)
    assert np.array_equal(penstock.arrays.open(path, format=5)[...].reshape(140, 60), samples)


def test_ibm_samples_under_an_ieee_header_are_refused(segy):
    samples = noise((140, 60))
    path = segy(format=5, samples_=ibm_words(samples).view(np.float32))
    with pytest.raises(Corrupt, match=r"states IEEE samples .* look like IBM"):
        penstock.arrays.open(path)
    assert np.allclose(penstock.arrays.open(path, format=1)[...].reshape(140, 60), samples, rtol=1e-6)


def test_honest_files_are_not_suspected(segy):
    gradient = np.linspace(1500, 2047, 8400).reshape(140, 60)
    for code in (1, 5):
        for samples in (noise((140, 60)), gradient, np.full((140, 60), 1500.0), -gradient, np.zeros((140, 60))):
            penstock.arrays.open(segy(format=code, samples_=samples.astype(np.float32)))


def test_wrong_sample_count_in_the_binary_header_is_named(segy):
    path = segy(binary={3221: ("u2", 37)})
    with pytest.raises(Corrupt):
        penstock.arrays.open(path)
    # With this wrong count, the file size happens to be a whole number of traces. The trace headers show the error.
    whole = segy(samples_=noise((140, 60)), binary={3221: ("u2", 40)}, fields={115: ("u2", 60)})
    body = whole.stat().st_size - 3600
    assert body % (240 + 40 * 4) == 0
    with pytest.raises(
        Corrupt, match="the binary header states 40 samples per trace, but the first trace header states 60"
    ) as caught:
        penstock.arrays.open(whole)
    assert "samples=60" in str(caught.value.hint)
    assert penstock.arrays.open(whole, samples=60).shape == (10, 14, 60)


def test_trace_headers_that_all_keep_the_count_of_a_longer_trace_are_ignored(segy, tmp_path):
    """As in the published F3 volume: traces were cut to 75 samples, but their headers state 462."""
    path = segy(samples_=noise((140, 75)), fields={115: ("u2", 462)})
    opened = penstock.arrays.open(path)
    assert opened.shape == (10, 14, 75)
    assert "the trace headers state 462 samples, but the file has 75 per trace" in opened.attrs["warning"]
    convert(path, tmp_path / "a.zarr")
    convert(tmp_path / "a.zarr", tmp_path / "b.sgy")
    assert (tmp_path / "b.sgy").read_bytes() == path.read_bytes()


def test_extended_headers_of_revision_0_are_found(segy):
    """Revision 0 has none, but programs write them: they begin like a stanza, or only with them the size fits."""
    stanza = b"((OGP:P1))".ljust(3200)
    # 6,400 bytes are 16 traces of 40 samples, so only the text shows that they are headers.
    for extended, samples in ((stanza * 2, 40), (bytes(6400), 60)):
        path = segy(samples_=noise((140, samples)), revision=0, binary={3505: ("i2", 2)})
        data = path.read_bytes()
        path.write_bytes(data[:3600] + extended + data[3600:])
        assert penstock.arrays.open(path).shape == (10, 14, samples)


def test_traces_of_different_lengths_are_refused(segy):
    counts = np.full(140, 60)
    counts[99] = 58
    with pytest.raises(Unsupported, match="the header of trace 99 states 58 samples, but the file has 60 per trace"):
        penstock.arrays.open(segy(fields={115: ("u2", counts)}))


def test_traces_without_samples_and_unknown_formats_are_refused(segy):
    with pytest.raises(Corrupt, match="states 0 samples per trace"):
        penstock.arrays.open(segy(binary={3221: ("u2", 0)}))
    with pytest.raises(Unsupported, match=r"sample format 4 \(fixed point with gain"):
        penstock.arrays.open(segy(binary={3225: ("u2", 4)}))
    with pytest.raises(Corrupt, match="state sample format 77, which does not exist"):
        penstock.arrays.open(segy(binary={3225: ("u2", 77)}))


def test_sample_interval_of_zero_numbers_the_samples(segy):
    volume = penstock.arrays.open(segy(interval=0))
    assert volume.coords["time"].attrs["units"] == "1"
    assert "interval is 0" in volume.attrs["warning"]


def test_two_billion_traces_of_a_sparse_file_are_refused_or_counted_without_memory(tmp_path):
    path = write_segy(tmp_path / "a.sgy", noise((1, 1)))
    os.truncate(path, 3600 + 244 * 2**31)
    import resource

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    from penstock.arrays.location import Location
    from penstock.arrays.segy.reader import SegyFile

    file = SegyFile(Location(str(path)), samples=1)
    assert file.traces == 2**31
    assert file.raw_headers(np.array([2**31 - 1])).shape == (1, 240)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000


@pytest.mark.parametrize("shards", ["none", "8,8,64"])
def test_chunk_that_is_gone_or_damaged_is_an_error_and_never_the_fill_value(shards, segy, tmp_path):
    convert(segy(), tmp_path / "a.zarr", chunks="4,4,64", shards=shards, codec="zstd")
    objects = sorted((tmp_path / "a.zarr/amplitude/c").rglob("[0-9]*"))
    files = [each for each in objects if each.is_file()]
    volume = penstock.arrays.open(tmp_path / "a.zarr")
    content = files[0].read_bytes()
    files[0].unlink()
    with pytest.raises(PenstockError, match="does not exist"):
        volume[...]
    for damaged in (
        content[:-3],
        content[: len(content) // 2],
        b"",
        content[:20] + bytes(40) + content[60:],
        content + b"more",
    ):
        files[0].write_bytes(damaged)
        with pytest.raises(PenstockError):
            penstock.arrays.open(tmp_path / "a.zarr")[...]
    files[0].write_bytes(content)
    assert np.array_equal(penstock.arrays.open(tmp_path / "a.zarr")[...], penstock.arrays.open(tmp_path / "a.sgy")[...])


def test_chunk_that_was_never_written_is_the_fill_value(tmp_path):
    made = zarr.create_array(str(tmp_path / "a"), shape=(8, 8), chunks=(4, 4), dtype="f4", fill_value=7)
    made[:4, :4] = 1
    assert penstock.arrays.open(tmp_path / "a")[:, 0].tolist() == [1] * 4 + [7] * 4


def test_metadata_that_are_damaged_are_an_error(tmp_path):
    zarr.create_array(str(tmp_path / "a"), shape=(8, 8), chunks=(4, 4), dtype="f4")
    path = tmp_path / "a/zarr.json"
    good = path.read_text()
    for text in (
        good[:100],
        "[]",
        "null",
        good.replace('"chunk_shape"', '"chunky"'),
        good.replace("float32", "float33"),
    ):
        path.write_text(text)
        with pytest.raises(PenstockError):
            penstock.arrays.open(tmp_path / "a")


def test_store_without_write_permission_is_named(segy, tmp_path, monkeypatch):
    (tmp_path / "store").mkdir()
    with Emulator(tmp_path / "store") as emulator:
        for name, value in (emulator.env | {"AWS_SECRET_ACCESS_KEY": "wrong"}).items():
            monkeypatch.setenv(name, value)
        with pytest.raises(Denied, match=r"a\.zarr"):
            convert(segy(), f"{emulator.url.rstrip('/')}/a.zarr")


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_hostile_headers_end_in_an_error_or_a_volume(data, tmp_path_factory):
    path = Path(tmp_path_factory.mktemp("hostile")) / "a.sgy"
    write_segy(path, noise((20, 30)), inlines=INLINES[:20], crosslines=CROSSLINES[:20])
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.sampled_from([*range(3200, 3600), *range(3600, 3840), *range(3960, 4200)]))
        content[at] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))] if data.draw(st.booleans()) else content)
    try:
        volume = penstock.arrays.open(path)
        assert volume[...].nbytes <= 64 * path.stat().st_size
    except PenstockError:
        pass

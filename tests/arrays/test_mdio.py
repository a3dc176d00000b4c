# SPDX-License-Identifier: Apache-2.0
"""Tests that `--layout mdio` writes what multidimio 1.1.3 and 1.2.3 write, and that the package itself can read it.

Issue 15, point 2.
"""

from __future__ import annotations

import json
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
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
from penstock.arrays.mdio_fields import HEADER_FIELDS
from penstock.emulator import Emulator
from penstock.errors import ConfigError, Corrupt, Unsupported
from penstock.ranks import Rank
from tests.arrays.segy_files import grid_numbers, noise, write_segy

_ROOT = Path(__file__).resolve().parents[2]
_MAPS = {
    "stack": None,
    "line": "cdp=21:i4",
    "gathers": "inline=189:i4,crossline=193:i4,offset=37:i4",
}


def stack(path: Path, **options: object) -> Path:
    """A file of 6 × 7 traces, of which the last is missing."""
    inlines, crosslines = grid_numbers(6, 7)
    return write_segy(path, noise((41, 50)), inlines=inlines[:41], crosslines=crosslines[:41], **options)  # type: ignore[arg-type]


def line(path: Path) -> Path:
    cdp = np.arange(1, 31)
    return write_segy(
        path, noise((30, 50)), fields={21: ("i4", cdp), 181: ("i4", 1000 + 10 * cdp), 185: ("i4", 5000 + 10 * cdp)}
    )


def gathers(path: Path) -> Path:
    inlines, crosslines = (np.repeat(each, 5) for each in grid_numbers(3, 4))
    offsets = np.tile(np.arange(100, 600, 100), 12)
    return write_segy(path, noise((60, 50)), inlines=inlines, crosslines=crosslines, fields={37: ("i4", offsets)})


SURVEYS = {"stack": stack, "line": line, "gathers": gathers}


def test_layout_has_the_arrays_types_and_attributes_of_mdio(tmp_path):
    convert(stack(tmp_path / "a.sgy"), tmp_path / "a.mdio")
    group = zarr.open_group(str(tmp_path / "a.mdio"), mode="r", use_consolidated=False)
    arrays = {name: (array.shape, array.metadata.dimension_names) for name, array in group.arrays()}
    spatial = ("inline", "crossline")
    assert arrays == {
        "amplitude": ((6, 7, 50), (*spatial, "time")), "headers": ((6, 7), spatial), "raw_headers": ((6, 7), spatial),
        "trace_mask": ((6, 7), spatial), "cdp_x": ((6, 7), spatial), "cdp_y": ((6, 7), spatial),
        "inline": ((6,), ("inline",)), "crossline": ((7,), ("crossline",)), "time": ((50,), ("time",)),
        "segy_file_header": ((), ()),
    }  # fmt: skip
    assert [group[name].dtype for name in ("inline", "crossline", "time")] == [np.int32] * 3
    assert group["headers"].dtype == np.dtype([(name, "<" + kind) for name, (_, kind) in HEADER_FIELDS.items()])
    assert group["headers"].dtype.itemsize == 232
    assert group["raw_headers"].dtype == np.dtype("V240")
    assert group["trace_mask"].dtype == np.bool_
    assert group["trace_mask"][:].sum() == 41
    assert group["amplitude"].shards is None
    assert group.attrs["apiVersion"] == "1.2.3"
    assert group.attrs["name"] == "PostStack3DTime"
    assert group.attrs["attributes"] == {
        "surveyType": "3D", "gatherType": "stacked", "defaultVariableName": "amplitude",
    }  # fmt: skip
    assert group["cdp_x"].attrs["unitsV1"] == {"length": "m"}
    assert group["amplitude"].attrs["coordinates"] == "cdp_x cdp_y"
    stated = group["segy_file_header"].attrs
    assert stated["textHeader"].split("\n")[39] == "C40 test volume".ljust(80)
    assert stated["binaryHeader"]["sample_interval"] == 4000
    assert stated["binaryHeader"]["segy_revision_major"] == 1


def test_group_opens_in_xarray_without_a_warning_and_with_its_members_only(tmp_path):
    samples = noise((41, 50))
    convert(stack(tmp_path / "a.sgy"), tmp_path / "a.mdio")
    for is_consolidated in (True, False):
        found = xarray.open_zarr(tmp_path / "a.mdio", chunks=None, consolidated=is_consolidated)
        assert np.array_equal(found.amplitude.values.reshape(42, 50)[:41], samples)
        assert np.isnan(found.amplitude.values[5, 6]).all()
        assert found.headers.values["crossline"][2].tolist() == list(range(300, 307))
        assert "trace_index" not in found


@pytest.mark.parametrize("name", SURVEYS)
def test_mdio_group_round_trip_keeps_headers_and_bytes(name, tmp_path):
    source = SURVEYS[name](tmp_path / "a.sgy")
    options = {"map": _MAPS[name]} if _MAPS[name] else {}
    convert(source, tmp_path / "a.zarr", layout="mdio", codec="zstd", **options)
    there, here = penstock.arrays.open(source, **options), penstock.arrays.open(tmp_path / "a.zarr")
    assert here.dims == there.dims
    assert np.array_equal(here[...], there[...], equal_nan=True)
    assert np.array_equal(here.headers(np.s_[1:3]), there.headers(np.s_[1:3]))
    assert verify(source, tmp_path / "a.zarr").is_identical
    convert(tmp_path / "a.zarr", tmp_path / "b.sgy")
    assert (tmp_path / "b.sgy").read_bytes() == source.read_bytes()


@pytest.mark.parametrize("order", [">", "<"])
def test_nasty_file_comes_back_through_mdio(order, tmp_path):
    rng = np.random.default_rng(5)
    inlines, crosslines = grid_numbers(6, 7)
    which = rng.permutation(np.concatenate([np.arange(38), np.arange(5)]))
    source = write_segy(
        tmp_path / "a.sgy", noise((42, 50))[which % 42], inlines=inlines[which], crosslines=crosslines[which],
        random_bytes=9, trailing=b"tail" * 19, extended=2, order=order,
    )  # fmt: skip
    options = {"map": "inline=189:i4,crossline=193:i4", "allow_trailing": True}
    convert(source, tmp_path / "a.mdio", chunks="4,4,16", **options)
    assert verify(source, tmp_path / "a.mdio").is_identical
    stored = zarr.open_array(str(tmp_path / "a.mdio/headers"))[:]
    raw = penstock.arrays.open(source, **options).headers(np.s_[...])
    for name, ours in (("inline", "inline"), ("samples_per_trace", "samples"), ("group_coord_x", "receiver_x")):
        assert np.array_equal(stored[name].astype(np.int64) & 0xFFFF, raw[ours].astype(np.int64) & 0xFFFF), name


def test_layout_mdio_resumes_and_refuses_what_it_cannot_be(tmp_path):
    source = stack(tmp_path / "a.sgy")
    convert(source, tmp_path / "a.mdio")
    assert convert(source, tmp_path / "a.mdio").resumed == 1
    zarr.create_array(str(tmp_path / "plain.zarr"), shape=(4, 4, 4), dtype="f4")[:] = 1
    with pytest.raises(Unsupported, match="requires trace headers"):
        convert(tmp_path / "plain.zarr", tmp_path / "b.mdio")
    with pytest.raises(ConfigError, match="mdio requires the format zarr"):
        convert(source, tmp_path / "a.h5", layout="mdio")
    with pytest.raises(ConfigError, match="not one of plain, mdio"):
        convert(source, tmp_path / "b.zarr", layout="vds")


@pytest.mark.parametrize("form", [2, 3])
def test_foreign_group_with_structured_headers_opens_with_the_standards_names(form, tmp_path):
    """A group as MDIO writes it, with `headers` as a structure, in Zarr version 2 or 3."""
    kind = np.dtype(
        [("inline", "<i4"), ("energy_source_point_num", "<i4"), ("samples_per_trace", "<i2"), ("mine", "<f4")]
    )
    rows = np.zeros((5, 9), dtype=kind)
    rows["inline"], rows["mine"] = np.arange(5)[:, None], np.arange(45).reshape(5, 9) / 2
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("warnings.warn", lambda *args, **kwargs: None)  # of types without a specification
        group = zarr.open_group(str(tmp_path / "a.mdio"), mode="w", zarr_format=form)
        names = {} if form == 2 else {"dimension_names": ("inline", "crossline", "time")}
        group.create_array("amplitude", shape=(5, 9, 8), dtype="f4", chunks=(2, 4, 8), **names)[:] = 3
        headers = group.create_array("headers", shape=(5, 9), dtype=kind, chunks=(2, 4))
        headers[:] = rows
        group.attrs["attributes"] = {"defaultVariableName": "amplitude"}
    found = penstock.arrays.open(tmp_path / "a.mdio")
    got = found.headers(np.s_[1:4, ::2])
    assert got.dtype.names == ("inline", "source_point", "samples", "mine")
    assert np.array_equal(got["mine"], rows["mine"][1:4, ::2])
    assert np.array_equal(penstock.arrays.open(tmp_path / "a.mdio", array="headers")[...], rows)


@pytest.mark.parametrize(
    "kind",
    [
        {"name": "struct"}, {"name": "struct", "configuration": {"fields": []}}, {"configuration": {}},
        {"name": "struct", "configuration": {"fields": [{"name": "a"}]}}, [["a", "<i4", [2]]], [["a", ">i4"]],
        {"name": "structured", "configuration": {"fields": [["a", "int32"], ["a", "int32"]]}},
        {"name": "struct", "configuration": {"fields": [{"name": "a", "data_type": {"name": "struct"}}]}},
        {"name": "raw_bytes", "configuration": {"length_bytes": -3}}, {"name": "raw_bytes", "configuration": {}},
    ],
)  # fmt: skip
def test_structure_that_is_not_supported_is_refused_and_the_samples_still_open(kind, tmp_path):
    convert(stack(tmp_path / "a.sgy"), tmp_path / "a.mdio")
    path = tmp_path / "a.mdio/zarr.json"
    group = json.loads(path.read_text())
    del group["attributes"]["penstock_segy"]
    headers = group["consolidated_metadata"]["metadata"]["headers"]
    headers["data_type"] = kind
    path.write_text(json.dumps(group))
    (tmp_path / "a.mdio/headers/zarr.json").write_text(json.dumps(headers))
    found = penstock.arrays.open(tmp_path / "a.mdio")
    assert found.shape == (6, 7, 50)
    with pytest.raises(Unsupported, match="trace headers"):
        found.headers(...)
    with pytest.raises((Unsupported, Corrupt)):
        penstock.arrays.open(tmp_path / "a.mdio", array="headers")


def test_mdio_layout_in_s3_is_written_by_two_ranks_and_read_back(tmp_path, monkeypatch):
    source = stack(tmp_path / "a.sgy")
    (tmp_path / "store").mkdir()
    with Emulator(tmp_path / "store") as emulator:
        for name, value in emulator.env.items():
            monkeypatch.setenv(name, value)
        url = f"{emulator.url.rstrip('/')}/a.mdio"
        settings_ = {"chunks": "2,7,50", "map": "inline=189:i4,crossline=193:i4"}
        with ThreadPoolExecutor() as pool:
            ranks = [pool.submit(convert, source, url, rank=Rank(rank=n, world=2), **settings_) for n in range(2)]
        assert sorted(each.result().is_complete for each in ranks) == [False, True]
        assert verify(source, url).is_identical
        there = penstock.arrays.open(url)
        assert there.headers(np.s_[0, 0])["inline"] == 100
        stored = tmp_path / "store/a.mdio/penstock/.penstock/done"
        assert len(list(stored.iterdir())) == 3


@pytest.mark.slow
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**16), chunks=st.tuples(st.integers(1, 6), st.integers(1, 7), st.integers(1, 50)))
def test_prop_any_headers_come_back_through_mdio(seed, chunks, tmp_path_factory):
    folder = tmp_path_factory.mktemp("mdio")
    source = stack(folder / "a.sgy", random_bytes=seed)
    options = {"map": "inline=189:i4,crossline=193:i4"}
    convert(source, folder / "a.mdio", chunks=",".join(map(str, chunks)), **options)
    there = penstock.arrays.open(source, **options)
    assert np.array_equal(
        penstock.arrays.open(folder / "a.mdio").headers(...).view(np.uint8), there.headers(...).view(np.uint8)
    )
    assert verify(source, folder / "a.mdio").is_identical


@pytest.mark.needs_array_peers
def test_mdio_opens_ours_as_its_own_and_we_open_its_own(tmp_path):
    def mdio(verb: str) -> str:
        line = [
            _ROOT / ".tools/array-peers/bin/python",
            "-W",
            "ignore",
            Path(__file__).with_name("check_mdio.py"),
            verb,
            tmp_path,
        ]
        home = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
        found = subprocess.run(line, env=home, capture_output=True, text=True, timeout=110, check=False)
        assert found.returncode == 0, found.stdout[-2000:] + found.stderr[-2000:]
        return found.stdout

    for name, make in SURVEYS.items():
        make(tmp_path / f"{name}.sgy")
    mdio("import")
    for name in SURVEYS:
        options = {"map": _MAPS[name]} if _MAPS[name] else {}
        convert(tmp_path / f"{name}.sgy", tmp_path / f"ours-{name}.mdio", **options)
        ours, theirs = (penstock.arrays.open(tmp_path / f"{who}-{name}.mdio") for who in ("ours", "theirs"))
        assert ours.dims == theirs.dims
        assert np.array_equal(ours[...], theirs[...], equal_nan=True)
        mine, its = ours.headers(...), theirs.headers(...)
        shared = [field for field in its.dtype.names or () if field in (mine.dtype.names or ())]
        assert len(shared) > 80
        assert all(np.array_equal(mine[field].astype(np.int64), its[field].astype(np.int64)) for field in shared)
    assert "equal" in mdio("compare")
    assert json.loads((tmp_path / "theirs-stack.mdio/zarr.json").read_text())["attributes"]["name"] == "PostStack3DTime"

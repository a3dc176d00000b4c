# SPDX-License-Identifier: Apache-2.0
"""Tests damaged HDF5 files: the reader converts every exception of h5py to one of Penstock's errors."""

from __future__ import annotations

import io
import re
import subprocess
import sys

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock
from penstock.errors import Changed, Corrupt, PenstockError

ROWS = np.arange(60, dtype="<i2").reshape(12, 5)
LAYOUTS = {
    "contiguous": {"fillvalue": 3},
    "chunked": {"chunks": (2, 3), "maxshape": (None, None)},
    "filtered": {"chunks": (4, 5), "compression": "gzip", "shuffle": True, "fletcher32": True},
}


def made(libver: str, layout: str) -> bytes:
    stream = io.BytesIO()
    with h5py.File(stream, "w", libver=libver) as file:
        file.create_dataset("a/x", data=ROWS, **LAYOUTS[layout])
        file["y"] = np.arange(12.0)
        file["a"].attrs["name"] = "rows"
    return stream.getvalue()


FILES = [made(libver, layout) for libver in ("earliest", "latest") for layout in LAYOUTS]


@st.composite
def damaged(draw) -> bytes:
    """A real file with flipped bits, overwritten bytes, removed ranges and absurd numbers."""
    content = bytearray(draw(st.sampled_from(FILES)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(content) - 1)))
        match draw(st.sampled_from(["flip", "set", "cut", "number", "end"])):
            case "flip" if content:
                content[at] ^= 1 << draw(st.integers(0, 7))
            case "set" if content:
                content[at] = draw(st.integers(0, 255))
            case "cut":
                del content[at : at + draw(st.integers(1, 200))]
            case "number":
                number = draw(st.sampled_from([0, len(content) - 1, 2**63, 2**64 - 1]))
                content[at : at + 8] = max(number, 0).to_bytes(8, "little")
            case "end":
                del content[at:]
    return bytes(content)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=damaged())
def test_prop_damaged_hdf5_reads_or_raises_one_of_ours(tmp_path, content):
    path = tmp_path / "d.h5"
    path.write_bytes(content)
    try:
        ds = penstock.open(path, format=penstock.formats.hdf5("a/x", "y"))
        for _ in penstock.Loader(ds, batch_size=5, rank=0, world=1, threads=1):
            pass
    except PenstockError:
        pass


def test_hdf5_damaged_group_is_corrupt_with_h5py_message(tmp_path):
    content = bytearray(made("latest", "chunked"))
    at = content.index(b"OHDR", content.index(b"OHDR") + 1)  # the header of group `a`
    content[at + 8] ^= 0xFF
    (tmp_path / "d.h5").write_bytes(content)
    with pytest.raises(Corrupt, match=r"d\.h5 cannot be read as HDF5: \w+Error: .*checksum") as caught:
        penstock.open(tmp_path / "d.h5", format=penstock.formats.hdf5("a/x"))
    assert caught.value.hint.startswith("download the object again")


def test_hdf5_with_an_undefined_fill_value_reads(tmp_path):
    """Files of HDF5 1.4 have undefined fill values. Rows that were never written read as zeros, as in h5py."""
    stream = io.BytesIO()
    with h5py.File(stream, "w", libver="earliest") as file:
        file.create_dataset("a/x", (16, 5), "<i2", **LAYOUTS["filtered"])[:12] = ROWS
    content = bytearray(stream.getvalue())
    for message in re.finditer(rb"\x05\x00\x08\x00\x01\x00\x00\x00\x02..\x01", bytes(content), re.DOTALL):
        content[message.end() - 1] = 0
    (tmp_path / "d.h5").write_bytes(content)
    with h5py.File(tmp_path / "d.h5") as file:
        want = file["a/x"][:]
        with pytest.raises(RuntimeError, match="fill value"):
            file["a/x"].fillvalue  # noqa: B018
    assert (want[12:] == 0).all()
    (batch,) = penstock.Loader(penstock.open(tmp_path / "d.h5", format=penstock.formats.hdf5("a/x")), batch_size=16)
    assert (batch["a/x"] == want).all()


def test_hdf5_that_changed_since_it_was_listed_is_changed_and_not_corrupt(tmp_path):
    path = tmp_path / "d.h5"
    path.write_bytes(made("earliest", "chunked"))
    manifest = tmp_path / "manifest.json"
    manifest.write_bytes(penstock.open(path, format=penstock.formats.hdf5("a/x")).source.manifest())
    path.write_bytes(made("latest", "chunked") + bytes(9))
    with pytest.raises(Changed, match=r"d\.h5"):
        penstock.open(path, manifest, format=penstock.formats.hdf5("a/x"))
    script = "import sys, penstock; penstock.open(*sys.argv[1:], format=penstock.formats.hdf5('a/x'))"
    command = [sys.executable, "-c", script, path, manifest]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1, "HDF5 must not crash when the process ends"
    assert "penstock.errors.Changed" in done.stderr

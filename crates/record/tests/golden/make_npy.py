# SPDX-License-Identifier: Apache-2.0
"""Writes arrays with NumPy to one archive, for tests/it/npy.rs.

Each array has the files NAME.npy, NAME.raw (elements, little-endian and in C order) and NAME.txt (type and shape). The
archive also contains .npz files written by NumPy and by zipfile. Needs numpy.
"""

import io
import zipfile

import numpy as np
from archive import write_archive

members: dict[str, bytes] = {}


def array(name: str, values: np.ndarray, version: tuple[int, int] | None = None) -> bytes:
    raw = io.BytesIO()
    np.lib.format.write_array(raw, values, version=version)
    little = np.array(values.T if np.isfortran(values) else values, order="C")
    little = little.astype(little.dtype.newbyteorder("<"))
    members[f"{name}.npy"] = raw.getvalue()
    members[f"{name}.raw"] = little.tobytes()
    dtype = "uint8" if values.dtype == bool else values.dtype.newbyteorder("=").name
    members[f"{name}.txt"] = f"{dtype} {list(little.shape)} {np.isfortran(values)}".encode()
    return raw.getvalue()


numbers = np.random.default_rng(7)
for dtype in [
    "u1",
    "i1",
    "<u2",
    "<i2",
    "<i4",
    "<i8",
    "<f2",
    "<f4",
    "<f8",
    ">u2",
    ">i2",
    ">i4",
    ">i8",
    ">f2",
    ">f4",
    ">f8",
]:
    array(f"{dtype[-2:]}{'be' if dtype[0] == '>' else ''}", (numbers.random((3, 5)) * 100).astype(dtype))
array("bool", numbers.random((2, 3)) > 0.5)
array("scalar", np.float32(2.5)[()] * np.ones((), np.float32))
array("empty", np.zeros((0, 4), np.int16))
array("vector", np.arange(5, dtype=np.int64))
array("version2", np.arange(6, dtype=np.float32).reshape(2, 3), (2, 0))
array("version3", np.arange(6, dtype=np.float32).reshape(2, 3), (3, 0))
array("fortran", np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3)))


def refused(name: str, values: np.ndarray) -> None:
    raw = io.BytesIO()
    np.lib.format.write_array(raw, values, allow_pickle=True)
    members[f"refused_{name}.npy"] = raw.getvalue()


refused("structured", np.zeros(3, [("a", "<f4"), ("b", "<i8", (2, 2))]))
refused("complex", np.zeros(3, np.complex64))
refused("string", np.array(["a", "bc"]))
refused("bytes", np.array([b"a", b"bc"]))
refused("object", np.array([{"a": 1}], dtype=object))
refused("time", np.zeros(2, "datetime64[s]"))
refused("u8", np.zeros(2, np.uint64))

x, y = np.arange(600, dtype=np.float32).reshape(20, 30), np.array(7, dtype=np.int64)
for name, save in {"stored": np.savez, "deflated": np.savez_compressed}.items():
    raw = io.BytesIO()
    save(raw, x=x, y=y)
    members[f"{name}.npz"] = raw.getvalue()
raw = io.BytesIO()
with zipfile.ZipFile(raw, "w", zipfile.ZIP_DEFLATED) as archive:
    for key, values in {"x": x, "y": y}.items():
        with archive.open(f"{key}.npy", "w", force_zip64=True) as member:
            np.lib.format.write_array(member, values)
    archive.comment = b"a comment"
members["zip64.npz"] = raw.getvalue()
members["prefixed.npz"] = b"#!/bin/sh\n" + members["deflated.npz"]
raw = io.BytesIO()
with zipfile.ZipFile(raw, "w", zipfile.ZIP_BZIP2) as archive:
    archive.writestr("x.npy", b"0" * 100)
members["bzip2.npz"] = raw.getvalue()

write_archive("npy.tar.gz", members)

# SPDX-License-Identifier: Apache-2.0
"""Opens each SEG-Y file of a folder, compares its traces with segyio's, and converts it to Zarr and back.

    .venv/bin/python benches/peers/arrays/foreign.py FOLDER

Prints one line per file: the shape, the comparison, and whether the file that comes back has the same bytes. The files
are not in this repository; docs/reference/foreign.md states where they are from. segyio reads formats 7 and 15 as IBM
numbers, so their samples are not compared.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import segyio

import penstock.arrays
from penstock.arrays.convert.run import convert
from penstock.errors import PenstockError


def compare(path: Path) -> str:
    """`same` if the sums of all traces equal those of segyio, in any order."""
    volume = penstock.arrays.open(path)
    if volume.attrs["format"] in (7, 15):
        return "not comparable"
    try:
        with (
            warnings.catch_warnings(action="ignore"),
            segyio.open(path, strict=False, endian=volume.attrs["byte_order"]) as peer,
        ):
            theirs = peer.trace.raw[:]
    except (RuntimeError, OSError, IndexError) as error:
        return f"segyio refuses it ({error})"
    ours = np.asarray(volume[...]).reshape(-1, volume.shape[-1])
    if len(theirs) != len(ours):
        return f"{len(theirs)} traces in segyio, {len(ours)} here"
    sums = [np.sort(np.nan_to_num(each.astype("f8")).sum(1)) for each in (theirs, ours)]
    return "same" if np.allclose(*sums, rtol=1e-6) else "DIFFERENT"


def main() -> None:
    """Check the files of the folder."""
    counts: Counter[str] = Counter()
    for path in sorted(Path(sys.argv[1]).rglob("*.sgy")):
        with tempfile.TemporaryDirectory() as scratch:
            zarr, back = Path(scratch, "a.zarr"), Path(scratch, "b.sgy")
            try:
                shape = penstock.arrays.open(path).shape
                peer = compare(path)
                convert(path, zarr)
                convert(zarr, back)
                result = "identical" if back.read_bytes() == path.read_bytes() else "DIFFERENT BYTES"
                print(path.name, shape, peer, result, sep=" | ")
            except PenstockError as error:
                result = "refused"
                print(path.name, result, error, sep=" | ")
        counts[result] += 1
    print(dict(counts))


if __name__ == "__main__":
    main()

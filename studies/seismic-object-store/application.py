# SPDX-License-Identifier: Apache-2.0
"""Application of the first table: writes a model volume, or reads it. A line of `BACKENDS` selects the backend.

volumes.py starts it as a separate process: `application.py JSON` prints one JSON line. With the `options` of a written
volume, it reads; otherwise it writes. Seconds cover the write and the flush to the disk. CPU seconds cover all threads
of this process, without imports and without the S3 server.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from penstock import arrays
from penstock.arrays.create import create_volume
from penstock.arrays.location import Location

BACKENDS: dict[str, tuple[str, dict[str, Any]]] = {
    "segy": ("volume.sgy", {"to": "segy"}),
    "hdf5": ("volume.h5", {"to": "hdf5"}),
    "zarr": ("volume.zarr", {"to": "zarr", "codec": "none", "is_sharded": False}),
    "zarr-blosc": ("volume.zarr", {"to": "zarr", "codec": "lz4", "is_sharded": False}),
    "best": ("volume.zarr", {"to": "zarr", "codec": "lz4", "is_sharded": True}),
}
"""Backend -> name and the one line that changes. `-s3` after a name is the same at an s3:// URL."""


def main() -> None:
    given = json.loads(sys.argv[1])
    name, line = BACKENDS[given["backend"].removesuffix("-s3")]
    location = Location(f"{given['folder'].rstrip('/')}/{name}")
    print(json.dumps(_read(location, given["options"]) if "options" in given else _write(location, line, given)))


def _write(location: Location, line: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    values = np.load(given["values"])
    dims, coords, attrs = pickle.loads(Path(given["grid"]).read_bytes())
    begin, cpu = time.perf_counter(), time.process_time()
    options = create_volume(location, values, dims, coords, attrs=attrs, **line)
    # What is in the page cache is not written yet. For S3 this is the folder of the server.
    subprocess.run(["sync", "-f", given["stored_at"]], check=True)
    return {"seconds": time.perf_counter() - begin, "cpu_s": time.process_time() - cpu, "options": options}


def _read(location: Location, options: dict[str, Any]) -> dict[str, Any]:
    values = np.ascontiguousarray(arrays.open(location.url, **options)[...])
    return {"sha256": hashlib.sha256(values.tobytes()).hexdigest()}


if __name__ == "__main__":
    main()

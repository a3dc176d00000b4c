# SPDX-License-Identifier: Apache-2.0
"""Driver for a roofline: libdeflate alone, into one reused buffer per thread. Records are not parsed, checked or
copied.

Returns one empty row per object instead of samples, so that rates can be computed.
"""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

DISTRIBUTIONS = ()

_made: dict[str, Any] = {}


def begin(task: dict[str, Any]) -> None:
    """Loads the system's libdeflate, and reads all stored bytes into memory, because the roofline excludes reading."""
    library = ctypes.CDLL("libdeflate.so.0")
    library.libdeflate_alloc_decompressor.restype = ctypes.c_void_p
    library.libdeflate_gzip_decompress.argtypes = [
        ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p,
    ]  # fmt: skip
    stored = [Path(path).read_bytes() for path in task["files"]]
    most = max(int.from_bytes(one[-4:], "little") for one in stored)
    _made["inflate"] = library.libdeflate_gzip_decompress
    _made["stored"] = stored
    _made["threads"] = [
        (library.libdeflate_alloc_decompressor(), ctypes.create_string_buffer(most)) for _ in task["cores"]
    ]


def batches(task: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Runs one pass with one thread per core. Each thread has its own decompressor and buffer."""
    inflate, stored, threads = _made["inflate"], _made["stored"], _made["threads"]

    def work(at: int) -> None:
        decompressor, buffer = threads[at]
        for one in stored[at :: len(threads)]:
            if inflate(decompressor, one, len(one), buffer, int.from_bytes(one[-4:], "little"), None):
                raise ValueError("libdeflate could not decompress an object")

    with ThreadPoolExecutor(len(threads)) as pool:
        list(pool.map(work, range(len(threads))))
    yield dict.fromkeys(task["fields"], [b""] * len(stored))

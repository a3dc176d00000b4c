# SPDX-License-Identifier: Apache-2.0
"""Driver that imitates a ten-line expert script: reads a file, inflates it with libdeflate, parses its records, and
copies them into a batch.

Uses one thread per core, because libdeflate's binding releases the GIL. The script has no shuffle, no resume, no memory
limit and no object stores.
"""

from __future__ import annotations

import importlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

DISTRIBUTIONS = ("deflate", "crc32c", "numpy")

_made: dict[str, Any] = {}


def begin(task: dict[str, Any]) -> None:  # noqa: ARG001 - one of a driver's three functions
    """Loads the record parser. Nothing else needs preparation."""
    _made["tfexample"] = importlib.import_module("tfexample")


def batches(task: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Runs one epoch. Each object contains one record."""
    import deflate
    import numpy as np
    from crc32c import crc32c

    fields, size, tfexample = task["fields"], task["batch"], _made["tfexample"]

    def fill(place: tuple[str, dict[str, Any], int]) -> None:
        path, batch, row = place
        stored = Path(path).read_bytes()
        plain = deflate.gzip_decompress(stored, int.from_bytes(stored[-4:], "little"))
        (record,) = tfexample.frames(plain, crc32c)
        found = tfexample.features(record)
        for name, spec in fields.items():
            part = spec["of"][0] if spec["of"] else name
            batch[name][row] = np.frombuffer(found[part], spec["dtype"]).reshape(spec["shape"])

    with ThreadPoolExecutor(len(task["cores"])) as pool:
        ahead: list[tuple[dict[str, Any], list[Any]]] = []
        for at in range(0, len(task["files"]), size):
            paths = task["files"][at : at + size]
            batch = {name: np.empty((len(paths), *spec["shape"]), spec["dtype"]) for name, spec in fields.items()}
            ahead.append((batch, [pool.submit(fill, (path, batch, row)) for row, path in enumerate(paths)]))
            if len(ahead) > 2:
                yield _done(*ahead.pop(0))
        for one in ahead:
            yield _done(*one)


def _done(batch: dict[str, Any], waits: list[Any]) -> dict[str, Any]:
    for wait in waits:
        wait.result()
    return batch

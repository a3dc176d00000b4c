# SPDX-License-Identifier: Apache-2.0
"""Driver for Grain with ArrayRecord, its native format. The TFRecords are first converted: one payload per record."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

DISTRIBUTIONS = ("grain", "array-record", "numpy")

_made: dict[str, Any] = {}


def begin(task: dict[str, Any]) -> None:
    """Converts the dataset. Each record is the concatenated bytes of the fields, so that reading needs no parser."""
    import grain
    import numpy as np
    from array_record.python.array_record_module import ArrayRecordWriter

    tfexample, fields, paths = importlib.import_module("tfexample"), task["fields"], []
    for number, file in enumerate(task["files"]):
        paths.append(str(Path(task["work"]) / f"{number:05d}.array_record"))
        writer = ArrayRecordWriter(paths[-1], "group_size:1")
        for frame in tfexample.frames(Path(file).read_bytes()):
            found = tfexample.features(frame)
            writer.write(b"".join(found[spec["of"][0] if spec["of"] else name] for name, spec in fields.items()))
        writer.close()

    def parse(record: bytes) -> dict[str, Any]:
        made, at = {}, 0
        for name, spec in fields.items():
            count = int(np.prod(spec["shape"]))
            made[name] = np.frombuffer(record, spec["dtype"], count, at).reshape(spec["shape"])
            at += made[name].nbytes
        return made

    dataset = grain.MapDataset.source(grain.sources.ArrayRecordDataSource(paths)).map(parse)
    read = grain.ReadOptions(num_threads=len(task["cores"]), prefetch_buffer_size=512)
    _made["dataset"] = dataset.to_iter_dataset(read).batch(task["batch"])


def batches(task: dict[str, Any]) -> Iterator[dict[str, Any]]:  # noqa: ARG001 - one of a driver's three functions
    """One epoch."""
    return iter(_made["dataset"])

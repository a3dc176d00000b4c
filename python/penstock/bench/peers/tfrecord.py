# SPDX-License-Identifier: Apache-2.0
"""Driver for the `tfrecord` package in a torch DataLoader with one worker per core; each worker reads its share of
files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

DISTRIBUTIONS = ("tfrecord", "torch", "numpy")

_made: dict[str, Any] = {}


def begin(task: dict[str, Any]) -> None:
    """Builds the loader. The files are read without conversion."""
    import numpy as np
    import torch
    from tfrecord.reader import tfrecord_loader

    torch.set_num_threads(1)
    fields, files = task["fields"], task["files"]
    description = {
        spec["of"][0] if spec["of"] else name: "byte" if spec["stored_as"] == "bytes" else "float"
        for name, spec in fields.items()
    }
    compression = None if task["codec"] == "none" else task["codec"]

    class Records(torch.utils.data.IterableDataset):  # type: ignore[misc]
        def __iter__(self) -> Iterator[dict[str, Any]]:
            me = torch.utils.data.get_worker_info()
            for path in files if me is None else files[me.id :: me.num_workers]:
                for found in tfrecord_loader(path, None, description, compression_type=compression):
                    made = {}
                    for name, spec in fields.items():
                        value = found[spec["of"][0] if spec["of"] else name]
                        if spec["stored_as"] == "bytes":
                            value = np.frombuffer(value, spec["dtype"]).copy()
                        made[name] = torch.from_numpy(np.asarray(value, spec["dtype"]).reshape(spec["shape"]))
                    yield made

    _made["loader"] = torch.utils.data.DataLoader(
        Records(), batch_size=task["batch"], num_workers=len(task["cores"]), persistent_workers=True
    )


def batches(task: dict[str, Any]) -> Iterator[dict[str, Any]]:  # noqa: ARG001 - one of a driver's three functions
    """One epoch."""
    return iter(_made["loader"])

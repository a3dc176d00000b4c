# SPDX-License-Identifier: Apache-2.0
"""Penstock: moves training data from object storage to accelerators.

`open` a dataset, set its `fields` and `shuffle`, and read it with a `Loader`; or `stage` it first. Names are imported
at first use, so `import penstock` is fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock import errors, formats, fs, jax, stage, tf, torch, video
    from penstock._native import __version__
    from penstock.feed import (
        Dataset,
        Loader,
        Ragged,
        audio,
        boxes,
        buckets,
        budget,
        image,
        keypoints,
        list,  # noqa: A004
        mask,
        mix,
        open,  # noqa: A004
        ragged,
        raw,
        raw_list,
        tensor,
        text,
    )
    from penstock.writer import write

__all__ = [
    "Dataset",
    "Loader",
    "Ragged",
    "__version__",
    "audio",
    "boxes",
    "buckets",
    "budget",
    "errors",
    "formats",
    "fs",
    "image",
    "jax",
    "keypoints",
    "list",
    "mask",
    "mix",
    "open",
    "ragged",
    "raw",
    "raw_list",
    "stage",
    "tensor",
    "text",
    "tf",
    "torch",
    "video",
    "write",
]

_HOMES = {
    "Dataset": "penstock.feed",
    "Loader": "penstock.feed",
    "Ragged": "penstock.feed",
    "audio": "penstock.feed",
    "boxes": "penstock.feed",
    "buckets": "penstock.feed",
    "budget": "penstock.feed",
    "image": "penstock.feed",
    "keypoints": "penstock.feed",
    "list": "penstock.feed",
    "mask": "penstock.feed",
    "mix": "penstock.feed",
    "open": "penstock.feed",
    "ragged": "penstock.feed",
    "raw": "penstock.feed",
    "raw_list": "penstock.feed",
    "tensor": "penstock.feed",
    "text": "penstock.feed",
    "write": "penstock.writer",
    "__version__": "penstock._native",
}
_MODULES = {name: f"penstock.{name}" for name in ("errors", "formats", "fs", "jax", "stage", "tf", "torch", "video")}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        value: Any = import_module(_MODULES[name])
    elif name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
    else:
        raise AttributeError(f"module 'penstock' has no attribute '{name}'")
    globals()[name] = value
    return value


def __dir__() -> Sequence[str]:
    return __all__

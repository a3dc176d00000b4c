# SPDX-License-Identifier: Apache-2.0
"""Values of a Python function for all samples of a dataset."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from penstock.feed.sample_scan import batch_size

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.feed.dataset import Dataset

__all__ = ["values_of"]

_MAX_BATCH = 256
"""Maximum number of samples per batch of a scan."""


def values_of(dataset: Dataset, function: Callable[[dict[str, Any]], Any], workers: int) -> Any:
    """Return `function(sample)["value"]` of every sample as an array, in the order of the dataset."""
    import numpy as np

    from penstock.feed.loader import Loader

    batch = batch_size(dataset, _MAX_BATCH)
    # Only a loader with batch_by pads to buckets; a single sample has its own length.
    specs = {name: spec.unpadded for name, spec in dataset.specs}
    mapped = replace(dataset, specs=tuple(specs.items())).map(function, workers)
    loader = Loader(mapped, batch_size=batch, rank=0, world=1, prefetch_next_epoch=False)
    values = [np.asarray(each["value"]) for each in loader]
    return np.concatenate(values) if values else np.zeros(0, bool)

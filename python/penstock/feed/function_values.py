# SPDX-License-Identifier: Apache-2.0
"""Computes the values of a Python function for all samples of a dataset."""

from __future__ import annotations

import traceback
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from penstock.feed.batch_columns import rows
from penstock.feed.map_functions import FunctionFailed
from penstock.feed.map_step import map_failed
from penstock.feed.sample_value_cache import batch_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.feed.dataset import Dataset

__all__ = ["readable_values_of", "values_of"]

_MAX_BATCH = 256
"""Maximum number of samples per batch of a scan."""


def values_of(dataset: Dataset, function: Callable[[dict[str, Any]], Any], workers: int) -> Any:
    """Return `function(sample)["value"]` of every sample as an array, in the order of the dataset."""
    import numpy as np

    from penstock.feed.loader import Loader

    batch = batch_size(dataset, _MAX_BATCH)
    mapped = _unpadded(dataset).map(function, workers)
    loader = Loader(mapped, batch_size=batch, rank=0, world=1, prefetch_next_epoch=False)
    values = [np.asarray(each["value"]) for each in loader]
    return np.concatenate(values) if values else np.zeros(0, bool)


def readable_values_of(dataset: Dataset, function: Callable[[dict[str, Any]], Any]) -> Any:
    """Return `function(sample)["value"]` of every sample as a boolean array. The value is False for samples that cannot
    be read.

    Raises:
        MapFailed: The function raised an exception.
    """
    import numpy as np

    from penstock.feed.loader import Loader

    batch, source, made = batch_size(dataset, _MAX_BATCH), _unpadded(dataset), np.zeros(dataset.samples, bool)

    def read(part: Dataset, size: int) -> Iterator[list[dict[str, Any]]]:
        return map(rows, Loader(part, batch_size=size, rank=0, world=1, on_error="skip", prefetch_next_epoch=False))

    for number, found in enumerate(read(source, batch)):
        positions = range(number * batch, min((number + 1) * batch, len(made)))
        samples = dict(zip(positions, found, strict=False))
        if len(found) < len(positions):  # some samples were skipped: read each sample alone to find out which
            alone = {at: next(read(source.select([at]), 1), []) for at in positions}
            samples = {at: one[0] for at, one in alone.items() if one}
        for at, sample in samples.items():
            try:
                made[at] = function(sample)["value"]
            except Exception as error:
                failure = FunctionFailed(0, f"{type(error).__name__}: {error}", traceback.format_exc())
                raise map_failed("filter", failure, source, 0, [at]) from error
    return made


def _unpadded(dataset: Dataset) -> Dataset:
    """Return the dataset without padding, because only a loader with `batch_by` can pad to buckets."""
    return replace(dataset, specs=tuple((name, spec.unpadded) for name, spec in dataset.specs))

# SPDX-License-Identifier: Apache-2.0
"""Samples by index, for samplers and loaders that bring their own order: `penstock.torch.MapDataset`.

Owns one feed a process, built there at first use, so that it survives fork, spawn and forkserver. Where records lie is
looked up in the index: of an object that is stored uncompressed only their ranges are read. Compressed objects, and those
whose records nobody indexed, are read whole and kept for a while: a sampler that asks for neighbours together costs less
than one that does not.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch

from penstock import _native
from penstock.feed.columns import adapt, rows
from penstock.feed.loader import Loader
from penstock.feed.mapping import run_here

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.feed.shape import Shaped

__all__ = ["MapDataset"]


class MapDataset(torch.utils.data.Dataset[dict[str, Any]]):  # type: ignore[misc]  # torch has no types here
    """A map-style dataset of torch tensors: index i is the sample at position i.

    Unshuffled, positions are as stored, and a sampler shuffles; of a shuffled dataset they are those of `epoch` (0, or what
    `set_epoch` said before the workers were made). `__getitems__` reads a batch's objects at once.
    """

    def __init__(
        self, dataset: Shaped, *, memory_bytes: int | None = None, max_in_flight: int = 64, deadline_s: float = 600.0
    ) -> None:
        """As a loader's bounds, of each process: a quarter of `memory_bytes` (1 GiB) keeps inflated objects."""
        self.dataset = dataset
        self.epoch = 0
        # A DataLoader's workers are the parallelism: no thread but theirs.
        self._loader = Loader(
            dataset,
            batch_size=1,
            rank=0,
            world=1,
            memory_bytes=memory_bytes,
            max_in_flight=max_in_flight,
            deadline_s=deadline_s,
            threads=1,
        )

    def set_epoch(self, epoch: int) -> None:
        """Whose order the positions are; a DataLoader's workers learn it when they are made."""
        self.epoch = operator.index(epoch)

    def __len__(self) -> int:
        return self.dataset.samples

    def __getitem__(self, index: int) -> dict[str, Any]:
        """One sample. A negative index counts from the end."""
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Several samples, whose objects are read together: what a DataLoader's workers call.

        Raises:
            IndexError: An index beyond the samples.
        """
        samples = len(self)
        positions = [operator.index(index) for index in indices]
        for index in positions:
            if not -samples <= index < samples:
                raise IndexError(f"{index} is not within {samples:,} samples")
        positions = [index % samples for index in positions]
        places = self.dataset.course().places(self.epoch, positions)
        feed = self._loader._native_feed()  # noqa: SLF001 - one unit, two classes
        assert isinstance(feed, _native.Feed)  # an unindexed dataset has no places
        columns = feed.gather(places)
        if self.dataset.mappings:
            return [
                {name: _tensor(value) for name, value in sample.items()}
                for sample in run_here(self.dataset, columns, self.epoch, positions)
            ]
        return rows(adapt(columns, torch.from_dlpack), len(positions))


def _tensor(value: Any) -> Any:
    return torch.as_tensor(value) if hasattr(value, "__array__") else value

# SPDX-License-Identifier: Apache-2.0
"""Map-style dataset, `penstock.torch.MapDataset`: returns the sample at an index, for loaders with their own order.

Each process creates its own feed at first use, so that the dataset works with fork, spawn and forkserver. With the
record index, only the required byte ranges of an uncompressed object are read. Compressed or unindexed objects are read
whole, and the most recent objects are cached in memory. A sampler that requests neighbouring samples together is
therefore faster.
"""

from __future__ import annotations

import logging
import operator
from typing import TYPE_CHECKING, Any

import torch

from penstock import _native
from penstock.deprecation import renamed_parameters
from penstock.errors import ConfigError, Unsupported
from penstock.feed import states
from penstock.feed.batch_columns import adapt, rows
from penstock.feed.loader import Loader
from penstock.feed.loader_arguments import epoch_number
from penstock.feed.map_step import run_here

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.feed.dataset_base import DatasetBase

__all__ = ["MapDataset"]


_LOG = logging.getLogger("penstock.feed")

_MAX_WATCHED = 256
"""Maximum number of positions that are recorded to detect a second pass."""

_MAX_REPEATS = 16
"""Minimum number of repeated positions for a second pass to be assumed. A program can read a few samples twice without
a second pass.
"""


class _SharedEpoch:
    """The epoch, in memory that the workers of a DataLoader share under any start method. Persistent workers therefore
    see changes of the epoch.

    Until the epoch is set, the memory also contains the first positions that the processes have read. With these
    positions, a second pass is detected.
    """

    def __init__(self) -> None:
        # Layout: the epoch, a flag that ends the detection, the number of repeated positions, and the positions that
        # were read first.
        self._shared = torch.tensor([0, 0, 0] + [-1] * _MAX_WATCHED, dtype=torch.int64).share_memory_()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._shared.share_memory_()  # after unpickling, the tensor is no longer in shared memory

    @property
    def epoch(self) -> int:
        return int(self._shared[0])

    def set(self, epoch: int, *, is_chosen: bool = True) -> None:
        self._shared[0], self._shared[1] = epoch, is_chosen

    @property
    def is_watched(self) -> bool:
        return not self._shared[1]

    def sees_second_pass(self, positions: Sequence[int], samples: int) -> bool:
        """Record positions. Return True once, as soon as enough positions are repeated to assume a second pass."""
        watched = self._shared[3:]
        requested = torch.tensor(positions, dtype=torch.int64)
        again = torch.isin(requested, watched)
        free = (watched < 0).nonzero().flatten()
        new = requested[~again][: len(free)]
        watched[free[: len(new)]] = new
        self._shared[2] += again.sum()
        if self._shared[2] < min(_MAX_REPEATS, samples):
            return False
        self._shared[1] = 1
        return True


class MapDataset(torch.utils.data.Dataset[dict[str, Any]]):  # type: ignore[misc]  # torch has no types here
    """Map-style dataset of torch tensors. Index i is the sample at position i of an epoch, as a `Loader` yields it.

    Without `shuffle`, samples are in stored order, and a sampler can shuffle them. With `shuffle`, samples are in the
    epoch's order. In both cases, random crops and the randomness of `map` depend on the epoch, so call `set_epoch`
    before each pass. `__getitems__` reads the objects of a batch together. Raw fields are `bytes`.
    """

    @renamed_parameters({"deadline_s": "object_timeout_s"})
    def __init__(
        self,
        dataset: DatasetBase,
        *,
        memory_bytes: int | None = None,
        max_in_flight: int = 64,
        object_timeout_s: float = 600.0,
    ) -> None:
        """The limits are those of a loader, but apply to each process. A quarter of `memory_bytes` (default 1 GiB) is a
        cache of decompressed objects.
        """
        if dataset.decodes:
            raise Unsupported(
                "MapDataset: cannot be combined with decode(), which may drop or add samples, so that an index is not a "
                "sample",
                hint="use map(), if the function returns one sample for each record, or a penstock.torch.Loader",
            )
        if dataset.tokenizing is not None or dataset.packing is not None:
            raise ConfigError(
                "tokenize: not supported by a map-style dataset, which returns single samples",
                where="tokenize",
                hint="use penstock.torch.Loader, or tokenize in the DataLoader's collate_fn",
            )
        self.dataset = dataset
        self._shared = _SharedEpoch()
        # The workers of a DataLoader run in parallel, so the loader of each worker uses a single thread.
        self._loader = Loader(
            dataset,
            batch_size=1,
            rank=0,
            world=1,
            memory_bytes=memory_bytes,
            max_in_flight=max_in_flight,
            object_timeout_s=object_timeout_s,
            threads=1,
        )

    def __repr__(self) -> str:
        return f"penstock.torch.MapDataset({self.dataset!r}, epoch {self.epoch})"

    @property
    def epoch(self) -> int:
        """The epoch of the samples: 0 until `set_epoch` is called."""
        return self._shared.epoch

    def set_epoch(self, epoch: int) -> None:
        """Use the order, crops and `map` seeds of `epoch`. Call this method before each pass.

        All workers of a DataLoader see the change immediately, including persistent workers. A sampler's `set_epoch`
        does not affect the dataset.

        Raises:
            ConfigError: The epoch is negative.
        """
        self._shared.set(epoch_number(epoch))

    def state_dict(self) -> dict[str, Any]:
        """Return the epoch and the identity of the dataset, as JSON under 1 KB. `StatefulDataLoader` stores this state
        beside the position of its sampler.
        """
        return states.make(self.dataset, self.epoch, 0)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Use the epoch of a state, unless `set_epoch` was called before.

        Raises:
            ConfigError: The state belongs to another dataset, seed or window. The message contains the values of the
                state and of this dataset.
        """
        epoch, _ = states.check(state, self.dataset)
        if self._shared.is_watched:
            self._shared.set(epoch, is_chosen=False)

    def __len__(self) -> int:
        return self.dataset.samples

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return one sample. A negative index counts from the end."""
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Return several samples, whose objects are read together. A DataLoader's workers call this method.

        Raises:
            IndexError: An index is out of range.
        """
        samples = len(self)
        positions = [operator.index(index) for index in indices]
        for index in positions:
            if not -samples <= index < samples:
                raise IndexError(f"index {index} is out of range for {samples:,} samples")
        positions = [index % samples for index in positions]
        epoch = self.epoch
        places = self.dataset.course().places(epoch, positions)
        feed = self._loader._native_feed()  # noqa: SLF001 - one unit, two classes
        assert isinstance(feed, _native.Feed)  # an unindexed dataset has no positions
        columns = feed.gather(places, epoch, positions)
        is_watched = self._shared.is_watched
        if not self.dataset.map_steps:
            self._watch(positions, is_watched and self.dataset.has_random_fields)
            return rows(adapt(columns, torch.from_dlpack))
        made, drew = run_here(self.dataset, columns, epoch, positions, watches_draws=is_watched)
        self._watch(positions, is_watched and (drew or self.dataset.has_random_fields))
        return [{name: _tensor(value) for name, value in sample.items()} for sample in made]

    def _watch(self, positions: Sequence[int], is_random: bool) -> None:  # noqa: FBT001 - the one caller's own fact
        """Warn once if a dataset with random crops or random `map` functions is read again without a call to
        `set_epoch`.
        """
        if is_random and self._shared.sees_second_pass(positions, len(self)):
            _LOG.warning(
                "%r: a second pass reads epoch %d again, so every sample has the same random crops and the same "
                "randomness in map() as before. Call set_epoch(n) of the MapDataset before each pass; a sampler's "
                "set_epoch does not reach it.",
                self.dataset,
                self.epoch,
            )


def _tensor(value: Any) -> Any:
    return torch.as_tensor(value) if hasattr(value, "__array__") else value

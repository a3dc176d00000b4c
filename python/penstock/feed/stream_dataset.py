# SPDX-License-Identifier: Apache-2.0
"""Iterable-style dataset, `penstock.torch.StreamDataset`: yields samples in the order of a `Loader`, for programs that make
their own `DataLoader` or `StatefulDataLoader`.

Each worker of a DataLoader has its own loader, which acts as one rank of a job with (`world` x number of workers)
ranks. The copy of the dataset in each worker has its own state, which `StatefulDataLoader` stores.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch

from penstock.errors import ConfigError
from penstock.feed import states
from penstock.feed.batch_columns import rows
from penstock.feed.loader_arguments import epoch_number
from penstock.feed.torch import Loader

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.feed.dataset import Dataset

__all__ = ["StreamDataset"]

VERSION = 1
"""Version of the state format."""

_MAX_WORKERS = 1024

_GROUPS = 64
_PASSES = 64
"""Lengths of the shared tables: the numbers of worker groups and of passes that can overlap, for example with two
DataLoaders.
"""


class _WorkerLoader(Loader):
    """Loader of one worker of a DataLoader."""

    _runs_in_data_worker = True


class StreamDataset(torch.utils.data.IterableDataset):  # type: ignore[misc]  # torch's types are not read
    """Iterable-style dataset for a `DataLoader` or a `StatefulDataLoader`, with any number of workers.

    Each pass reads the next epoch, even if workers are started again for each pass. A `Loader` is faster, because it
    does not copy samples, and the state of a `Loader` is valid for any number of ranks.
    """

    def __init__(self, dataset: Dataset, *, batch_size: int, **arguments: Any) -> None:
        """Create the stream of one rank.

        Args:
            batch_size: Number of samples that are read at a time. If the DataLoader has the same `batch_size` and 0 or
                1 workers, its batches are the same as those of a `Loader`.
            arguments: Other arguments of `penstock.torch.Loader`, except `device` and `collate`. Rank and world come
                from the process group or the launcher, and do not depend on the worker. On more than one rank, `tail`
                is `drop` by default, so that all ranks have the same number of samples. Datasets that are unindexed,
                packed without `count_tokens`, or rebatched have different numbers of samples on each rank; use a
                `Loader` for these.
        Raises:
            ConfigError: An argument is invalid.
        """
        for name in ("device", "collate"):
            if arguments.get(name) is not None:
                raise ConfigError(f"{name}: not supported by a StreamDataset, which yields single samples", where=name)
        # Check the arguments and detect the rank in the parent process, because workers have no process group.
        checked = Loader(dataset, batch_size=batch_size, **arguments)
        self.dataset, self.batch_size = dataset, batch_size
        self.rank, self.world = checked.rank, checked.world
        is_equal = self.world > 1 and arguments.get("on_error") != "skip"
        self._arguments = {"tail": "drop" if is_equal else "ragged", **arguments}
        # Three tables in memory that workers share under any start method. `_next`: epoch of the next pass. `_begun`:
        # for each group and worker, the group's identity and its number of passes. `_passes`: identity and epoch of
        # each pass.
        self._next = torch.zeros(1, dtype=torch.int64).share_memory_()
        self._begun = torch.zeros((_GROUPS, _MAX_WORKERS, 2), dtype=torch.int64).share_memory_()
        self._passes = torch.zeros((_PASSES, 2), dtype=torch.int64).share_memory_()
        # In a worker: process id, identity of the group, and number of passes of the group.
        self._counted = (0, 0, 0)
        self._loader: tuple[tuple[int, int, int], Loader] | None = None
        self._resume: Mapping[str, Any] | None = None
        self._resumed_in = 0  # id of the process that loaded the state
        # State of the loader before the current batch, and the number of samples of this batch that were yielded.
        self._place: tuple[dict[str, Any], int] | None = None

    def __repr__(self) -> str:
        return f"penstock.torch.StreamDataset({self.dataset!r}, rank {self.rank} of {self.world})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_loader": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        for table in (self._next, self._begun, self._passes):
            table.share_memory_()  # after unpickling, the tensor is no longer in shared memory

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass read `epoch`, in all workers. If a state of the same epoch was loaded, the next pass still
        continues at the state.

        Raises:
            ConfigError: The epoch is negative.
        """
        self._next.fill_(epoch_number(epoch))
        if self._resume is not None and states.for_rank(self._resume["loader"], self.rank).get("epoch") != epoch:
            self._resume = self._place = None

    def _mine(self) -> dict[str, int]:
        """Return the values that must be equal in a state and in this dataset."""
        info = torch.utils.data.get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        return {
            "rank": self.rank,
            "world": self.world,
            "worker": worker,
            "workers": workers,
            "batch_size": self.batch_size,
        }

    def _own_loader(self) -> Loader:
        mine = self._mine()
        key = os.getpid(), mine["worker"], mine["workers"]
        if self._loader is not None and self._loader[0] == key:
            return self._loader[1]
        is_worker = torch.utils.data.get_worker_info() is not None
        if is_worker and any(step.workers for step in self.dataset.map_steps):
            raise ConfigError(
                "map: a worker of a DataLoader cannot start worker processes",
                where="map",
                hint="use workers=0, so that functions run in the DataLoader's workers",
            )
        if mine["workers"] > _MAX_WORKERS:
            raise ConfigError(f"num_workers: at most {_MAX_WORKERS:,} (got {mine['workers']:,})", where="num_workers")
        arguments = {"threads": 1, **self._arguments} if is_worker else self._arguments
        loader = _WorkerLoader(
            self.dataset,
            batch_size=self.batch_size,
            **{
                **arguments,
                "rank": self.rank * mine["workers"] + mine["worker"],
                "world": self.world * mine["workers"],
            },
        )
        self._loader = key, loader
        return loader

    def _begin_pass(self, resumed: int | None) -> int:
        """Return the epoch of the pass that begins now. If a state was loaded, this is the epoch of the state. If other
        workers have already begun this pass, it is their epoch. Otherwise, it is the next epoch.

        Workers start at different times, and a pass can begin before the last worker has begun an earlier pass.
        Therefore, a pass is identified by the seed of its group of workers, and its number within the group. The seed
        alone is not enough. It is the same in all passes of persistent workers, and two groups can have the same seed
        if a program sets torch's seed.
        """
        # No lock is needed: `_next` is read before `_passes` is read, and written after `_passes` is written. Workers
        # that begin a pass at the same time therefore find the same epoch.
        epoch = int(self._next) if resumed is None else resumed
        info = torch.utils.data.get_worker_info()
        if info is not None:
            group = hash((info.seed - info.id, info.num_workers))
            begun = self._begun[group % _GROUPS, info.id]
            if self._counted[:2] == (os.getpid(), group):
                # A persistent worker counts its own passes, because another group may have overwritten its entry in the
                # table.
                number = self._counted[2] + 1
            else:
                number = int(begun[1]) + 1 if int(begun[0]) == group else 1
            self._counted = (os.getpid(), group, number)
            begun[0], begun[1] = group, number
            identity = hash((group, number))
            known = self._passes[identity % _PASSES]
            if int(known[0]) == identity and resumed is None:
                return int(known[1])
            known[1], known[0] = epoch, identity
        self._next.fill_(epoch + 1)
        return epoch

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Start the next epoch or, once after `load_state_dict`, continue from the state."""
        loader = self._own_loader()
        skip = 0
        if self._resume is None:
            loader.set_epoch(self._begin_pass(None))
        else:
            if self._resumed_in != os.getpid():
                raise ConfigError(
                    "state: the process that reads (such as a worker of a DataLoader) is not the process that loaded "
                    "the state",
                    where="state",
                    hint="load the state with torchdata's StatefulDataLoader, or use num_workers=0",
                )
            loader.load_state_dict(self._resume["loader"])
            skip, self._resume = self._resume["row"], None
            self._begin_pass(loader.epoch)
        batches = iter(loader)
        self._place = loader.state_dict(), skip
        return self._samples(loader, batches, skip)

    def _samples(self, loader: Loader, batches: Iterator[dict[str, Any]], skip: int) -> Iterator[dict[str, Any]]:
        before = loader.state_dict()
        for batch in batches:
            after, samples = loader.state_dict(), rows(batch)
            for row in range(skip, len(samples)):
                self._place = (before, row + 1) if row + 1 < len(samples) else (after, 0)
                yield samples[row]
            before, skip = after, 0

    def state_dict(self) -> dict[str, Any]:
        """Return the position of this worker after the samples that were yielded, as JSON under 1 KB.

        The state is valid only for the same rank, world, number of workers and batch size.
        """
        if self._place is None:  # no pass has begun in this process
            loader = self._own_loader()
            loader.set_epoch(int(self._next))
            self._place = loader.state_dict(), 0
        state, row = self._place
        return {"version": VERSION, **self._mine(), "row": row, "loader": state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next pass in this process continue at `state`.

        Raises:
            ConfigError: The state belongs to another version, rank, world, number of workers or batch size.
        """
        for name, value in {"version": VERSION, **self._mine()}.items():
            if state.get(name) != value:
                raise ConfigError(
                    f"state: {name} is {state.get(name)!r}, but this dataset's {name} is {value!r}",
                    where="state",
                    hint="resume with the same ranks and workers, or iterate a penstock.torch.Loader, whose state is valid "
                    "for any number of ranks",
                )
        row, inner = state.get("row"), state.get("loader")
        if not isinstance(row, int) or row < 0 or not isinstance(inner, dict):
            raise ConfigError("state: `row` or `loader` is missing or invalid", where="state")
        self._resume, self._resumed_in, self._place = state, os.getpid(), (inner, row)

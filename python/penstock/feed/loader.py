# SPDX-License-Identifier: Apache-2.0
"""Loader: manages epochs, cursors, ranks and state over the native feed. Batches are NumPy arrays over the feed's
memory.

Decides when an epoch starts, at which position it resumes, and what a state contains. Threads and requests exist only
while an iterator exists, and belong to the process that iterates. A loader can therefore be created before a fork and
used after the fork.
"""

from __future__ import annotations

import json
import logging
import operator
import os
import sys
import weakref
from dataclasses import asdict, astuple
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from penstock import _native, env, ranks
from penstock.deprecation import renamed_parameters
from penstock.errors import ConfigError, MapFailed, Unsupported
from penstock.extras import require
from penstock.feed import batch_columns, fields, loader_arguments, rebatched_rank_state, states
from penstock.feed import report as reporting
from penstock.feed.counted_pack import CountedPackFeed, CountedPacking
from penstock.feed.epoch import BatchRun, Delivery, Epoch
from penstock.feed.equal_batches import FilledRun
from penstock.feed.first_epoch import FirstEpochFeed
from penstock.feed.number_arguments import as_int_or_none
from penstock.feed.pack import Packing
from penstock.feed.unindexed import NOTICE, Unindexed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from penstock.feed.batch_by import BatchBy, BatchPlan
    from penstock.feed.dataset_base import DatasetBase
    from penstock.feed.map_functions import Functions
    from penstock.feed.map_pool import WorkerPool
    from penstock.feed.map_threads import ThreadPool
    from penstock.feed.node_cache import NodeCache
    from penstock.feed.report import Report
    from penstock.ranks import Rank

__all__ = ["BaseLoader", "Loader"]

_LOG = logging.getLogger("penstock.feed")

Batch = TypeVar("Batch")
AnyFeed: TypeAlias = "_native.Feed | _native.UnindexedFeed | FirstEpochFeed | CountedPackFeed"


def _in_data_worker() -> bool:
    data = sys.modules.get("torch.utils.data")
    return data is not None and data.get_worker_info() is not None


class BaseLoader(Generic[Batch]):
    """Base class of the loaders of all frameworks. `_adapt` converts a dict of native tensors into the framework's
    batch.
    """

    _runs_in_data_worker = False
    """Whether this loader can be iterated in a worker of a torch DataLoader. Each worker then has its own loader and
    rank.
    """

    @renamed_parameters({"next_epoch": "prefetch_next_epoch", "deadline_s": "object_timeout_s"})
    def __init__(
        self,
        dataset: DatasetBase,
        *,
        batch_size: int | None = None,
        global_batch: int | None = None,
        batch_by: BatchBy | None = None,
        rank: int | None = None,
        world: int | None = None,
        tail: str | None = None,
        collate: Callable[[list[dict[str, Any]]], Any] | None = None,
        memory_bytes: int | None = None,
        max_in_flight: int = 64,
        read_ahead: int | None = None,
        threads: int | None = None,
        object_timeout_s: float = 600.0,
        on_error: str = "raise",
        prefetch_next_epoch: bool = True,
    ) -> None:
        """Create the loader of one rank.

        Args:
            dataset: From `penstock.open(url).fields(...)`, shuffled or not.
            batch_size: Number of samples in this rank's batch; the global batch is `world` times as large.
            global_batch: Number of samples in a batch over all ranks; the ranks' slices differ by at most one sample.
            batch_by: Alternatively, rule for batches of samples of similar length: `penstock.buckets(...)` or
                `penstock.budget(...)`. With sizes over all ranks, the global batches are the same on any number of
                ranks.
            rank, world: Rank of this process and number of ranks; by default taken from the process group or the
                launcher's variables.
            tail: Handling of the epoch's last batch. With `ragged` (the default), each sample occurs once; the last
                batch is smaller, and some ranks' slices can be empty. `drop` leaves out a batch that is not full. With
                `pad`, the last batch is filled with the epoch's first samples. An added field `weight` (float32) is 0
                for these repeated samples, and 1 for all other samples.
            collate: Function that takes a list of samples (dicts of NumPy views, one per row of this rank's batch) and
                returns the batch. The function runs in this process, after `map` functions. To pad fields,
                `ragged(...).padded()` is faster.
            memory_bytes: Memory limit for all data in flight; by default 1 GiB, or twice the required minimum if that
                is more. Delivered batches belong to the consumer and do not count.
            max_in_flight: Maximum number of concurrent requests. Reads of local files are limited to 32 MiB in total
                instead.
            read_ahead: Number of batches to prepare in addition to the next one; by default enough batches for
                `max_in_flight` requests.
            threads: Number of decoding threads; by default one per core.
            object_timeout_s: Time limit in seconds for reading one object, including retries and back-off.
            on_error: Action for a sample whose bytes are damaged or do not match the fields. `raise` raises the error
                when the sample's batch is requested. `skip` omits the sample's row; with `tail="pad"`, the row contains
                zeros and has weight 0. `skip` cannot be combined with `tail="drop"`. `substitute` delivers the next
                record, from the same or the next object, instead. The report counts these samples.
            prefetch_next_epoch: Whether to fetch the first objects of the next epoch near the end of an epoch, up to
                1/16 of the bytes that this epoch has read. Set this to False for a loader that makes only one pass.
        Raises:
            ConfigError: An argument is invalid.
            BudgetExceeded: `memory_bytes` is below the required minimum. This error is raised when the loader is first
                iterated.
        """
        loader_arguments.check_policies(dataset, tail, on_error)
        batch_size, global_batch = (
            as_int_or_none("batch_size", batch_size),
            as_int_or_none("global_batch", global_batch),
        )
        rank, world = as_int_or_none("rank", rank), as_int_or_none("world", world)
        memory_bytes, read_ahead = (
            as_int_or_none("memory_bytes", memory_bytes),
            as_int_or_none("read_ahead", read_ahead),
        )
        threads = as_int_or_none("threads", threads)
        # Range (first, end) of the ranks that share this node's disk; None if unknown.
        self._node: tuple[int, int] | None = None
        if (rank is None) != (world is None):
            raise ConfigError("rank: give both rank and world, or neither", where="rank")
        if rank is None or world is None:
            rank, world = self._place()
            try:
                found: Rank | None = ranks.detect(env.read())
            except ConfigError:
                if dataset.is_local:
                    raise
                found = None
            if found is not None and dataset.is_local:
                # Only the ranks of this node share the node's part. They are contiguous, because launchers number ranks
                # node by node.
                first, end = world * found.node // found.nodes, world * (found.node + 1) // found.nodes
                rank, world = rank - first, end - first
            if found is not None and (found.rank, found.world) == (rank, world):
                self._node = world * found.node // found.nodes, world * (found.node + 1) // found.nodes
        if world < 1 or not 0 <= rank < world:
            raise ConfigError(f"rank: must be from 0 to world - 1 (got {rank}, with a world of {world})", where="rank")
        self.dataset = dataset
        self.rank, self.world = rank, world
        self._batch_by = loader_arguments.check_batch_by(batch_by, batch_size, global_batch)
        self._collate = loader_arguments.check_collate(collate)
        self.global_batch = (
            loader_arguments.global_size(batch_size, global_batch, world)
            if batch_by is None
            else batch_by.max_rows(world)
        )
        # A batch with fewer samples than this over all ranks is left out.
        self._min_rows = 1
        self.tail = tail = self._default_tail(on_error) if tail is None else tail
        loader_arguments.check_combinations(dataset, batch_by, on_error)
        # Size and tail of the batches of the native feed. For a packed dataset, these are batches of documents.
        self.source_batch, self.source_tail = self.global_batch, tail
        if dataset.rebatches:
            rebatched_rank_state.check_loader(self)
            self.source_tail = "ragged"
        if dataset.decodes and on_error == "skip":
            self.source_tail = "pad"  # damaged records keep their rows, so the position of each row is known
        if dataset.packing is not None:
            self.source_batch, self.source_tail = dataset.packing.documents * world, "ragged"
        self._unindexed = (
            None
            if dataset.indexed
            else Unindexed(dataset, global_batch=self.source_batch, rank=rank, world=world, tail=self.source_tail)  # type: ignore[arg-type]
        )
        self._packing = self._new_packing(on_error)
        loader_arguments.check_limits(
            object_timeout_s, read_ahead, memory_bytes=memory_bytes, max_in_flight=max_in_flight, threads=threads
        )
        # Settings in the form that the core reads.
        self._settings: dict[str, Any] = {
            "memory_bytes": memory_bytes,
            "max_in_flight": max_in_flight,
            "read_ahead": read_ahead,
            "threads": threads,
            "object_timeout_s": object_timeout_s,
            "on_error": on_error,
            "prefetch_next_epoch": bool(prefetch_next_epoch),
        }
        self._epoch = 0
        self._cursor = 0
        # Cursor at which the next iterator starts: 0 or, once after `load_state_dict`, the loaded cursor.
        self._resume = 0
        # Whether the caller has set the next epoch, and whether the loader has warned about a repeated epoch.
        self._is_chosen = self._has_warned = False
        self._warns_of_no_batch = self.tail == "drop"
        self._feed: tuple[int, AnyFeed] | None = None
        # The complete dataset, while the loader finishes an epoch of the dataset's old part.
        self._whole_dataset: DatasetBase | None = None
        self._batch_plan: BatchPlan | None = None
        self._worker_pool: WorkerPool | ThreadPool | None = None
        self._live: weakref.ref[Epoch[Batch]] | None = None
        self._measured = reporting.EpochMeasurements()

    def _new_packing(self, on_error: str) -> Packing | CountedPacking | None:
        """Return the object that packs documents for this loader; None if the dataset is not packed."""
        step = self.dataset.packing
        if step is None:
            return None
        if self.tail == "pad":
            raise ConfigError(
                'tail: "pad" is not supported for a packed dataset', where="tail", hint='use "drop" or "ragged"'
            )
        sizes: dict[str, Any] = {"global_batch": self.global_batch, "rank": self.rank, "world": self.world}
        if step.count_tokens:
            return CountedPacking(
                self.dataset,
                step,
                **sizes,
                tail=self.tail,
                min_rows=self._min_rows,
                on_error=on_error,
                new_loader=Loader,
            )
        return Packing(self.dataset, step, self._unindexed, **sizes, tail=self.tail)

    def _place(self) -> tuple[int, int]:
        """Return rank and world for a loader that was created without `rank` and `world`."""
        return ranks.global_rank(env.read())

    def _default_tail(self, on_error: str) -> str:  # noqa: ARG002 - for adapters that choose by it
        """Return the default handling of the epoch's last batch."""
        return "ragged"

    def _group_tail(self, on_error: str) -> str:
        """Return the tail with which no rank of a process group gets an empty batch. Sets `_min_rows` if needed."""
        if self.world == 1:
            return "ragged"
        if (self.dataset.is_shuffled or self._batch_by is not None) and on_error != "skip":
            return "drop"
        if self.has_fixed_positions and self._batch_by is None:
            self._min_rows = self.world
        return "ragged"

    @property
    def has_fixed_positions(self) -> bool:
        """True if all ranks have the same number of batches. If False, the number of a rank's batches is known only at
        the end of a pass.
        """
        packing = self.dataset.packing
        return self.dataset.indexed and (packing is None or packing.count_tokens) and not self.dataset.rebatches

    def _prepare(self) -> None:
        """Import modules in advance, so that the first batch does not wait for them."""

    def _adapt(self, tensors: dict[str, Any]) -> tuple[Batch, float]:
        """Return the batch in the framework's types, and the duration of the copies to a device in seconds."""
        raise NotImplementedError

    def _delivery(self) -> Delivery[Batch]:
        """Return the object that delivers one pass's batches to the consumer."""
        return Delivery(self._adapt if self._collate is None else self._collated)

    def _collated(self, tensors: dict[str, Any]) -> tuple[Batch, float]:
        """Return the batch that the caller's `collate` makes from the samples."""
        from penstock.feed.numpy import array

        samples = batch_columns.rows(batch_columns.adapt(tensors, array))
        try:
            made = self._collate(samples)
        except Exception as error:
            measured = self._measured
            raise MapFailed(
                f"collate: batch {measured.batches:,} of this pass over epoch {measured.epoch} ({len(samples):,} samples "
                f"on rank {self.rank}): {type(error).__name__}: {error}",
                where="collate",
                epoch=measured.epoch,
            ) from error
        return self._moved_batch(made)

    def _moved_batch(self, made: Any) -> tuple[Batch, float]:
        """Copy a batch from `collate` to the loader's device. Return the batch, and the duration of the copies in
        seconds.
        """
        return made, 0.0

    def _device_name(self) -> str | None:
        """Name of the device to which batches are copied; None if batches stay in the feed's memory."""
        return None

    def __repr__(self) -> str:
        size = (
            f"global batch {self.global_batch:,}" if self._batch_by is None else type(self._batch_by).__name__.lower()
        )
        sizes = f"{size}, rank {self.rank} of {self.world}"
        return f"{type(self).__name__}({self.dataset!r}, {sizes}, tail {self.tail}, epoch {self._epoch})"

    def __getitem__(self, index: object) -> Any:
        """Not supported, because a loader yields whole batches in its own order."""
        raise Unsupported(
            f"a Loader does not support indexing (got {index!r}), because its own threads make the batches",
            hint="for a torch DataLoader, use penstock.torch.MapDataset(dataset)",
        )

    def __len__(self) -> int:
        """Number of batches in a whole epoch, which is the same on every rank. An iterator that resumes from a state
        yields fewer batches.

        With `batch_by` or `count_tokens`, this is the number for the current epoch. If one planning window contains the
        whole dataset, the number is the same in all epochs. Otherwise, the number can differ slightly between epochs,
        and each epoch is planned once to count its batches.

        Raises:
            TypeError: The number is unknown, because the dataset is unindexed, packed without `count_tokens`, or
                rebatched by `decode`.
        """
        if isinstance(self._packing, CountedPacking):
            return self._packing.count(self._epoch)
        if self._packing is not None:
            raise TypeError(
                f"a loader of {self.dataset!r} has no length, because the dataset is packed without count_tokens=True"
            )
        if self._unindexed is not None:
            raise TypeError(
                f"a loader of {self.dataset!r} has no length, because the dataset was opened with indexed=False"
            )
        if self.dataset.rebatches:
            raise TypeError(
                f"a loader of {self.dataset!r} has no length, because functions can drop or add samples (rebatch=True)"
            )
        if (plan := self._plan()) is not None:
            return plan.native.count(self._epoch, self.tail)
        full, left = divmod(self.dataset.samples, self.global_batch)
        return full + (self.tail != "drop" and left >= self._min_rows)

    @property
    def epoch(self) -> int:
        """The current epoch or, between two passes, the next epoch."""
        return self._epoch

    def _plan(self) -> BatchPlan | None:
        """Return the plan of the batches; None for batches of a constant size. The first call can read lengths."""
        if self._batch_plan is None and self._batch_by is not None:
            self._batch_plan = self._batch_by.plan(self.dataset, self.world, self._settings["on_error"])
        return self._batch_plan

    def _native_feed(self) -> AnyFeed:
        if self._feed is None or self._feed[0] != os.getpid() or isinstance(self._feed[1], FirstEpochFeed):
            specs = self.dataset.batch_fields().values()
            if self._batch_by is None and any(getattr(spec, "to", None) == "bucket" for spec in specs):
                raise ConfigError(
                    "fields: a field can be padded to its bucket only in a loader with batch_by",
                    where="fields",
                    hint="give batch_by=penstock.buckets(...), or pad to the longest sample of a batch: padded()",
                )
            if self._unindexed is not None:
                fields_json = fields.to_json(self.dataset.batch_fields().items())
                settings = json.dumps(self._settings, default=operator.index)
                self._feed = (os.getpid(), self._unindexed.feed(fields_json, settings, dict(env.read())))
                return self._feed[1]
            if isinstance(self._packing, CountedPacking):
                packed = CountedPackFeed(self._packing, self._own_feed)
                self._feed = (os.getpid(), packed)
                return packed
            if self._batch_by is not None:  # a plan needs all counts
                return self._counted_feed(None)
            # The first epoch can start before all records are counted.
            started = self.dataset.first_epoch_feed(self.source_batch, self._counted_feed)
            if started is None:
                return self._counted_feed(None)
            self._feed = (os.getpid(), started)
        return self._feed[1]

    def _counted_feed(self, sampler: _native.Sampler | None) -> _native.Feed:
        """Create the native feed of the whole dataset or, with `sampler`, of a part of an epoch."""
        # The end of a part of an epoch is not the time to prefetch the next epoch.
        settings = self._settings if sampler is None else {**self._settings, "prefetch_next_epoch": False}
        made = self._new_feed(
            self.dataset.course() if sampler is None else sampler,
            settings,
            global_batch=self.source_batch,
            rank=self.rank,
            world=self.world,
            tail=self.source_tail,
            node=self._node,
        )
        if sampler is None:
            self._feed = (os.getpid(), made)
        return made

    def _own_feed(self, sampler: _native.Sampler) -> _native.Feed:
        """Create a native feed of samples all of which this rank reads: the documents of its windows."""
        settings, batch = {**self._settings, "prefetch_next_epoch": False}, self.source_batch // self.world
        return self._new_feed(sampler, settings, global_batch=batch, rank=0, world=1, tail="ragged", node=None)

    def _new_feed(self, sampler: _native.Sampler, settings: Mapping[str, Any], **place: Any) -> _native.Feed:
        numbers = self.dataset.source_numbers
        # Leave out the field `source`: it is not read from records, but added by the core.
        read = [item for item in self.dataset.batch_fields().items() if numbers is None or item[0] != fields.SOURCE]
        plan = self._plan()
        try:
            return _native.Feed(
                sampler,
                fields.to_json(read),
                json.dumps({**settings, "source_numbers": numbers}, default=operator.index),
                dict(env.read()),
                caches=[None if cache is None else astuple(cache) for cache in self.caches],
                batch_by=None if plan is None else plan.native,
                **place,
            )
        except ConfigError as error:
            if error.where == "batch_by" and self._batch_by is not None:  # a batch has fewer samples than ranks
                error.add_note(self._batch_by.ranks_advice)
            raise

    @cached_property
    def caches(self) -> list[NodeCache | None]:
        """Return the node cache of each dataset; None for a dataset without a cache."""
        return self.dataset.caches()

    @cached_property
    def functions(self) -> Functions:
        """The functions of the dataset (`map` and `decode`)."""
        from penstock.feed.map_step import functions_of

        return functions_of(self.dataset, on_error=self._settings["on_error"])

    def worker_pool(self) -> WorkerPool | ThreadPool | None:
        """Return the processes or threads that run the dataset's functions; None if the consumer's thread runs the
        functions. They are started at first use, and are kept for later passes.
        """
        if not self.dataset.map_steps:
            return None
        if self._worker_pool is None or not self._worker_pool.is_alive:
            from penstock.feed.map_step import new_pool

            self._worker_pool = pool = new_pool(self.dataset, self.functions)
            if pool is not None:
                weakref.finalize(self, pool.end)
        return self._worker_pool

    def _run(self, feed: AnyFeed, epoch: int, cursor: int) -> BatchRun:
        """Start a pass of the feed. If the dataset has functions, they are applied to the batches."""
        if self._packing is not None:
            return self._packing.run(lambda place: self._read_run(feed, epoch, place), cursor, epoch)
        run = self._read_run(feed, epoch, cursor)
        return run if self._min_rows == 1 else FilledRun(run, cursor, self._min_rows)

    def _read_run(self, feed: AnyFeed, epoch: int, cursor: int) -> BatchRun:
        run: BatchRun
        if self.dataset.rebatches:
            from penstock.feed.rebatch import RebatchRun

            place = rebatched_rank_state.Place.of(cursor)
            run = RebatchRun(self, feed.start(epoch, place.start), epoch, place)
        elif self.dataset.map_steps:
            from penstock.feed.map_step import MapRun

            run = MapRun(self, feed.start(epoch, cursor), epoch, cursor)
        else:
            run = feed.start(epoch, cursor)
        if self.dataset.tokenizing is not None:
            from penstock.feed.tokenize import TokenizeRun

            run = TokenizeRun(self, run, self.dataset.tokenizing, epoch, cursor)
        return run

    def _supersede(self, why: str) -> None:
        live = self._live() if self._live is not None else None
        if live is not None:
            live.end(why)
        self._live = None

    def __iter__(self) -> Iterator[Batch]:
        """Iterate over the batches of this epoch from its start. The first iterator after `load_state_dict` begins at
        the loaded state.

        After the last batch of an epoch is taken, the next iterator begins the next epoch. After a `break` or an error,
        the next iterator starts the same epoch again, and the loader warns once unless `set_epoch` or `load_state_dict`
        was called. A loader has only one iterator at a time: a new iterator ends the older one.
        """
        if _in_data_worker() and not self._runs_in_data_worker:
            raise Unsupported(
                "a Loader cannot be iterated inside a worker of a torch DataLoader, because each worker would return "
                "every "
                "sample",
                hint="iterate the Loader itself, or give the DataLoader penstock.torch.MapDataset(dataset) or "
                "penstock.torch.StreamDataset(dataset)",
            )
        self._supersede("a newer iterator of the same loader was made")
        start = self._resume
        if start == 0 and self._is_spent(self._cursor):
            # Callers that use len(), such as Lightning, do not call the iterator again after the last batch. Therefore,
            # complete the epoch now.
            self._to_epoch(self._epoch + 1)
        elif not self._is_chosen:
            self._warn_of_repeat()
        self._is_chosen = False
        self._cursor = start
        self._prepare()
        made = Epoch(self, self._native_feed(), self._epoch, start)
        self._live = weakref.ref(made)
        return made

    def _warn_of_repeat(self) -> None:
        """Warn once if an interrupted epoch starts again. Do not warn if the earlier iterator delivered only one batch."""
        before = self._measured
        if (before.epoch, before.complete) != (self._epoch, False) or before.batches < 2 or self._has_warned:
            return
        if self.dataset.differs_by_epoch:
            self._has_warned = True
            _LOG.warning(
                "%r: epoch %d starts again with the same batches: its last pass ended after %d batches. Call "
                "set_epoch(%d) before the next pass to train on other batches, or load_state_dict(state_dict()) to continue.",
                self.dataset,
                self._epoch,
                before.batches,
                self._epoch + 1,
            )

    def _warn_of_no_batch(self) -> None:
        """Warn once if a whole epoch had no batch, because `tail="drop"` leaves out batches that are not full."""
        is_equal = self.has_fixed_positions
        if self.rank and is_equal:
            return  # only the first rank warns
        self._warns_of_no_batch = False
        _LOG.warning(
            '%r: epoch %d had no batch, because tail="drop" leaves out a batch that is not full%s. Use smaller batches or '
            'tail="ragged".',
            self,
            self._epoch,
            f", and the epoch has {self.dataset.samples:,} samples" if is_equal and self._packing is None else "",
        )

    def _is_spent(self, cursor: int) -> bool:
        """True if a pass at this cursor has delivered every batch of the epoch."""
        if self._packing is not None:
            return self._packing.is_spent(cursor, self._epoch)
        if self._unindexed is not None:
            return self._unindexed.is_spent(cursor)
        if cursor == 0 or not self.dataset.is_counted:
            return False
        if self.dataset.rebatches:
            return rebatched_rank_state.Place.of(cursor).start >= self.dataset.samples
        left = self.dataset.samples - cursor
        return left < (self.global_batch if self.tail == "drop" and self._batch_by is None else self._min_rows)

    def _to_epoch(self, epoch: int) -> None:
        """Go to the start of another epoch, and read all objects again if the loader was finishing an epoch of a
        smaller dataset.
        """
        self._epoch, self._cursor = epoch, 0
        if self._whole_dataset is not None:
            self._use(self._whole_dataset, None)

    def set_epoch(self, epoch: int) -> None:
        """Make the next iterator begin at the start of `epoch`. If a state of the same epoch was loaded, the next
        iterator still continues at the state.

        An existing iterator from which no batch was requested is moved to `epoch`; any other existing iterator ends.

        Raises:
            ConfigError: The epoch is negative.
        """
        epoch = loader_arguments.epoch_number(epoch)
        self._is_chosen = True
        if epoch != self._epoch:
            live = self._live() if self._live is not None else None
            is_untouched = live is not None and live.is_untouched
            if not is_untouched:
                self._supersede(f"set_epoch({epoch}) was called")
            self._to_epoch(epoch)
            self._resume = 0
            if live is not None and is_untouched:  # Lightning creates its first iterator before it sets the epoch
                live.begin_elsewhere(self._native_feed(), epoch, 0)
        elif not self._resume and self._is_spent(self._cursor):
            self._cursor = 0  # the caller wants to repeat the finished epoch

    def state_dict(self) -> dict[str, Any]:
        """Return the loader's position after the delivered batches, as JSON under 1 KB that is identical on all ranks.

        States differ between ranks for unindexed datasets, datasets packed without `count_tokens`, and
        `decode(rebatch=True)`. Such states are valid only for the same rank and number of ranks. They contain the
        position under `ranks`, by rank number, so that `torch.distributed.checkpoint` saves the positions of all ranks.
        """
        if self._packing is not None:
            return states.of_one_rank(self._packing.state(self._epoch, self._cursor))
        if self._unindexed is not None:
            return states.of_one_rank(self._unindexed.state(self._epoch, self._cursor))
        if self.dataset.rebatches:
            place = rebatched_rank_state.Place.of(self._cursor)
            state = states.make(self.dataset, self._epoch, place.start)
            return states.of_one_rank({**state, **rebatched_rank_state.state_of_place(self, place)})
        return states.make(self.dataset, self._epoch, self._cursor, self._batches(self.dataset))

    def _batches(self, dataset: DatasetBase) -> str | None:
        """Return the text that identifies the plan of a dataset's batches; None for batches of a constant size."""
        if self._batch_by is None:
            return None
        is_mine = dataset is self.dataset
        plan = self._plan() if is_mine else self._batch_by.plan(dataset, self.world, self._settings["on_error"])
        return None if plan is None else plan.identity

    def load_state_dict(self, state: Mapping[str, Any], *, grown: states.Grown = "refuse") -> None:
        """Make the next iterator continue at `state`, on any number of ranks and with any batch size.

        With `batch_by`, the batch sizes over all ranks must be the same as in the state.

        Args:
            grown: Rule for a dataset that has more objects than when the state was saved. `refuse` raises an error with
                both numbers. `finish-old-then-new` finishes the epoch with the objects that the dataset had when the
                state was saved; all later epochs use all objects. To load a state that is saved during this last epoch
                of the old objects, set the same rule.
        Raises:
            ConfigError: The state belongs to another dataset, seed, window, tokenizer or `batch_by` or, for an
                unindexed or packed dataset, to another rank or world. The message contains the values of the state and
                of this loader.
        """
        state = states.for_rank(state, self.rank)
        if self._packing is not None:
            self._go_on(*self._packing.cursor(state))
            return
        if self._unindexed is not None:
            self._go_on(*self._unindexed.cursor(state))
            return
        dataset = self._whole_dataset or self.dataset
        part = states.old_part(state, dataset, grown)
        epoch, cursor = states.check(state, part or dataset, self._batches(part or dataset))
        if dataset.rebatches:
            cursor = rebatched_rank_state.place_of_state(state, self, cursor).cursor()
        self._use(part or dataset, None if part is None else dataset)
        self._go_on(epoch, cursor)

    def _use(self, dataset: DatasetBase, whole: DatasetBase | None) -> None:
        """Read `dataset` from now on. After the current epoch, `whole` replaces it."""
        if dataset is not self.dataset:
            self.dataset, self._feed, self._batch_plan = dataset, None, None
            self.__dict__.pop("caches", None)
        self._whole_dataset = whole

    def _go_on(self, epoch: int, cursor: int) -> None:
        self._supersede("load_state_dict was called")
        self._is_chosen = True
        self._epoch, self._cursor, self._resume = epoch, cursor, cursor

    def _is_live(self, one: Epoch[Batch]) -> bool:
        """True if this pass was not replaced by a newer pass or by a loaded state."""
        return self._live is not None and self._live() is one

    def _requested(self, by: Epoch[Batch]) -> None:
        """Forget the loaded state when the first batch is requested, not when an iterator is created, because Lightning
        can create several iterators first.
        """
        if self._is_live(by):
            self._resume = 0

    def _delivered(self, by: Epoch[Batch], cursor: int) -> None:
        if self._is_live(by):
            self._cursor = cursor

    def _exhausted(self, by: Epoch[Batch], epoch: int) -> None:
        if self._is_live(by):
            self._live = None
            if self._cursor == 0 and self._warns_of_no_batch:
                self._warn_of_no_batch()
            if epoch == self._epoch:
                self._to_epoch(epoch + 1)

    def report(self) -> Report:
        """Report of the time of the current or last pass, by class. Prints as a table; `dict(report)` is plain data."""
        live = self._live() if self._live is not None else None
        if live is not None:
            live.measure()
        feed = self._feed[1] if self._feed is not None and self._feed[0] == os.getpid() else None
        # Do not wait until the records are counted in the background.
        counted = self._unindexed is None and self.dataset.is_counted
        usual = self.source_batch if self._batch_plan is None else self._batch_plan.native.mean_rows
        facts = {
            "counts": self.dataset.rung if counted else NOTICE if self._unindexed is not None else "scan, not complete",
            "window": self.dataset.window if counted else None,
            "needed_bytes": self.dataset.needed_bytes,
            "caches": [None if cache is None else asdict(cache) for cache in self.caches],
            "transcoding": feed.transcoding() if isinstance(feed, _native.Feed) else [],
            "expected_gets_per_batch": self.dataset.expected_gets(usual, self.world) if counted else None,
            "locality": self.dataset.locality and self.dataset.locality.facts(),
            "device": self._device_name(),
            "threads": feed.threads if feed is not None else 0,
            "max_in_flight": self._settings["max_in_flight"],
            "memory_bytes": feed.memory_bytes if feed is not None else self._settings["memory_bytes"],
            "rank": self.rank,
            "world": self.world,
            "global_batch": usual,
        }
        return reporting.make(self._measured, facts)

    def __getstate__(self) -> dict[str, Any]:
        # Threads and connections cannot be pickled, so the other process creates its own.
        kept = {name: value for name, value in self.__dict__.items() if name != "functions"}
        return {**kept, "_feed": None, "_live": None, "_worker_pool": None, "_batch_plan": None}


class Loader(BaseLoader[dict[str, Any]]):
    """Loader that yields dicts of NumPy arrays over the feed's memory. The arrays are writable, and valid as long as
    the caller keeps them.
    """

    def _prepare(self) -> None:
        require("penstock.Loader", "numpy")
        from penstock.feed.numpy import array

        self._array = array

    def _adapt(self, tensors: dict[str, Any]) -> tuple[dict[str, Any], float]:
        return batch_columns.adapt(tensors, self._array), 0.0

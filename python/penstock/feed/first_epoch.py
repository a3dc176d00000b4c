# SPDX-License-Identifier: Apache-2.0
"""First epoch of a dataset whose records are still being counted: reads the known parts of the sample order one after
another until the scan is complete.

The order of objects in an epoch does not depend on the counts. The position of a sample depends only on the counts of
the objects up to the end of its window. Therefore, positions are final as soon as the objects of their window and of
all earlier windows are counted. Each part is a native feed over a prefix of the epoch that ends at a batch boundary.
The last part is the feed of the whole dataset.

A shuffled batch has records of all objects of a window. A feed of the whole window would read all these objects before
the first batch. Therefore, the first parts of a shuffled epoch have only a few batches, and read single records if
possible.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock import _native

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.feed.dataset import Dataset
    from penstock.feed.record_scan import RecordScan

__all__ = ["FirstEpochFeed", "FirstEpochRun"]

MAX_DEFAULT_WINDOW = 16
"""Number of objects whose counts determine the default shuffle window (`default_window` in the core)."""


_GROWTH = 8
"""Growth of the parts of a shuffled epoch. The first part has one batch, and each later part has this many times as
many batches as the part before it.
"""


class Part(NamedTuple):
    """A feed over a prefix of an epoch, or over all of it."""

    feed: _native.Feed
    is_last: bool
    next_from: int | None
    """Cursor at the end of this part; None if the batches after this part are not known yet."""


class _Known(NamedTuple):
    """The sampler of a known prefix of the epoch. `Part` describes the other attributes."""

    sampler: _native.Sampler | None = None
    is_last: bool = True
    next_from: int | None = None


class FirstEpochFeed:
    """Feed of a dataset that is not counted yet. Has the methods of a native feed that a loader uses."""

    def __init__(
        self, dataset: Dataset, scan: RecordScan, batch: int, make: Callable[[_native.Sampler | None], _native.Feed]
    ) -> None:
        """`make(sampler)` creates the native feed of a part, and `make(None)` the feed of the counted dataset."""
        self.dataset, self.scan, self.batch = dataset, scan, batch
        self._make = make
        self._closed: Counter[str] = Counter()
        self._batches = 1
        self.part: Part | None = None

    @property
    def threads(self) -> int:
        """Number of decoding threads of the current part."""
        return 0 if self.part is None else self.part.feed.threads

    @property
    def memory_bytes(self) -> int:
        """Memory budget of the current part in bytes."""
        return 0 if self.part is None else self.part.feed.memory_bytes

    def metrics(self) -> Mapping[str, float]:
        """Return the request counters of all parts."""
        total: Counter[str] = Counter(self._closed)
        if self.part is not None:
            total.update(self.part.feed.metrics())
        return total

    def start(self, epoch: int, cursor: int) -> FirstEpochRun:
        """Start a pass over an epoch at a cursor."""
        return FirstEpochRun(self, epoch, cursor)

    def next_part(self, epoch: int, cursor: int) -> Part:
        """Wait until at least one batch after `cursor` is known, and return the feed of all known batches."""
        if self.part is not None:
            self._closed.update(self.part.feed.metrics())
            self.part = None
        known = self._known(epoch, cursor) or _Known()
        self.part = Part(self._make(known.sampler), known.is_last, known.next_from)
        return self.part

    def _known(self, epoch: int, cursor: int) -> _Known | None:
        """Return the sampler of the known prefix; None if all records are counted."""
        dataset, scan = self.dataset, self.scan
        order = dataset.source.object_order(dataset.seed, epoch)
        window = self._window()
        if scan.is_complete() or window is None:
            return None
        takes = [count for _, count, _ in dataset.steps]
        end, is_first = 0, not self._closed
        pauses = dataset.seed is not None and is_first  # so that the scan does not slow down the first batch
        while True:
            while end < len(order) and scan.is_counted(order[end : end + window]):
                end = min(end + window, len(order))
            objects = order[:end]
            if dataset.seed is None and is_first and end == 0:
                # In stored order, a part can also end inside the first object.
                scan.counts.scan_start(order[0], cursor + self.batch)
                objects, is_first = order[:1], False
            if scan.is_complete():
                return None
            counted = scan.counts.so_far(objects)
            samples = min([counted.samples, *takes])
            is_last = bool(takes) and samples == min(takes)
            stop = samples if is_last else cursor + (samples - cursor) // self.batch * self.batch
            if stop > cursor or is_last:
                leaf = _native.Sampler.leaf(dataset.source, counted, seed=dataset.seed, window=window)
                near = cursor + self._batches * self.batch
                if dataset.seed is not None and near < stop and scan.counts.reads_ranges(objects):
                    self._batches *= _GROWTH
                    return _Known(leaf.range(0, near), is_last=False, next_from=near)
                return _Known(leaf.range(0, stop), is_last)
            if end == len(order):
                # The remaining samples do not fill a batch. All objects are counted, so the scan ends soon.
                scan.wait()
                return None
            scan.read_first(order[end : end + window] if pauses else order[end:], then_pauses=pauses)
            scan.start()
            scan.wait_until(partial(scan.is_counted, order[end : end + window]))
            if scan.is_complete():
                return None

    def _window(self) -> int | None:
        """Return the shuffle window. The default window depends on the counts of a few objects. None if all records are
        counted.
        """
        dataset, scan = self.dataset, self.scan
        seed = dataset.seed
        if seed is None:
            return 1
        if dataset.requested_window is not None:
            return dataset.requested_window
        objects = dataset.source.object_order(seed, 0)[:MAX_DEFAULT_WINDOW]
        scan.read_first(objects)
        scan.start()

        def is_known() -> bool:
            # 2 is the smallest possible window, so the remaining counts cannot reduce it.
            return scan.is_counted(objects) or scan.counts.so_far(objects).window(seed) == 2

        scan.wait_until(is_known)
        return None if scan.is_complete() else scan.counts.so_far(objects).window(seed)


class FirstEpochRun:
    """A running epoch over several parts. Has the methods of a native run."""

    def __init__(self, feed: FirstEpochFeed, epoch: int, cursor: int) -> None:
        self._feed, self._epoch, self._cursor = feed, epoch, cursor
        self._run: _native.Run | None = None
        self._is_last = self._is_closed = False
        self._next_from: int | None = None
        self._timing: Counter[str] = Counter()
        self._errors: tuple[int, int, list[str]] = (0, 0, [])
        self._begin_part()

    def next(self) -> tuple[dict[str, Any], int, int] | None:
        """Return the next batch as (fields, rows, cursor), or None after the last."""
        while not self._is_closed:
            run = self._run
            if run is None:
                self._begin_part()
                continue
            got = run.next()
            if got is not None:
                self._cursor = got[2]
                if not self._is_last:
                    self._feed.scan.go_on()  # the scan paused, so that it did not compete with the first batch
                if self._cursor == self._next_from:
                    # Start the next part now, so that it reads while the consumer works on this batch.
                    self._end_part()
                    self._begin_part()
                return got
            if self._is_last:
                return None
            self._end_part()
        self._end_part()  # a part may have begun while another thread closed the run
        return None

    def _begin_part(self) -> None:
        part = self._feed.next_part(self._epoch, self._cursor)
        self._run, self._is_last = part.feed.start(self._epoch, self._cursor), part.is_last
        self._next_from = part.next_from
        if self._is_closed:  # another thread closed the run meanwhile
            self._end_part()

    def _end_part(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            self._timing.update(run.timing())
            self._errors = _sum(self._errors, run.error_counts())
            run.close()

    def positions(self) -> None:
        """Return None: the rows of a batch have consecutive positions."""

    def is_ready(self) -> bool:
        """True if `next` would return without waiting."""
        return self._run is not None and self._run.is_ready()

    def timing(self) -> dict[str, float]:
        """Return the times of all parts."""
        total: Counter[str] = Counter(self._timing)
        if self._run is not None:
            total.update(self._run.timing())
        return dict(total)

    def error_counts(self) -> tuple[int, int, list[str]]:
        """Return the skipped and the substituted samples of all parts, and the first error messages."""
        return self._errors if self._run is None else _sum(self._errors, self._run.error_counts())

    def close(self) -> None:
        """End the current part. The scan goes on."""
        self._is_closed = True
        self._feed.scan.end_pause()
        run, self._run = self._run, None
        if run is not None:
            run.close()  # ignore the times, because a forked child cannot read them


def _sum(a: tuple[int, int, list[str]], b: tuple[int, int, list[str]]) -> tuple[int, int, list[str]]:
    return a[0] + b[0], a[1] + b[1], [*a[2], *b[2]][:10]

# SPDX-License-Identifier: Apache-2.0
"""Counts the records of a dataset whose objects do not contain record counts. Reads each object once per job, in the
order of an epoch, so that the epoch can start before all objects are counted.

Runs in the calling thread or in the background. With a torch process group, the rank that needs the counts first reads
the objects. Otherwise, the process that holds the lock file in the cache folder reads the objects. This is one process
per node, or one per job if the folder is shared. The other processes receive the counts while the scan runs.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import sys
import threading
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from penstock import _native, env
from penstock.errors import Interrupted, SystemFault
from penstock.feed import scan_lock
from penstock.feed.record_index_dir import record_index_dir
from penstock.units import plural

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from penstock.feed.dataset import Dataset
    from penstock.feed.node_cache import NodeCache

__all__ = ["RecordScan"]

_LOG = logging.getLogger("penstock.feed")

_AT_ONCE = 16
"""Number of objects between two reports of progress. The core reads four of these objects at a time."""

_MAX_PAUSE_S = 2.0
"""Maximum duration, in seconds, of a scan's pause for the first batch of an epoch."""

_EXIT_S = 5.0
"""Maximum time, in seconds, that the process waits at its exit for a scan to end."""

Counts = list[tuple[int, int]]


class _Publisher(Protocol):
    """Interface through which the reading process reports counts to other processes."""

    def report(self, counts: Counts) -> None: ...


class RecordScan:
    """Counts of a dataset that grow while its objects are read. Shared by all datasets of one `open` call."""

    def __init__(self, dataset: Dataset, before: Callable[[], _native.Counted | None]) -> None:
        """`before` returns the counts if they are known without a scan, otherwise None."""
        self._source, self._url, self._pid = dataset.source, dataset.url, os.getpid()
        self._before = before
        self._variables = dict(env.read())
        self._folder = record_index_dir(self._variables)
        self._name = self._source.cache_name(self._variables)
        cache = _whole(dataset.caches(), self._source.size_bytes)
        self.counts = _native.PartialCounts(self._source, self._variables, self._folder, cache)
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._pauses = False
        self._order: Sequence[int] = range(self._source.objects)
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self.result: _native.Counted | None = None

    @property
    def is_usable(self) -> bool:
        """False after a failure, and in a forked child, which does not have the scan's thread."""
        return self._error is None and self._pid == os.getpid()

    def is_complete(self) -> bool:
        """Whether all records are counted."""
        return self.result is not None

    @property
    def is_running(self) -> bool:
        """True while the scan runs in the background."""
        return self._thread is not None and self.result is None and self.is_usable

    def read_first(self, objects: Sequence[int], *, then_pauses: bool = False) -> None:
        """Read these objects before all others. With `then_pauses`, the scan pauses after these objects until `go_on`
        is called.
        """
        with self._changed:
            self._order = objects if then_pauses else [*objects, *range(self._source.objects)]
            self._pauses = then_pauses
            self._changed.notify_all()

    def go_on(self) -> None:
        """End a pause, and start to scan in the background."""
        self.end_pause()
        self.start()

    def end_pause(self) -> None:
        """End a pause, so that the scan reads the remaining objects."""
        with self._changed:
            if self._pauses:
                self._order, self._pauses = [*self._order, *range(self._source.objects)], False
                self._changed.notify_all()

    def _is_last(self, order: Sequence[int] | None) -> bool:
        """Wait while the scan pauses. Return True if `order` is still the requested order. This order then contains all
        objects.
        """
        with self._changed:
            # During the pause, an epoch reads its first objects. The pause has a time limit, because a consumer that
            # never takes a batch must not delay other ranks.
            self._changed.wait_for(lambda: not self._pauses or self._stopping.is_set(), _MAX_PAUSE_S)
            self.end_pause()
            return order is self._order

    def start(self) -> None:
        """Scan in the background."""
        if self._thread is None and self.result is None:
            self._thread = threading.Thread(target=self._run, name="penstock-scan", daemon=True)
            self._thread.start()
            atexit.register(self._stop)  # a thread that returns from native code after the exit ends the process

    def _stop(self) -> None:
        """End the background scan at the exit of the process. The counts so far are not stored."""
        if self._thread is not None and self._pid == os.getpid():
            self._stopping.set()
            self.counts.stop()
            with self._changed:
                self._changed.notify_all()
            self._thread.join(_EXIT_S)

    def wait(self) -> _native.Counted:
        """Return the complete counts. If no scan runs in the background, scan in this thread."""
        self.end_pause()
        if self._thread is None and self.result is None:
            self._run()
        self.wait_until(lambda: False)
        if self.result is None:
            raise AssertionError("a scan always finds counts or raises")
        return self.result

    def wait_until(self, holds: Callable[[], bool]) -> None:
        """Wait until `holds` returns true or the scan is complete.

        Raises:
            PenstockError: The scan failed.
        """
        with self._changed:
            while self.result is None and not holds():
                if self._error is not None:
                    raise self._error
                self._changed.wait(scan_lock.POLL_S)

    def is_counted(self, objects: Sequence[int]) -> bool:
        """Whether the records of all these objects are counted."""
        return all(self.counts.count(number) is not None for number in objects)

    def _run(self) -> None:
        try:
            found = self._before() or self._shared_scan()
            with self._changed:
                self.result = found
                self._changed.notify_all()
        except BaseException as error:
            if self._thread is None:
                raise
            with self._changed:
                self._error = error
                self._changed.notify_all()
        finally:
            atexit.unregister(self._stop)

    def _shared_scan(self) -> _native.Counted:
        group = _ProcessGroup.of_job(f"{self._name}/{self._source.fingerprint}")
        if group is not None and not group.is_first():
            for counts in group.reported(self._pause):
                self._learn(counts)
            return self.counts.finish()
        try:
            found = self._scan_of_node([] if group is None else [group])
        except BaseException as error:
            if group is not None:
                group.fail(error)
            raise
        if group is not None:
            group.report([])
        return found

    def _scan_of_node(self, publishers: list[_Publisher]) -> _native.Counted:
        folder, lock, warned, read = None if self._folder is None else Path(self._folder), None, False, 0
        while folder is not None:
            try:
                lock = scan_lock.attempt(folder, self._name)
                break
            except BlockingIOError:
                if not warned:
                    scan_lock.warn(self._url)
                    warned = True
                fresh = scan_lock.lines(folder, self._name, read)
                read += len(fresh)
                counts = [pair for line in fresh for pair in _parsed(line, self._source.fingerprint)]
                self._learn(counts)
                for publisher in publishers if counts else ():
                    publisher.report(counts)
                self._pause()
            except OSError:
                break
        try:
            # Another process may have written the index before this process got the lock.
            found = self._source.kept_count(self._variables, self._folder) if lock is not None else None
            if found is not None:
                for publisher in publishers:
                    publisher.report(list(enumerate(found.records())))
                return found
            _LOG.warning(
                "%s: the objects do not contain record counts, so %s: %s, %s bytes. To avoid this, "
                "set records_per_object=N or give a manifest with counts.",
                self._url,
                "each process reads all of them once"
                if lock is None and not publishers
                else "all are read once and indexed",
                plural(self._source.objects, "object"),
                f"{self._source.size_bytes:,}",
            )
            self._scan_all([*publishers, *([_LockFile(lock, self._source.fingerprint)] if lock is not None else [])])
            return self.counts.finish()
        finally:
            if lock is not None:
                lock.release()

    def _scan_all(self, publishers: list[_Publisher]) -> None:
        """Read all objects that are not counted, in the requested order."""
        for counts in self._counted_pairs():
            for publisher in publishers:
                publisher.report(counts)
        order: Sequence[int] | None = None
        left: Iterator[int] = iter(())
        while True:
            with self._changed:
                if order is not self._order:
                    order, left = self._order, iter(self._order)
            chosen = dict.fromkeys(islice((number for number in left if self.counts.count(number) is None), _AT_ONCE))
            if not chosen:
                if self._is_last(order):
                    return
                continue
            self.counts.scan(list(chosen))
            counts = [(number, self.counts.count(number) or 0) for number in chosen]
            with self._changed:
                self._changed.notify_all()
            for publisher in publishers:
                publisher.report(counts)

    def _counted_pairs(self) -> list[Counts]:
        """Return the counts that this process already has, as a list of one report; empty if all records are
        counted.
        """
        if not self.counts.complete:
            return []
        numbered = ((number, self.counts.count(number)) for number in range(self._source.objects))
        return [[(number, records) for number, records in numbered if records is not None]]

    def _pause(self) -> None:
        if self._stopping.wait(scan_lock.POLL_S):
            raise Interrupted("interrupted")

    def _learn(self, counts: Counts) -> None:
        if counts:
            self.counts.learn(counts)
            with self._changed:
                self._changed.notify_all()


def _whole(caches: list[NodeCache | None], size_bytes: int) -> tuple[str, int, str] | None:
    """Return the node cache if the whole dataset fits into it. The scan then stores the objects in the cache, so that
    they are not fetched again.
    """
    cache = caches[0] if caches else None
    if cache is None or cache.limit_bytes < size_bytes * 1.01:
        return None
    return (cache.folder, cache.limit_bytes, cache.transcode)


def _parsed(line: str, fingerprint: str) -> Counts:
    """Return the counts in a line of progress. Empty if the line belongs to another listing or cannot be read."""
    with suppress(ValueError, TypeError):
        of, counts = json.loads(line)
        if of == fingerprint:
            return [(int(number), int(records)) for number, records in counts]
    return []


class _LockFile:
    """Reports counts through the lock file to processes that share the cache folder."""

    def __init__(self, lock: scan_lock.ScanLock, fingerprint: str) -> None:
        self._lock, self._fingerprint = lock, fingerprint

    def report(self, counts: Counts) -> None:
        self._lock.write(json.dumps([self._fingerprint, counts]))


class _ProcessGroup:
    """Reports counts through the store of the job's torch process group."""

    def __init__(self, store: Any, name: str) -> None:
        self._store, self._name, self._reports = store, f"penstock/counts/{name}", 0

    @classmethod
    def of_job(cls, name: str) -> _ProcessGroup | None:
        """Return a publisher through the store of the default process group. None without a group of several ranks, and
        in a worker of a DataLoader, because the socket of the store belongs to the parent process.
        """
        dist, data = sys.modules.get("torch.distributed"), sys.modules.get("torch.utils.data")
        if dist is None or not dist.is_available() or not dist.is_initialized() or dist.get_world_size() < 2:
            return None
        if data is not None and data.get_worker_info() is not None:
            return None
        return cls(dist.distributed_c10d._get_default_store(), name)  # noqa: SLF001 - torch has no public access to it

    def is_first(self) -> bool:
        """Whether this rank is the first to call this method. The first rank must scan, or report that it failed."""
        return int(self._store.add(f"{self._name}/claims", 1)) == 1

    def report(self, counts: Counts) -> None:
        """Add a report. An empty report is the last one."""
        self._put({"counts": counts})

    def fail(self, error: BaseException) -> None:
        """Report that the scan failed."""
        self._put({"error": str(error) or type(error).__name__})

    def _put(self, report: dict[str, Any]) -> None:
        self._store.set(f"{self._name}/{self._reports}", json.dumps(report))
        self._reports += 1

    def reported(self, pause: Callable[[], None]) -> Iterator[Counts]:
        """Yield the reports of the scanning rank until the last report. Calls `pause` between two polls.

        Raises:
            SystemFault: The scan failed.
        """
        while True:
            key = f"{self._name}/{self._reports}"
            while not self._store.check([key]):
                pause()
            report = json.loads(self._store.get(key))
            self._reports += 1
            if "error" in report:
                raise SystemFault(f"the rank that counts the records failed: {report['error']}", where="counts")
            if not report["counts"]:
                return
            yield [(int(number), int(records)) for number, records in report["counts"]]

# SPDX-License-Identifier: Apache-2.0
"""Read and write phases between storage and GPU memory: through pinned memory and a copy, or with cuFile.

Implements `penstock.bench.phases.Phase`; its report has the same field names as the core's report. Each thread has one
block in flight. `spec` rejects open loops and content checks for these phases. The core runs all other phases, which
move no bytes.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import resource
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock import _native
from penstock.bench.storage.cuda import CuFile, Device
from penstock.errors import Bug, Corrupt, Interrupted, PenstockError, SystemFault

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["GpuPhase", "probe"]

_SAMPLE_S = 0.1
_LINEAR = 128


class _Latencies:
    """Histogram with the same buckets as the core's histograms, so that all of them can be merged."""

    def __init__(self) -> None:
        self.buckets: dict[int, int] = {}
        self.least, self.most, self.sum = 0, 0, 0

    def record(self, ns: int) -> None:
        at = ns
        if ns >= _LINEAR:
            shift = ns.bit_length() - 8
            at = (shift + 1) * _LINEAR + ((ns >> shift) & (_LINEAR - 1))
        self.least = min(self.least, ns) if self.buckets else ns
        self.buckets[at] = self.buckets.get(at, 0) + 1
        self.most, self.sum = max(self.most, ns), self.sum + ns

    def to_json(self) -> str:
        count = sum(self.buckets.values())
        us = {"min_us": self.least / 1e3, "max_us": self.most / 1e3, "sum_us": self.sum / 1e3}
        percentiles = dict.fromkeys(("p50_us", "p90_us", "p95_us", "p99_us", "p99_9_us"), 0.0)
        mean = {"mean_us": self.sum / count / 1e3 if count else 0.0}
        return json.dumps({"count": count, **us, **mean, **percentiles, "buckets": sorted(self.buckets.items())})


class _Worker(threading.Thread):
    """One thread, which reads or writes its blocks one after another."""

    def __init__(self, phase: GpuPhase, number: int) -> None:
        super().__init__(name=f"penstock-gpu-{number}", daemon=True)
        self._phase, self._number = phase, number
        self.entries = self.ios = self.moved = 0
        self.io, self.entry = _Latencies(), _Latencies()
        self.ended_at = 0.0
        self.fault: PenstockError | None = None
        self.reached_limit = False

    def run(self) -> None:
        phase = self._phase
        try:
            with ExitStack() as stack:
                self._prepare(stack)
                phase.gate.wait()
                while not phase.stop.is_set() and self._round() and phase.spec["repeat"]:
                    pass
        except PenstockError as error:
            self.fault = error
        except threading.BrokenBarrierError:
            pass  # another worker has already recorded the reason
        except OSError as error:
            self.fault = SystemFault(f"{error.filename or phase.spec['path']}: {error.strerror}")
        except Exception as error:  # `wait` raises it in the caller's thread
            self.fault = Bug(f"{type(error).__name__}: {error}")
        if self.fault:
            # An error in one worker ends the phase for all, including workers that still wait for the start.
            phase.stop.set()
            phase.gate.abort()
        self.ended_at = time.perf_counter()
        phase.ended(self)

    def _prepare(self, stack: ExitStack) -> None:
        device, size = self._phase.device, self._phase.spec["block_size"]
        device.enter()
        self._there = device.memory(size)
        stack.callback(device.free, self._there)
        self._here = device.pinned(size)
        stack.callback(device.unpin, self._here)
        self._view = memoryview((ctypes.c_char * size).from_address(self._here.value or 0)).cast("B")
        noise = os.urandom(min(size, 1 << 20))
        for at in range(0, size, len(noise)):
            self._view[at : at + len(noise)] = noise[: size - at]
        device.to_device(self._there, self._here, size)

    def _round(self) -> bool:
        """Process all files of this thread, or its share of the shared file. Return False if the round ended early."""
        for path, offsets, is_new in self._files():
            began = time.perf_counter_ns()
            flags = os.O_RDONLY if self._phase.name == "read" else os.O_WRONLY | (os.O_CREAT if is_new else 0)
            fd = os.open(path, flags | (os.O_DIRECT if self._phase.spec["direct"] else 0), 0o644)
            try:
                if not self._blocks(fd, path, offsets):
                    return False
                if self._phase.name == "write" and self._phase.spec["fsync"]:
                    os.fsync(fd)
            finally:
                os.close(fd)
            self.entry.record(time.perf_counter_ns() - began)
            self.entries += 1
        return True

    def _files(self) -> Iterator[tuple[str, range, bool]]:
        spec, block = self._phase.spec, self._phase.spec["block_size"]
        path = Path(spec["path"])
        if not path.is_dir():
            with path.open("rb") as file:
                size = spec["file_size"] or file.seek(0, os.SEEK_END) // block * block
            count = size // block
            low, high = (count * at // spec["threads"] for at in (self._number, self._number + 1))
            yield str(path), range(low * block, high * block, block), False
            return
        for directory in range(spec["directories"]):
            for file_number in range(spec["files"]):
                name = f"t{self._number:05}/d{directory:05}/f{file_number:07}"
                yield str(path / name), range(0, spec["file_size"], block), True

    def _blocks(self, fd: int, place: str, offsets: range) -> bool:
        phase = self._phase
        handle = phase.cufile.register(fd, place) if phase.cufile else None
        order = list(offsets)
        if phase.spec["pattern"] == "random":
            random.Random(phase.spec["seed"] + self._number).shuffle(order)
        try:
            for offset in order:
                if phase.stop.is_set() or (phase.spec["io_limit"] or self.ios + 1) <= self.ios:
                    self.reached_limit = not phase.stop.is_set()
                    return False
                size = min(
                    phase.spec["block_size"], (phase.spec["file_size"] or offset + phase.spec["block_size"]) - offset
                )
                began = time.perf_counter_ns()
                self._move(fd, handle, place, offset, size)
                self.io.record(time.perf_counter_ns() - began)
                self.ios += 1
                self.moved += size
        finally:
            if phase.cufile and handle is not None:
                phase.cufile.release(handle)
        return True

    def _move(self, fd: int, handle: Any, place: str, offset: int, size: int) -> None:
        device, cufile = self._phase.device, self._phase.cufile
        is_read = self._phase.name == "read"
        if cufile:
            (cufile.read if is_read else cufile.write)(handle, self._there, size, offset, place)
            return
        if not is_read:
            device.from_device(self._here, self._there, size)
            # Make every block different, so that a deduplicating disk cannot store them as one block.
            self._view[:8] = (self.ios << 24 | self._number).to_bytes(8, "little")
        done = 0
        while done < size:
            part = [self._view[done:size]]
            more = os.preadv(fd, part, offset + done) if is_read else os.pwritev(fd, part, offset + done)
            if more == 0:
                raise Corrupt(f"{place} ends at byte {offset + done:,}, but more bytes were written", where=place)
            done += more
        if is_read:
            device.to_device(self._there, self._here, size)


def probe(gpu: int, *, uses_cufile: bool) -> None:
    """Check that the GPU and cuFile are available, before any file is created.

    Raises:
        Unsupported: The GPU or cuFile is missing.
    """
    Device(gpu).close()
    if uses_cufile:
        CuFile()


class GpuPhase:
    """A read or write phase, which starts when the object is constructed."""

    def __init__(self, spec: dict[str, Any], name: str, *, gpu: int, uses_cufile: bool) -> None:
        """Open the device, then start the workers.

        Raises:
            Unsupported: The GPU or cuFile is missing.
        """
        self.spec, self.name = spec, name
        self.device = Device(gpu)
        self.cufile = CuFile() if uses_cufile else None
        self.stop = threading.Event()
        self.began_at = 0.0
        self._turn = threading.Lock()
        self._first: tuple[float, tuple[int, int, int]] | None = None
        self._is_cancelled = False
        self._series: list[dict[str, Any]] = []
        self.gate = threading.Barrier(spec["threads"], action=self._begin)
        self._workers = [_Worker(self, number) for number in range(spec["threads"])]
        for worker in self._workers:
            worker.start()

    def _begin(self) -> None:
        self._used = resource.getrusage(resource.RUSAGE_SELF)
        self._started_s, self.began_at = time.time(), time.perf_counter()

    def ended(self, worker: _Worker) -> None:
        """Record that a worker has ended."""
        with self._turn:
            self._first = self._first or (worker.ended_at, self.progress())

    def progress(self) -> tuple[int, int, int]:
        """Return the number of completed entries, of completed reads or writes, and of bytes."""
        workers = self._workers
        return sum(w.entries for w in workers), sum(w.ios for w in workers), sum(w.moved for w in workers)

    def cancel(self) -> None:
        """Ask the workers to stop."""
        self._is_cancelled = True
        self.stop.set()
        self.gate.abort()

    def wait(self, timeout_s: float) -> str | None:
        """Wait for the end of the phase. Return its report as JSON, or None if it has not ended after `timeout_s`."""
        until = time.perf_counter() + timeout_s
        while any(worker.is_alive() for worker in self._workers):
            now = time.perf_counter()
            if now >= until:
                return None
            limit = self.spec["time_limit_s"]
            if limit and self.began_at and now - self.began_at >= limit:
                self.stop.set()
            if self.began_at and now - self.began_at >= _SAMPLE_S * (len(self._series) + 1):
                self._series.append({"t_s": now - self.began_at, **self._counts(self.progress())})
            time.sleep(min(_SAMPLE_S / 4, max(0.0, until - now)))
        self.device.close()
        if self._is_cancelled:
            raise Interrupted("interrupted")
        if faults := [worker.fault for worker in self._workers if worker.fault]:
            raise faults[0]
        return json.dumps(self._report())

    @staticmethod
    def _counts(done: tuple[int, int, int]) -> dict[str, int]:
        return dict(zip(("entries", "ios", "bytes"), done, strict=True))

    def _report(self) -> dict[str, Any]:
        used = resource.getrusage(resource.RUSAGE_SELF)
        last_s = max(worker.ended_at for worker in self._workers) - self.began_at
        assert self._first is not None
        first_s = self._first[0] - self.began_at
        latencies = {
            name: json.loads(_native.merge_latencies([getattr(worker, name).to_json() for worker in self._workers]))
            for name in ("entry", "io")
        }
        ended_by = "time" if self.stop.is_set() else "ios" if any(w.reached_limit for w in self._workers) else None
        return {
            "phase": self.name,
            "started_s": self._started_s,
            "start_late_s": None,
            "first": {"seconds": first_s, **self._counts(self._first[1]), "cpu_percent": None},
            "last": {"seconds": last_s, **self._counts(self.progress()), "cpu_percent": None},
            "tail_s": last_s - first_s,
            "entry_latency": latencies["entry"],
            "io_latency": latencies["io"],
            "service_latency": None,
            "offered_per_s": None,
            "cpu": {"user_s": used.ru_utime - self._used.ru_utime, "system_s": used.ru_stime - self._used.ru_stime},
            "cores": len(os.sched_getaffinity(0)),
            "series": self._series,
            "verified_bytes": 0,
            "ended_by": ended_by,
        }

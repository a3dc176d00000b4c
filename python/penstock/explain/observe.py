# SPDX-License-Identifier: Apache-2.0
"""Observes a process tree for some seconds with all collectors, and keeps their data. Draws no conclusions."""

from __future__ import annotations

import os
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.bench.diskstats import Counters, read_counters
from penstock.errors import Denied, NotFound, SystemFault
from penstock.explain.attribution import ThreadTime, thread_times
from penstock.explain.gpu import GpuMonitor
from penstock.explain.launch import ptrace_scope
from penstock.explain.network import Connections
from penstock.explain.stacks import SourceLines, StackSampler, ThreadStack, find_sampler
from penstock.explain.tree import ProcessRecord, ProcessTree

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.explain.launch import ObservedProgram

__all__ = ["Observation", "Observer", "check_pid"]

_LOOK_S, _SOCKETS_S, _REFRESH_S = 0.1, 0.2, 1.0
# Attaching py-spy costs up to 0.1 s of CPU, so chunks are long. During the start-up, each chunk is longer than the
# previous one. Afterwards, one chunk lasts to the end, unless more than `_SAMPLED` processes take turns.
_STARTUP_CHUNK_S, _STARTUP_GROWTH, _TURN_S = 1.5, 1.5, 12.0
_STARTUP_SHARE = 0.2
_AFTER_START_SHARE = 0.8
# Maximum wait for the end of the start-up. Imports of large frameworks from a slow file system take minutes.
_MAX_STARTUP_S = 180.0
# One sample costs about 0.5 ms of CPU for a program with torch and three threads.
_STACKS_PER_S = 20
# Processes whose stacks are sampled at a time. With more processes, workers take turns.
_SAMPLED = 6


@dataclass(slots=True)
class Observation:
    """All data that the collectors recorded. Times are from `time.monotonic`.

    Attributes:
        threads: Classified time of each thread by pid and thread id.
        stack_errors: Reasons why stacks are missing (`permission`, `ended` or py-spy's message), with counts.
    """

    seen_s: float
    startup_s: float
    since_s: float
    records: dict[int, ProcessRecord]
    threads: dict[int, dict[int, ThreadTime]]
    connections: Connections
    disks_before: dict[str, Counters]
    disks_after: dict[str, Counters]
    denied: Counter[str]
    stack_errors: Counter[str]
    stack_samples: int
    has_sampler: bool
    gpu: GpuMonitor
    ended: bool
    machine_busy_cores: float = 0.0
    cpu_s: float = 0.0


def check_pid(pid: int) -> None:
    """Check that a process can be observed.

    Raises:
        NotFound: The process does not exist.
        Denied: The process belongs to another user.
    """
    try:
        if not os.path.exists(f"/proc/{pid}"):
            raise ProcessLookupError
        with open(f"/proc/{pid}/io", "rb") as file:
            file.read()
    except ProcessLookupError as error:
        raise NotFound(
            f"process {pid} does not exist", hint="give the pid of a running program (`pgrep -af python`)"
        ) from error
    except PermissionError as error:
        raise Denied(
            f"process {pid} cannot be read: permission denied (it may belong to another user or container)",
            hint="run `penstock explain` as the same user, in the same container",
        ) from error
    except OSError as error:
        raise SystemFault(f"process {pid} cannot be read: {error.strerror}") from error


class Observer:
    """Collectors around one tree. `run` returns when the time is over, the tree has ended, or `stop` was called. After
    an interrupt, `run` may be called again. Close the observer after use.
    """

    def __init__(self, root: int, program: ObservedProgram | None, *, stacks_per_s: int = _STACKS_PER_S) -> None:
        self._began_cpu_s = time.process_time()
        self._began_s = time.monotonic()
        self._program = program
        self.tree = ProcessTree(root, adopts=program is not None)
        self._connections = Connections()
        path = find_sampler()
        self._stacks = StackSampler(path) if path else None
        self._stacks_per_s = stacks_per_s
        self._sources: dict[int, SourceLines] = {}
        self._threads: dict[int, dict[int, ThreadTime]] = {}
        self._disks = self._read_disks()
        self._machine_busy_s = _busy_s()
        self._gpu = GpuMonitor()
        self._is_over = False
        self._seconds = self._ends_s = 0.0
        self._launchers: set[int] = set()
        self._started_s: float | None = None
        self._stack_samples = 0
        self._recorded: Counter[int] = Counter()

    def stop(self) -> None:
        """End the observation at the next iteration of `run`."""
        self._is_over = True

    def run(self, seconds: float, progress: Callable[[float, float | None], None]) -> Observation:
        """Observe.

        Args:
            seconds: Duration of the observation after the start-up.
            progress: Called a few times a second with the seconds since the start, and the seconds since the end of the
                start-up.
        """
        self._seconds = seconds
        next_sockets = next_refresh = 0.0
        ended = False
        while not self._is_over:
            now_s = time.monotonic()
            if now_s >= next_refresh:
                next_refresh = now_s + _REFRESH_S
                ended = self._refresh()
                progress(now_s - self._began_s, None if self._started_s is None else now_s - self._started_s)
            if ended:
                break
            if now_s >= next_sockets:
                next_sockets = now_s + _SOCKETS_S
                inodes = {inode for record in self.tree.live() for inode in record.inodes}
                if inodes:
                    self._connections.read(now_s, inodes)
            self.tree.look()
            self._record_stacks(now_s)
            if self._is_finished(now_s, seconds):
                break
            time.sleep(max(0.0, now_s + _LOOK_S - time.monotonic()))
        return self._finish(ended=ended)

    def _refresh(self) -> bool:
        """Read all counters; return whether the tree has ended."""
        if self._stacks:
            self.tree.observers = self._stacks.pids()
        self.tree.refresh()
        self.tree.read_descriptors()
        self._gpu.read()
        if self._program is not None:
            self._program.reap_orphans(self.tree.observers)
            return self._program.exit_code is not None and not self.tree.live()
        return not self.tree.live()

    def _is_finished(self, now_s: float, seconds: float) -> bool:
        if self._started_s is not None:
            return now_s >= self._ends_s
        return (
            now_s - self._began_s >= max(_MAX_STARTUP_S, seconds) if self._stacks else now_s - self._began_s >= seconds
        )

    def _record_stacks(self, now_s: float) -> None:
        if self._stacks is None:
            return
        self._stacks.collect()
        self._take_chunks()
        # py-spy needs an interpreter that has started.
        stacks = self._stacks
        live = [r for r in self.tree.live() if r.is_python]
        live = [r for r in live if r.snapshots and now_s - r.snapshots[0].at_s >= 0.5]
        running = [r for r in live if stacks.is_recording(r.pid)]
        free = _SAMPLED - len(running)
        if free <= 0:
            return
        if self._started_s is None:
            # Sample the root. If it only starts other programs, sample the first process that is not such a launcher.
            live = [r for r in live if r.pid not in self._launchers]
            live = [r for r in live if r.pid == self.tree.root] or live[:1]
            free = 1 - len([r for r in live if stacks.is_recording(r.pid)])
            if free <= 0:
                return
            chunk_s = min(15.0, _STARTUP_CHUNK_S * _STARTUP_GROWTH ** max(self._recorded.values(), default=0))
        else:
            left_s = self._ends_s - now_s
            chunk_s = left_s + 1.0 if len(live) <= _SAMPLED else min(_TURN_S, left_s + 1.0)
            if left_s < 1.0:
                return
        idle = [r for r in live if not stacks.is_recording(r.pid)]
        idle.sort(key=lambda r: (r.pid != self.tree.root, self._recorded[r.pid], r.pid))
        for record in idle[:free]:
            stacks.start(record.pid, chunk_s, self._rate_for(record, len(live)))
            self._recorded[record.pid] += 1
        self.tree.observers = self._stacks.pids()

    def _rate_for(self, record: ProcessRecord, processes: int) -> int:
        """Samples per second of a process: the first process that is not a launcher gets half, and all other processes
        share the other half.
        """
        if processes == 1:
            return self._stacks_per_s
        is_first = record.pid == min(self._threads, default=record.pid)
        others = min(processes, _SAMPLED) - 1
        return max(3, self._stacks_per_s // 2 if is_first else self._stacks_per_s // 2 // others)

    def _take_chunks(self) -> None:
        """Classify the stacks that were recorded, and find the end of the start-up."""
        assert self._stacks is not None
        for pid, chunks in self._stacks.samples.items():
            while chunks:
                began_s, _, counts = chunks.pop(0)
                self._take(pid, began_s, counts)

    def _take(self, pid: int, began_s: float, counts: Counter[ThreadStack]) -> None:
        source = self._sources.setdefault(pid, SourceLines(pid))
        found = thread_times(pid, counts, source.text_of, source.around)
        main = found.get(pid)
        if self._started_s is None and main is not None:
            total = sum(main.samples.values())
            if main.flags["is_launcher"] > 0.5 * total:
                self._launchers.add(pid)
            elif total and main.samples["startup"] / total < _STARTUP_SHARE:
                self._started_s = began_s
                # Sampling of the workers begins only now. Move the end, so that most of the observation is still ahead.
                self._ends_s = max(began_s + self._seconds, time.monotonic() + _AFTER_START_SHARE * self._seconds)
                self._threads.clear()
                self._connections.restart()
                self._disks = self._read_disks()
                self._machine_busy_s = _busy_s()
        self._stack_samples += sum(counts.values())
        kept = self._threads.setdefault(pid, {})
        for tid, thread in found.items():
            before = kept.get(tid)
            if before is None:
                kept[tid] = thread
                continue
            before.samples.update(thread.samples)
            before.flags.update(thread.flags)
            before.inline.update(thread.inline)

    def _finish(self, *, ended: bool) -> Observation:
        if self._stacks is not None:
            self._stacks.collect(stop=True)
            self._take_chunks()
        if not ended:
            self.tree.refresh()
        now_s = time.monotonic()
        since_s = self._started_s if self._started_s is not None else self._began_s
        observation = Observation(
            seen_s=now_s - since_s,
            startup_s=since_s - self._began_s,
            since_s=since_s,
            records=self.tree.records,
            threads=self._threads,
            connections=self._connections,
            disks_before=self._disks,
            disks_after=self._read_disks(),
            denied=self.tree.denied,
            stack_errors=self._stacks.errors if self._stacks else Counter(),
            stack_samples=self._stack_samples,
            has_sampler=self._stacks is not None,
            gpu=self._gpu,
            ended=ended,
            machine_busy_cores=max(0.0, _busy_s() - self._machine_busy_s) / max(1e-9, now_s - since_s),
        )
        self.close()
        sampler_s = self._stacks.cpu_s if self._stacks is not None else 0.0
        observation.cpu_s = time.process_time() - self._began_cpu_s + sampler_s
        return observation

    def close(self) -> None:
        """End py-spy, remove its files, and close the connection to the kernel. May be called again."""
        if self._stacks is not None:
            self._stacks.close()
        self._connections.close()

    @staticmethod
    def _read_disks() -> dict[str, Counters]:
        with suppress(SystemFault):
            return read_counters()
        return {}


def _busy_s() -> float:
    """CPU seconds that all programs of the machine have used since it started (first line of /proc/stat)."""
    try:
        with open("/proc/stat") as file:
            user, nice, system, _idle, _iowait, irq, softirq = map(int, file.readline().split()[1:8])
    except (OSError, ValueError):
        return 0.0
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def permission_note() -> str:
    """Reason why stacks cannot be read, and how to allow it."""
    scope = ptrace_scope()
    if scope >= 1:
        return (
            f"kernel.yama.ptrace_scope is {scope}, so the stacks of some processes cannot be read;"
            " `sysctl kernel.yama.ptrace_scope=0` allows it"
        )
    return "the stacks of some processes cannot be read; containers need the capability SYS_PTRACE"

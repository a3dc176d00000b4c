# SPDX-License-Identifier: Apache-2.0
"""Collects the kernel's data about the processes of a tree: CPU, I/O, blocked calls, open files and sockets.

Reads /proc only. A process or a file that disappears while it is read is skipped. A file without read permission
(another user, another namespace) is counted in `denied`.
"""

from __future__ import annotations

import os
import platform
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from penstock.explain.arguments import redact_arguments
from penstock.explain.proc_files import (
    BlockedCall,
    Mount,
    find_mount,
    parse_io,
    parse_mountinfo,
    parse_schedstat,
    parse_stat,
    parse_syscall,
)

__all__ = ["ProcessRecord", "ProcessTree", "Snapshot", "ThreadRecord", "read_text"]

# Maximum number of threads whose blocked calls are read at a time. Reading the call of one thread takes about 20 µs.
_LOOKED_AT = 24
_MAX_THREADS = 256
_MACHINE = platform.machine()
_CODE = (".py", ".pyc", ".so", ".pyd", ".pth", ".egg", ".whl", ".json", ".cfg", ".toml", ".yaml", ".yml", ".log")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Counters of a process at one time."""

    at_s: float
    cpu_ticks: int
    read_chars: int
    read_calls: int
    read_bytes: int


@dataclass(slots=True)
class ThreadRecord:
    """One thread: (time, ns on a core, ns of waiting for a core), and the calls in which readings found it blocked."""

    tid: int
    comm: str
    times: list[tuple[float, int, int]] = field(default_factory=list)
    looks: int = 0
    calls: Counter[tuple[str, str]] = field(default_factory=Counter)

    def cpu_share(self, since_s: float = 0.0) -> float | None:
        """Share of the time in which the thread was on a core or ready for a core. Ready time counts, so that other
        programs on the node do not change the share.

        None without two readings.
        """
        spans = [one for one in self.times if one[0] >= since_s]
        if len(spans) < 2 or spans[-1][0] <= spans[0][0]:
            return None
        (first_s, run, wait), (last_s, run_after, wait_after) = spans[0], spans[-1]
        return min(1.0, (run_after - run + wait_after - wait) / 1e9 / (last_s - first_s))

    def ready_share(self, since_s: float = 0.0) -> float:
        """Share of the time in which the thread was ready but had no core."""
        spans = [one for one in self.times if one[0] >= since_s]
        if len(spans) < 2 or spans[-1][0] <= spans[0][0]:
            return 0.0
        return min(1.0, (spans[-1][2] - spans[0][2]) / 1e9 / (spans[-1][0] - spans[0][0]))


@dataclass(slots=True)
class ProcessRecord:
    """One process of the tree, from its first to its last reading."""

    pid: int
    parent: int
    start_ticks: int
    command: str = ""
    is_python: bool = False
    snapshots: list[Snapshot] = field(default_factory=list)
    threads: dict[int, ThreadRecord] = field(default_factory=dict)
    most_threads: int = 0
    rss_bytes: int = 0
    files: Counter[str] = field(default_factory=Counter)
    positions: dict[tuple[int, str], int] = field(default_factory=dict)
    file_bytes: Counter[str] = field(default_factory=Counter)
    inodes: set[int] = field(default_factory=set)
    descriptors: dict[int, str] = field(default_factory=dict)
    mounts: list[Mount] = field(default_factory=list)
    network_namespace: str = ""
    environment: str = ""
    has_ended: bool = False

    def delta(self, since_s: float = 0.0) -> Snapshot | None:
        """Counters of the time since `since_s`; in the result, `at_s` is the length of this time. None without two
        snapshots.
        """
        spans = [one for one in self.snapshots if one.at_s >= since_s]
        if len(spans) < 2 or spans[-1].at_s <= spans[0].at_s:
            return None
        first, last = spans[0], spans[-1]
        return Snapshot(
            *(getattr(last, name) - getattr(first, name) for name in Snapshot.__dataclass_fields__),
        )

    def mount_of(self, path: str) -> Mount | None:
        """Return the mount that contains a file of this process."""
        return find_mount(path, self.mounts)


class ProcessTree:
    """The process `root` with its descendants. With `adopts`, the tree consists of the descendants of this process,
    because orphans of a program that daemonises are reparented to this process (see `launch.py`).
    """

    def __init__(self, root: int, *, adopts: bool = False) -> None:
        self.root = root
        self.records: dict[int, ProcessRecord] = {}
        self.observers: set[int] = set()
        self.denied: Counter[str] = Counter()
        self._adopts = adopts
        self._top = os.getpid() if adopts else root
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")
        self._look_from = 0

    def live(self) -> list[ProcessRecord]:
        """The processes that have not ended at the last refresh."""
        return [record for record in self.records.values() if not record.has_ended]

    def refresh(self) -> None:
        """Find new processes, and read the counters of all."""
        pids = self._descendants()
        now_s = time.monotonic()
        for record in self.records.values():
            record.has_ended = record.has_ended or record.pid not in pids
        for pid in pids:
            self._read_process(pid, now_s)

    def _descendants(self) -> set[int]:
        found, to_visit = set(), [self._top]
        while to_visit:
            pid = to_visit.pop()
            if pid in found or pid in self.observers:
                continue
            found.add(pid)
            with suppress(OSError):
                for tid in os.listdir(f"/proc/{pid}/task"):
                    text = read_text(f"/proc/{pid}/task/{tid}/children")
                    to_visit += [int(child) for child in (text or "").split()]
        return found - {os.getpid()} if self._adopts else found

    def _read_process(self, pid: int, now_s: float) -> None:
        stat = parse_stat(read_text(f"/proc/{pid}/stat") or "")
        if stat is None or stat.state in ("Z", "X"):
            if pid in self.records:
                self.records[pid].has_ended = True
            return
        record = self.records.get(pid)
        if record is None or record.start_ticks != stat.start_ticks:
            record = self.records[pid] = ProcessRecord(pid, stat.parent, stat.start_ticks)
        if len(record.snapshots) < 3 or len(record.snapshots) % 8 == 0:  # exec changes the identity, usually early
            self._identify(record)
        io_text = read_text(f"/proc/{pid}/io")
        if io_text is None:
            self.denied["io"] += 1
        io = parse_io(io_text or "")
        record.parent = stat.parent
        record.most_threads = max(record.most_threads, stat.threads)
        record.rss_bytes = max(record.rss_bytes, stat.rss_pages * self._page_bytes)
        record.snapshots.append(
            Snapshot(
                at_s=now_s,
                cpu_ticks=stat.user_ticks + stat.system_ticks,
                read_chars=io.get("rchar", 0),
                read_calls=io.get("syscr", 0),
                read_bytes=io.get("read_bytes", 0),
            )
        )
        with suppress(OSError):
            for tid in os.listdir(f"/proc/{pid}/task")[:_MAX_THREADS]:
                self._read_thread(record, int(tid), now_s)

    def _identify(self, record: ProcessRecord) -> None:
        pid = record.pid
        arguments = (read_text(f"/proc/{pid}/cmdline") or "").rstrip("\0").split("\0")
        record.command = " ".join(redact_arguments(arguments)).strip() or record.command
        with suppress(OSError):
            record.network_namespace = os.readlink(f"/proc/{pid}/ns/net")
        exe = ""
        with suppress(OSError):
            exe = os.readlink(f"/proc/{pid}/exe")
        record.is_python = "python" in PurePosixPath(exe).name or "libpython" in (read_text(f"/proc/{pid}/maps") or "")
        # The environment is kept only to detect the rank. It can contain secrets, so it is never part of a result.
        record.environment = read_text(f"/proc/{pid}/environ") or record.environment
        text = read_text(f"/proc/{pid}/mountinfo")
        if text:
            record.mounts = parse_mountinfo(text)

    def _read_thread(self, record: ProcessRecord, tid: int, now_s: float) -> None:
        text = read_text(f"/proc/{record.pid}/task/{tid}/schedstat")
        if text is None:
            return
        thread = record.threads.get(tid)
        if thread is None:
            comm = (read_text(f"/proc/{record.pid}/task/{tid}/comm") or "").strip()
            thread = record.threads[tid] = ThreadRecord(tid, comm)
        thread.times.append((now_s, *parse_schedstat(text)))

    def read_descriptors(self) -> None:
        """Read the open files of all processes: data files with their positions, and sockets."""
        for record in self.live():
            try:
                names = os.listdir(f"/proc/{record.pid}/fd")
            except OSError:
                self.denied["fd"] += 1
                continue
            seen = {}
            for name in names:
                with suppress(OSError, ValueError):
                    seen[int(name)] = os.readlink(f"/proc/{record.pid}/fd/{name}")
            record.descriptors = seen
            for fd, target in seen.items():
                if target.startswith("socket:["):
                    record.inodes.add(int(target[8:-1]))
                elif _is_data(target):
                    self._note_file(record, fd, target)

    def _note_file(self, record: ProcessRecord, fd: int, path: str) -> None:
        record.files[path] += 1
        text = read_text(f"/proc/{record.pid}/fdinfo/{fd}") or ""
        if text.startswith("pos:"):
            position = int(text.split(None, 2)[1])
            before = record.positions.get((fd, path))
            if before is not None and position > before:
                record.file_bytes[path] += position - before
            record.positions[fd, path] = position

    def look(self) -> None:
        """Read the state of the next `_LOOKED_AT` threads in turn, and record the call in which each one is blocked."""
        threads = [(record, thread) for record in self.live() for thread in _main_first(record)]
        if not threads:
            return
        count = min(_LOOKED_AT, len(threads))
        start = self._look_from % len(threads)
        self._look_from += count
        for index in range(count):
            self._look_at(*threads[(start + index) % len(threads)])

    def _look_at(self, record: ProcessRecord, thread: ThreadRecord) -> None:
        text = read_text(f"/proc/{record.pid}/task/{thread.tid}/stat")
        if text is None:
            return
        state = text[text.rfind(")") + 2 : text.rfind(")") + 3]
        thread.looks += 1
        if state not in ("S", "D"):
            return
        text = read_text(f"/proc/{record.pid}/task/{thread.tid}/syscall")
        if text is None:
            self.denied["syscall"] += 1
            return
        call = parse_syscall(text, _MACHINE)
        if call is not None and (call.name != "page_fault" or state == "D"):
            thread.calls[call.name, _target(record, call)] += 1


def _main_first(record: ProcessRecord) -> list[ThreadRecord]:
    """The threads of a process that can matter: the main thread, and all threads that have used a core."""
    return [
        thread
        for tid, thread in record.threads.items()
        if tid == record.pid or (thread.times and thread.times[-1][1] > 5_000_000)
    ]


def _target(record: ProcessRecord, call: BlockedCall) -> str:
    """Kind of the descriptor of a call: `socket`, `pipe`, or the path of a file."""
    if call.fd is None:
        return ""
    target = record.descriptors.get(call.fd)
    if target is None:
        with suppress(OSError):
            target = os.readlink(f"/proc/{record.pid}/fd/{call.fd}")
    target = target or ""
    return target.split(":[", 1)[0] if ":[" in target else target


def _is_data(path: str) -> bool:
    return path.startswith("/") and not path.startswith(("/dev/", "/proc/", "/sys/")) and not path.endswith(_CODE)


def read_text(path: str) -> str | None:
    """Text of a file of /proc; None if it has disappeared or cannot be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        data = b""
        while chunk := os.read(fd, 1 << 16):  # some files come in pieces of less than a page
            data += chunk
        return data.decode(errors="replace")
    except OSError:
        return None
    finally:
        os.close(fd)

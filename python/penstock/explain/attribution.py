# SPDX-License-Identifier: Apache-2.0
"""Divides the time of each thread into classes, and finds the consumers, the loaders and the loaders' bottleneck.

Stacks show the code in which a thread is. The kernel reports whether the thread ran or was blocked, and in which call.
If a stack and the kernel disagree, the kernel is right: a thread that is blocked in a read of a file does not
decompress.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.explain.frame_rules import classify

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from penstock.explain.frame_rules import Frame
    from penstock.explain.stacks import ThreadStack

__all__ = [
    "Attributed",
    "Loaders",
    "ThreadTime",
    "attribute",
    "blocked_class",
    "bottleneck",
    "correct",
    "critical_shares",
    "thread_times",
]

_NUMBERS = re.compile(r"[-_ ]*\d+")
_CPU_CLASSES = ("decompression", "decoding", "python_workers", "model", "other", "host_to_device")
_FILE_CALLS = ("read", "pread64", "readv", "preadv")
_OPEN_CALLS = (
    "openat",
    "openat2",
    "stat",
    "lstat",
    "newfstatat",
    "statx",
    "fstat",
    "getdents",
    "getdents64",
    "faccessat2",
)
_RECEIVE_CALLS = ("recvfrom", "recvmsg", "read", "readv")
_PASSIVE = ("futex", "poll", "ppoll", "epoll_wait", "epoll_pwait", "select", "pselect6", "read", "recvfrom", "recvmsg")
# Minimum number of readings of a thread's kernel state. With fewer, the readings do not correct the thread's stacks.
_MIN_LOOKS = 15
# The weight of a group is its busy share to this power. The busiest group decides, unless others are nearly as busy.
_SHARPNESS = 4
# A smaller difference between two shares can be sampling noise.
_NOISE = 0.05


@dataclass(slots=True)
class ThreadTime:
    """Time of one thread by class, in samples. After corrections, numbers of samples can be fractions."""

    pid: int
    tid: int
    name: str
    origin: str
    samples: Counter[str] = field(default_factory=Counter)
    flags: Counter[str] = field(default_factory=Counter)
    inline: Counter[str] = field(default_factory=Counter)
    passive_share: float = 0.0
    cpu_share: float | None = None

    @property
    def total(self) -> float:
        """Number of samples, start-up excluded."""
        return sum(n for name, n in self.samples.items() if name != "startup")

    def share(self, *names: str) -> float:
        """Share of the named classes in the thread's time, start-up excluded."""
        return sum(self.samples[name] for name in names) / self.total if self.total > 0 else 0.0

    @property
    def busy_share(self) -> float:
        """Share of the time in which the thread did not wait for another thread or process."""
        return 1.0 - self.share("wait") if self.total > 0 else 0.0

    def move(self, share: float, sources: Iterable[str], target: str) -> None:
        """Move a share of the thread's time to the class `target`, from `sources` in proportion to their sizes."""
        names = [name for name in sources if self.samples[name] > 0 and name != target]
        have = sum(self.samples[name] for name in names)
        moved = min(share * self.total, have)
        if moved <= 0:
            return
        for name in names:
            self.samples[name] -= moved * self.samples[name] / have  # type: ignore[assignment]
        self.samples[target] += moved  # type: ignore[assignment]


def thread_times(
    pid: int,
    counts: Mapping[ThreadStack, int],
    text_of: Callable[[Frame], str],
    around: Callable[[Frame], str],
) -> dict[int, ThreadTime]:
    """Classify the stacks of a process; return the time of each thread, by thread id.

    Threads without an id (Python before 3.11) are numbered from -1 downwards by their name.
    """
    found: dict[int, ThreadTime] = {}
    origins: dict[int, Counter[str]] = defaultdict(Counter)
    names: dict[str, int] = {}
    for stack, count in counts.items():
        tid = stack.tid or names.setdefault(stack.thread, pid if stack.thread == "MainThread" else -len(names) - 1)
        thread = found.setdefault(tid, ThreadTime(pid, tid, stack.thread, ""))
        kind = classify(stack.frames, text_of, around)
        thread.samples[kind.name] += count
        if kind.name != "startup":
            origins[tid][kind.origin] += count
        if kind.is_inline:
            thread.inline[kind.name] += count
        thread.flags["is_worker"] += count * kind.is_worker
        thread.flags["is_launcher"] += count * kind.is_launcher
    for tid, thread in found.items():
        if origins[tid]:
            thread.origin = origins[tid].most_common(1)[0][0]
        if thread.origin.startswith("_bootstrap ("):  # a thread of the standard library
            thread.origin = _NUMBERS.sub("", thread.name) or thread.origin
    return found


def blocked_class(name: str, target: str) -> str | None:
    """Class of a blocked call: `file_read`, `metadata`, or `network` (a receive from a socket); None for other calls.

    Args:
        target: Kind of the call's descriptor: `socket`, `pipe`, the path of a file, or empty.
    """
    is_file = target.startswith("/") and not target.startswith(("/dev/", "/proc/"))
    if name == "page_fault" or (name in _FILE_CALLS and is_file):
        return "file_read"
    if name in _OPEN_CALLS:
        return "metadata"
    return "network" if target == "socket" and name in _RECEIVE_CALLS else None


def correct(thread: ThreadTime, looks: int, calls: Mapping[tuple[str, str], int], cpu_share: float | None) -> None:
    """Correct a thread's classes by the system calls in which the kernel showed the thread as blocked.

    Args:
        looks: Number of readings of the thread's kernel state.
        calls: Blocked calls with the kind of their descriptor, and the number of readings with each.
        cpu_share: Share of the time in which the thread was on a core or ready for a core; None if unknown.
    """
    thread.cpu_share = cpu_share
    if looks < _MIN_LOOKS or thread.total <= 0:
        _resolve(thread, 0.0, 0.0)
        return
    blocked: Counter[str] = Counter()
    for (name, target), count in calls.items():
        blocked[blocked_class(name, target) or "other"] += count
    file_share, open_share, socket_share = (blocked[name] / looks for name in ("file_read", "metadata", "network"))
    thread.passive_share = sum(n for (name, _), n in calls.items() if name in _PASSIVE) / looks
    _resolve(thread, file_share, open_share)
    cpu_classes = [name for name in _CPU_CLASSES if name != "model"]
    # The kernel saw the thread blocked on a file or a socket, while its stack showed code that would use a core.
    for share, name, known in (
        (file_share, "file_read", ("file_read",)),
        (open_share, "metadata", ("metadata",)),
        (socket_share, "transfer", ("first_byte", "transfer", "network", "throttle", "other_ranks", "wait")),
    ):
        excess = share - thread.share(*known)
        if excess > _NOISE:
            thread.move(excess, (*cpu_classes, "model") if name == "file_read" else cpu_classes, name)
    # Reads that never block come from the page cache, so the thread copies data and does not wait.
    if thread.share("file_read") > file_share + _NOISE and file_share < 0.5 * thread.share("file_read"):
        cpu = cpu_share if cpu_share is not None else 1.0
        known_cpu = thread.share(*_CPU_CLASSES)
        thread.move(min(thread.share("file_read") - file_share, max(0.0, cpu - known_cpu)), ("file_read",), "decoding")


def _resolve(thread: ThreadTime, file_share: float, open_share: float) -> None:
    """Divide `open_or_read` in proportion to the blocked calls; without a blocked call, all of it counts as reads."""
    both = file_share + open_share
    opens = open_share / both if both > 0 else 0.0
    share = thread.share("open_or_read")
    thread.move(share * opens, ("open_or_read",), "metadata")
    thread.move(share, ("open_or_read",), "file_read")


def resolve_network(threads: Iterable[ThreadTime], receiving_share: float) -> None:
    """Divide `network` between first byte and transfer, in proportion to the known samples of the thread. If the thread
    has too few known samples, the share of intervals in which bytes arrived counts as transfer.
    """
    for thread in threads:
        share = thread.share("network")
        if share <= 0:
            continue
        known = thread.share("first_byte", "transfer")
        transfer = thread.share("transfer") / known if known > 0.2 * share else receiving_share
        thread.move(share * transfer, ("network",), "transfer")
        thread.move(share, ("network",), "first_byte")


def find_collective_waits(consumer: ThreadTime, *, is_distributed: bool) -> None:
    """Move time from the class `model` to `other_ranks`, because DistributedDataParallel waits for other ranks within
    `backward`.

    During such a wait, the kernel shows the thread as blocked, but none of its stacks shows a wait.
    """
    if not is_distributed:
        return
    excess = consumer.passive_share - consumer.share("wait", "other_ranks", "first_byte", "transfer", "network")
    if consumer.cpu_share is not None:
        excess = min(excess, 1.0 - consumer.cpu_share)
    if excess > _NOISE:
        consumer.move(excess, ("model",), "other_ranks")


@dataclass(frozen=True, slots=True)
class Loaders:
    """The loaders of one consumer.

    Attributes:
        shares: Classes of the bottleneck's busy time; they add up to 1. Empty without loaders.
        busy_share: How busy the busiest group of threads is.
        threads: Number of threads of that group.
        origin: Function that these threads run.
        all_shares: Classes of all loaders' time, with `idle`.
        in_flight: Mean number of loader threads that wait for a store at a time.
    """

    shares: dict[str, float]
    busy_share: float = 0.0
    threads: int = 0
    origin: str = ""
    all_shares: dict[str, float] = field(default_factory=dict)
    in_flight: float = 0.0


def bottleneck(threads: Iterable[tuple[ThreadTime, bool]]) -> Loaders:
    """Find the group of loader threads that limits a pipeline: the group that waits least for other threads.

    Args:
        threads: Loader threads, each with whether it belongs to a worker process.
    """
    groups: dict[tuple[str, bool], list[ThreadTime]] = defaultdict(list)
    for thread, is_process in threads:
        if thread.total > 0:
            groups[thread.origin, is_process].append(thread)
    if not groups:
        return Loaders({})
    weights, total = Counter[str](), 0.0
    best: tuple[float, tuple[str, bool]] | None = None
    everything: Counter[str] = Counter()
    in_flight = 0.0
    for key, members in groups.items():
        samples: Counter[str] = Counter()
        for thread in members:
            for name, n in thread.samples.items():
                if name != "startup":
                    samples[name] += n
            in_flight += thread.share("first_byte", "transfer", "network", "throttle")
        everything.update(samples)
        length = sum(samples.values())
        busy = 1.0 - samples["wait"] / length
        if best is None or busy > best[0]:
            best = (busy, key)
        active = {name: n for name, n in samples.items() if name != "wait" and n > 0}
        if active:
            weight = busy**_SHARPNESS
            total += weight
            for name, n in active.items():
                weights[name] += weight * n / sum(active.values())  # type: ignore[assignment]
    assert best is not None
    whole = sum(everything.values())
    return Loaders(
        shares={name: value / total for name, value in weights.items()} if total > 0 else {},
        busy_share=best[0],
        threads=len(groups[best[1]]),
        origin=best[1][0],
        all_shares={("idle" if name == "wait" else name): n / whole for name, n in everything.items()},
        in_flight=in_flight,
    )


def critical_shares(consumer: ThreadTime, loaders: Loaders) -> dict[str, float]:
    """Classes of a consumer's time, with its waits for loaders divided in proportion to the loaders' own time. All
    classes add up to 1.
    """
    shares = {name: n / consumer.total for name, n in consumer.samples.items() if name != "startup" and n > 0}
    waits = shares.pop("wait", 0.0)
    if loaders.shares:
        for name, value in loaders.shares.items():
            # Loader code that matches no rule counts as preparation of samples.
            target = "decoding" if name in ("model", "other") else name
            shares[target] = shares.get(target, 0.0) + waits * value
    elif waits > 0:
        shares["worker_wait"] = waits
    return shares


@dataclass(frozen=True, slots=True)
class Attributed:
    """One consumer with its loaders."""

    pid: int
    consumer: ThreadTime
    loaders: Loaders
    critical: dict[str, float]
    rank: int | None = None

    @property
    def shares(self) -> dict[str, float]:
        """The consumer's own classes; they add up to 1."""
        total = self.consumer.total
        return {
            ("worker_wait" if name == "wait" else name): n / total
            for name, n in self.consumer.samples.items()
            if name != "startup" and n > 0
        }


def attribute(
    pid: int,
    consumer: ThreadTime,
    loaders: Iterable[tuple[ThreadTime, bool]],
    *,
    is_distributed: bool,
    receiving_share: float,
    rank: int | None = None,
) -> Attributed:
    """Divide one consumer's time into classes. The threads must already be corrected."""
    members = list(loaders)
    resolve_network((consumer, *(thread for thread, _ in members)), receiving_share)
    find_collective_waits(consumer, is_distributed=is_distributed)
    found = bottleneck(members)
    return Attributed(pid, consumer, found, critical_shares(consumer, found), rank)

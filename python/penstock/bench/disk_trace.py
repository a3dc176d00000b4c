# SPDX-License-Identifier: Apache-2.0
"""Disk trace: samples a disk while a command runs, and reports which of the disk's limits was hit.

Starts only the given command and prints nothing.
"""

from __future__ import annotations

import itertools
import threading
import time
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.bench.block_limits import read_limits
from penstock.bench.diskstats import Counters, read_counters
from penstock.bench.rows import End, Row, Sample
from penstock.child_process import child_process
from penstock.errors import ConfigError, NotFound, SystemFault

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["DiskLimits", "DiskSample", "DiskTrace", "judge", "trace"]

# A sample is at a limit if it reaches this share of the limit. Throttled disks deliver slightly less than their
# configured limit.
_AT_LIMIT = 0.93
# A limit is hit if the disk is at the limit for at least this share of the time in which the disk is used.
_BOUND = 0.3
_USED = 0.05
_GRACE_S = 10.0
_NAMES = {"bytes": "throughput", "ios": "IOPS"}


class DiskLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits per second and their source. With `is_shared`, reads and writes share each limit; otherwise each direction
    has its own.
    """

    ios_per_s: float | None = None
    bytes_per_s: float | None = None
    source: str = "not stated"
    is_shared: bool = True


class DiskSample(msgspec.Struct, frozen=True, kw_only=True):
    """One sampling interval. `utilisation` is the share of time with requests in flight; `queue` is the mean number of
    these requests.
    """

    at_s: float
    seconds: float
    read_bytes_per_s: float
    write_bytes_per_s: float
    read_ios_per_s: float
    write_ios_per_s: float
    utilisation: float
    queue: float

    def used(self, what: str, *, shared: bool) -> float:
        read, write = getattr(self, f"read_{what}_per_s"), getattr(self, f"write_{what}_per_s")
        return float(read + write if shared else max(read, write))


class DiskTrace(msgspec.Struct, frozen=True, kw_only=True):
    """Trace of one device during one run.

    Attributes:
        at_limit: Share of the device's used time at each limit ("bytes", "ios").
        binding_limit: "throughput", "IOPS", "device" (saturated, but below every known limit) or "none".
        exit_code: Exit code of the command.
    """

    schema_version: int = 2
    device: str
    limits: DiskLimits
    samples: tuple[DiskSample, ...]
    at_limit: dict[str, float]
    binding_limit: str
    seconds: float
    read_bytes: int
    write_bytes: int
    ios: int
    exit_code: int
    program: str

    def row(self) -> Row:
        """Return the trace as a row for reports. The command line is omitted, because it may contain a secret."""
        total = self.read_bytes + self.write_bytes
        limits = {"bytes_per_s": self.limits.bytes_per_s, "ios_per_s": self.limits.ios_per_s}
        return Row(
            operation="TRACE",
            path_type="blockdev",
            last=End(
                time_s=self.seconds,
                ios=self.ios,
                bytes=total,
                ios_per_s=self.ios / self.seconds,
                bytes_per_s=total / self.seconds,
            ),
            series=tuple(
                Sample(
                    at_s=sample.at_s,
                    bytes_per_s=sample.used("bytes", shared=self.limits.is_shared),
                    ios_per_s=sample.used("ios", shared=self.limits.is_shared),
                    busy=sample.utilisation,
                    queue=sample.queue,
                )
                for sample in self.samples
            ),
            limits={name: value for name, value in limits.items() if value is not None},
            label=self.device,
            source=self.limits.source,
            raw={"binding_limit": self.binding_limit, "program": self.program},
        )


def _sample(before: Counters, now: Counters, began_s: float) -> DiskSample:
    seconds = max(now.at_s - before.at_s, 1e-9)
    return DiskSample(
        at_s=now.at_s - began_s,
        seconds=seconds,
        read_bytes_per_s=(now.read_bytes - before.read_bytes) / seconds,
        write_bytes_per_s=(now.write_bytes - before.write_bytes) / seconds,
        read_ios_per_s=(now.read_ios - before.read_ios) / seconds,
        write_ios_per_s=(now.write_ios - before.write_ios) / seconds,
        utilisation=min(1.0, (now.busy_s - before.busy_s) / seconds),
        queue=(now.waited_s - before.waited_s) / seconds,
    )


def judge(samples: Sequence[DiskSample], limits: DiskLimits) -> tuple[dict[str, float], str]:
    """Return the share of the used time at each limit, and the limit that was hit."""
    known = {
        what: limit for what, limit in (("bytes", limits.bytes_per_s), ("ios", limits.ios_per_s)) if limit is not None
    }

    def has(sample: DiskSample, share: float) -> list[str]:
        """Limits of which the sample uses at least `share`."""
        return [what for what, limit in known.items() if sample.used(what, shared=limits.is_shared) >= share * limit]

    # A fast device with a low limit is rarely busy. Therefore, the disk also counts as used in a sample that reaches a
    # large enough share of a limit.
    used = [sample for sample in samples if sample.utilisation >= _USED or has(sample, _USED)]
    total = sum(sample.seconds for sample in used)
    shares: dict[str, float] = {}
    if total > 0:
        at = [(sample.seconds, has(sample, _AT_LIMIT)) for sample in used]
        shares = {what: sum(seconds for seconds, reached in at if what in reached) / total for what in known}
    worst = max(shares, key=lambda what: shares[what], default=None)
    if worst is not None and shares[worst] >= _BOUND:
        return shares, _NAMES[worst]
    saturated = sum(sample.seconds for sample in used if sample.utilisation >= _AT_LIMIT)
    # Throttled requests wait before they reach the device, so utilisation alone does not reveal a limit.
    return shares, "device" if total > 0 and saturated / total >= _BOUND else "none"


def limits_in_force(device: str) -> DiskLimits:
    """Limits that control groups set on the device. If reads and writes differ, the lower one is used."""
    number = read_counters()[device].number
    found = read_limits(number)
    moved = [rate for rate in (found.read_bytes_per_s, found.write_bytes_per_s) if rate]
    ios = [rate for rate in (found.read_ios_per_s, found.write_ios_per_s) if rate]
    if not moved and not ios:
        return DiskLimits()
    return DiskLimits(
        ios_per_s=min(ios, default=None),
        bytes_per_s=min(moved, default=None),
        source="control groups",
        is_shared=False,
    )


def trace(
    command: Sequence[str], devices: Sequence[str], *, limits: DiskLimits | None = None, every_s: float = 0.25
) -> list[DiskTrace]:
    """Run a command to completion and sample the devices while it runs.

    Args:
        command: Program and arguments; run without a shell.
        devices: Names as in /proc/diskstats.
        limits: Limits of each device; by default, the limits that its control groups set.
    Raises:
        NotFound: The program or a device does not exist.
        ConfigError: The command is empty.
        SystemFault: The command cannot be started.
    """
    if not command:
        raise ConfigError("no command: give one after `--`", where="CMD")
    known = read_counters()
    if missing := [device for device in devices if device not in known]:
        raise NotFound(f"block device `{missing[0]}` does not exist", where=missing[0])
    stated = {device: limits or limits_in_force(device) for device in devices}
    kept: list[dict[str, Counters]] = [known]
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(every_s):
            kept.append(read_counters())

    try:
        with child_process(command, grace_s=_GRACE_S) as process:
            began_s = time.monotonic()
            watcher = threading.Thread(target=watch, name="penstock-disk-trace", daemon=True)
            watcher.start()
            try:
                code = process.wait()
            finally:
                stop.set()
                watcher.join()
    except FileNotFoundError:
        raise NotFound(f"program `{command[0]}` not found", where=command[0]) from None
    except OSError as error:
        raise SystemFault(f"{command[0]} cannot be started: {error.strerror}", where=command[0]) from None
    kept.append(read_counters())
    return [_trace(device, stated[device], kept, began_s, code, command) for device in devices]


def _trace(
    device: str, limits: DiskLimits, kept: list[dict[str, Counters]], began_s: float, code: int, command: Sequence[str]
) -> DiskTrace:
    counters: list[Any] = [one[device] for one in kept if device in one]
    samples = tuple(_sample(a, b, began_s) for a, b in itertools.pairwise(counters) if b.at_s > a.at_s)
    shares, binding_limit = judge(samples, limits)
    first, last = counters[0], counters[-1]
    return DiskTrace(
        device=device,
        limits=limits,
        samples=samples,
        at_limit=shares,
        binding_limit=binding_limit,
        seconds=last.at_s - began_s,
        read_bytes=last.read_bytes - first.read_bytes,
        write_bytes=last.write_bytes - first.write_bytes,
        ios=last.ios - first.ios,
        exit_code=code,
        program=command[0],
    )

# SPDX-License-Identifier: Apache-2.0
"""Synthetic sweeps with known limits, made by several storage models; the classifier fits none of these models.

Each model computes the rate of a closed loop of `c` workers on objects of `size` bytes, and the resource that limits
it. `margin` is the ratio of the limiting time to the next largest one: 2 means twice as slow. Cells near 1 have no
right answer.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

import msgspec

from penstock.bench.rows import End, Latency, Row

MIB = 1 << 20


@dataclass
class Truth:
    regime: str
    margin: float
    retrograde: bool


@dataclass
class Storage:
    """Service times of one operation: uncontended seconds and shared resources. `law` defines how the parts add up."""

    law: str
    t_op: float
    stream: float
    metadata: float
    bandwidth: float
    contention: float = 0.0
    crowd: float = 0.0
    operations: str = "metadata"

    def parts(self, c, size):
        own = self.t_op + size / self.stream
        # Above the number of workers at which it saturates, a contended server slows down with each further worker.
        knee = own * self.metadata
        over = max(0.0, c / max(knee, 1.0) - 1)
        op = c / self.metadata * (1 + self.contention * over)
        most = own * self.bandwidth / size
        byte = c * size / self.bandwidth * (1 + self.crowd * max(0.0, c / max(most, 1.0) - 1))
        return {"concurrency": own, self.operations: op, "bandwidth": byte}

    def time(self, c, size):
        parts = list(self.parts(c, size).values())
        if self.law == "slowest":
            return max(parts)
        if self.law == "sum":
            return sum(parts)
        return self._queues(c, size)

    def _queues(self, c, size):
        """Exact mean value analysis of a closed network: the uncontended wait, then two queues."""
        own = self.t_op + size / self.stream
        demands = [
            self.parts(c, size)[self.operations] / c,
            self.parts(c, size)["bandwidth"] / c,
        ]
        queue = [0.0, 0.0]
        total = own
        for n in range(1, c + 1):
            waits = [d * (1 + q) for d, q in zip(demands, queue, strict=True)]
            total = own + sum(waits)
            queue = [n / total * w for w in waits]
        return total

    def truth(self, c, size, threads):
        parts = self.parts(c, size)
        order = sorted(parts, key=lambda name: -parts[name])
        rate = c / self.time(c, size)
        best = max((t / self.time(t, size) for t in threads if t < c), default=0.0)
        return Truth(order[0], parts[order[0]] / parts[order[1]], best > rate), 1 - rate / best if best else 0.0


@dataclass
class Sweep:
    rows: list[Row] = field(default_factory=list)
    truths: dict[tuple[int, int], Truth] = field(default_factory=dict)
    drops: dict[tuple[int, int], float] = field(default_factory=dict)


def row(operation, c, size, per_s, *, seconds=30.0, hosts=1, **more):
    """A row as elbencho would write it."""
    files = max(1.0, per_s * seconds)
    block = more.pop("block_size_bytes", size)
    end = End(
        time_s=files / per_s,
        entries=files,
        bytes=files * size,
        entries_per_s=per_s,
        bytes_per_s=per_s * size,
        ios_per_s=per_s * max(1, size // block),
        cpu=more.pop("cpu", None),
    )
    return Row(
        operation=operation,
        hosts=hosts,
        threads=c // hosts,
        file_size_bytes=size,
        block_size_bytes=block,
        first=end,
        last=end,
        **more,
    )


def make(storage, threads, sizes, *, noise=0.0, seed=0, operation="READ", **more):
    """A sweep over a storage; each rate has a lognormal error of `noise`."""
    draw = random.Random(seed)
    sweep = Sweep()
    for size in sizes:
        for c in threads:
            per_s = c / storage.time(c, size) * math.exp(draw.gauss(0, noise))
            sweep.rows.append(row(operation, c, size, per_s, **more))
            sweep.truths[c, size], sweep.drops[c, size] = storage.truth(c, size, threads)
    return sweep


def draw(seed, *, laws=("slowest", "sum", "queues"), contended=None, held_out=False):
    """A random storage between a laptop's disk and a pool: parameters are log-uniform over decades.

    `held_out` draws from the ranges on either side of those that were used to tune the thresholds.
    """
    at = random.Random(seed)

    def between(low, high):
        if held_out:  # a factor of 5 on either side, not the middle
            low, high = at.choice([(low / 5, low), (high, high * 5)])
        return math.exp(at.uniform(math.log(low), math.log(high)))

    t_op = between(2e-4, 3e-2)
    metadata = between(3, 100) / t_op
    bandwidth = between(3e8, 3e10)
    stream = bandwidth / between(2, 40)
    is_contended = at.random() < 0.4 if contended is None else contended
    return Storage(
        law=at.choice(laws),
        t_op=t_op,
        stream=stream,
        metadata=metadata,
        bandwidth=bandwidth,
        contention=between(0.05, 0.6) if is_contended else 0.0,
        crowd=between(0.02, 0.2) if is_contended and at.random() < 0.5 else 0.0,
    )


def backing_off(per_s_limit, t_op, c, backoff_s=0.4):
    """Rate and latencies of a store with a request limit: rejected requests wait and retry, accepted ones are quick."""
    free = c / t_op
    if free <= per_s_limit:
        return free, Latency(min_us=0.8e6 * t_op, mean_us=1e6 * t_op, max_us=4e6 * t_op), 0.0
    mean = c / per_s_limit
    # A request is served in t_op, or rejected and retried after a back-off. The mean follows from the limit, and the
    # maximum from the doubling of the back-off.
    refused = (mean - t_op) / (mean - t_op + backoff_s)
    longest = max(backoff_s * 16, 20 * mean)
    return per_s_limit, Latency(min_us=0.8e6 * t_op, mean_us=1e6 * mean, max_us=1e6 * longest), refused


def refusing(seed, threads, *, noise=0.05, counted=True, held_out=False):
    """A sweep over an object store with a request limit; its only other shared limit is bandwidth."""
    at = random.Random(seed)
    span = (0.2, 5.0) if held_out else (0.5, 2.0)
    limit = 2_000 * math.exp(at.uniform(*map(math.log, span)))
    t_op = 0.02 * math.exp(at.uniform(*map(math.log, span)))
    stream, bandwidth = 6e7, limit * 6 * MIB
    sweep = Sweep()
    for size in (64 * 1024, MIB, 32 * MIB):
        own = t_op + size / stream
        for c in threads:
            per_s, latency, refused = backing_off(limit, own, c)
            most = bandwidth / size
            terms = {"concurrency": 1 / (c / own), "throttle": 1 / limit, "bandwidth": 1 / most}
            order = sorted(terms, key=lambda name: -terms[name])
            if order[0] == "bandwidth":
                per_s, refused = most, 0.0
                mean = 1e6 * c / most
                latency = Latency(min_us=0.5 * mean, mean_us=mean, max_us=4 * mean)
            per_s *= math.exp(at.gauss(0, noise))
            one = row("READ", c, size, per_s, path_type="object", entry_latency=latency)
            if counted:
                lost = round(one.last.entries * refused / (1 - refused))
                one = msgspec.structs.replace(one, errors_by_class={"503": lost, "5xx": 0}, retries=lost)
            sweep.rows.append(one)
            sweep.truths[c, size] = Truth(order[0], terms[order[0]] / terms[order[1]], retrograde=False)
    return sweep


def spent_client(seed, threads, sizes, *, noise=0.05, held_out=False):
    """A sweep in which the client's processors are the first limit: they have a cost per byte and per file."""
    at = random.Random(seed)
    storage = draw(seed, laws=("slowest",), contended=False, held_out=held_out)
    per_byte, per_file = at.uniform(1.5, 5) / storage.bandwidth, at.uniform(1.5, 5) / storage.metadata
    sweep = Sweep()
    for size in sizes:
        cost = per_file + size * per_byte
        for c in threads:
            own = storage.t_op + size / storage.stream
            per_s = min(c / own, 1 / cost) * math.exp(at.gauss(0, noise))
            busy = min(1.0, max(0.0, min(c / own, 1 / cost) * cost + at.gauss(0, 0.02)))
            sweep.rows.append(row("READ", c, size, per_s, cpu=busy))
            ratio = c * cost / own
            sweep.truths[c, size] = Truth(
                "client" if ratio > 1 else "concurrency", max(ratio, 1 / ratio), retrograde=False
            )
    return sweep


def disk(seed, threads, blocks, *, noise=0.05, held_out=False):
    """A sweep of random reads from a device with limits on operations and on bytes."""
    at = random.Random(seed)
    span = (100, 1_000_000) if held_out else (500, 200_000)
    operations = math.exp(at.uniform(*map(math.log, span)))
    storage = Storage(
        law="slowest",
        t_op=at.uniform(3, 40) / operations,
        stream=math.inf,
        metadata=operations,
        bandwidth=operations * math.exp(at.uniform(math.log(8e3), math.log(1e6))),
        operations="iops",
    )
    sweep = make(storage, threads, blocks, noise=noise, seed=seed)
    sweep.rows = [
        msgspec.structs.replace(
            r,
            path_type="blockdev",
            random=True,
            file_size_bytes=1 << 38,
            last=msgspec.structs.replace(r.last, ios_per_s=r.last.entries_per_s, entries_per_s=None, entries=None),
            first=None,
        )
        for r in sweep.rows
    ]
    return sweep

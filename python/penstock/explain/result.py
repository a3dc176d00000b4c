# SPDX-License-Identifier: Apache-2.0
"""Schema of the result of `penstock explain`: the verdict, its evidence, the cost and the remedies.

Fields are only ever added. A reader ignores unknown fields and rejects a `schema_version` above its own. Numbers are
plain: seconds, bytes, shares from 0 to 1. Texts are ready to print; they contain no credentials.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from penstock.errors import ConfigError

__all__ = [
    "CLASSES",
    "CLASS_TEXTS",
    "SCHEMA_VERSION",
    "Ceiling",
    "Cost",
    "Endpoint",
    "Evidence",
    "Explanation",
    "FileSystem",
    "Kind",
    "Overhead",
    "ProcessFacts",
    "Program",
    "Remedy",
    "TimeShare",
    "Verdict",
    "decode",
    "encode",
]

SCHEMA_VERSION = 1

Kind = Literal[
    "storage-bandwidth",
    "storage-latency",
    "storage-metadata",
    "storage-throttled",
    "small-reads",
    "decompression",
    "decoding",
    "python-workers",
    "no-workers",
    "host-to-device",
    "model",
    "other-ranks",
    "disk",
    "healthy",
    "unknown",
]
"""The resource that the program waits for.

storage-bandwidth   bytes of a remote store or file system arrive as fast as its rate permits
storage-latency     requests without a response yet; too few are in flight
storage-metadata    open, stat and list calls
storage-throttled   back-off after the store refused requests (503, 429)
small-reads         many reads of a few kB of the same file
decompression       gzip, zlib, lz4, zstd, bz2, lzma
decoding            images, video, audio, records into arrays; transforms of samples
python-workers      pickling, queues and shared memory between worker processes
no-workers          the consumer's own thread reads and decodes: nothing runs ahead of the step
host-to-device      copies to the accelerator
model               the step of the model; the data path could deliver at least twice as fast
other-ranks         a collective operation in which another rank is late
disk                a local block device
healthy             the consumer hardly waits, and the data path is used well
unknown             too little was seen, or nothing that this version can name; `reason` states which
"""

CLASSES = (
    "model",
    "first_byte",
    "transfer",
    "throttle",
    "metadata",
    "file_read",
    "decompression",
    "decoding",
    "python_workers",
    "host_to_device",
    "other_ranks",
    "worker_wait",
    "idle",
    "other",
)
"""Classes of time of one thread. `worker_wait` is the consumer's wait for its loader, which the workers' own classes
explain; `idle` is a loader's wait for the consumer.
"""

CLASS_TEXTS = {
    "model": "the model and the loop's own work",
    "first_byte": "requests without a response yet (latency)",
    "transfer": "bytes in transit (bandwidth)",
    "throttle": "back-off after throttling by the store",
    "metadata": "open, stat and list calls",
    "file_read": "reads of files",
    "decompression": "decompression (CPU)",
    "decoding": "decoding and transforms of samples (CPU)",
    "python_workers": "pickling and queues between processes",
    "host_to_device": "copies to the device",
    "other_ranks": "waiting for other ranks",
    "worker_wait": "waiting for the loader",
    "idle": "waiting for the consumer",
    "other": "other Python code",
}


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The answer.

    Attributes:
        sentence: The answer in one sentence, with its most important numbers.
        reason: Why the verdict is this kind and not a similar kind, in one sentence.
        wait_share: Share of the consumer's time (start-up excluded) that better input would save; 0 to 1. The consumer
            is the thread that runs the training loop.
        confidence: `high`, `medium` or `low`: by the number of samples and the distance to the second candidate.
        second: The second candidate, which becomes the limit once the first is removed; None without a second
            candidate.
        subject: The endpoint, file system, rank or process that the verdict is about; None for all other verdicts.
    """

    kind: Kind
    sentence: str
    reason: str = ""
    wait_share: float = 0.0
    confidence: Literal["high", "medium", "low"] = "low"
    second: Kind | None = None
    subject: str | None = None


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """One measured quantity.

    Attributes:
        quantity: What was measured: `rate from 10.0.0.1:443`, `consumer's wait for the loader`.
        value: In `unit`: `share` (0 to 1), `s`, `bytes/s`, `requests/s`, `bytes`, `cores`, `count`.
        ceiling: Maximum of this quantity on this system, in the same unit; None if unknown.
        ceiling_source: How the ceiling was found.
        source: Where the value came from: `stacks`, `/proc/PID/io`, `TCP info`.
    """

    quantity: str
    value: float
    unit: str
    source: str
    ceiling: float | None = None
    ceiling_source: str | None = None


class TimeShare(msgspec.Struct, frozen=True, kw_only=True):
    """Time of one class (see `CLASSES`).

    Attributes:
        consumer: Share of the consumers' time, 0 to 1. All classes add up to 1.
        loaders: Share of the loaders' time (worker processes and reading threads), 0 to 1; 0 without loaders.
        critical: Share of the consumers' time after their waits for loaders were divided in proportion to the loaders'
            own time. The verdict is drawn from this column. All classes add up to 1.
    """

    name: str
    consumer: float
    loaders: float
    critical: float


class ProcessFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One process of the tree. Rates are over the observed time of the process.

    Attributes:
        role: `consumer` (runs the training loop), `worker` (a loader's process), `launcher` or `other`.
        cpu_cores: CPU seconds per second: user and system, all threads.
        run_queue_share: Share of time in which a thread was ready but had no core, summed over threads.
        read_bytes_per_s: Bytes of read calls (`rchar`), including page cache and sockets read by read().
        disk_bytes_per_s: Bytes that came from block devices (`read_bytes`).
        reads_per_s: Read calls (`syscr`).
        top: Classes of the most representative thread of the process, largest first: (class, share).
    """

    pid: int
    parent: int
    role: str
    command: str
    threads: int
    seen_s: float
    cpu_cores: float
    run_queue_share: float = 0.0
    read_bytes_per_s: float = 0.0
    disk_bytes_per_s: float = 0.0
    reads_per_s: float = 0.0
    rss_bytes: int = 0
    rank: int | None = None
    top: tuple[tuple[str, float], ...] = ()


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One remote address with a port that processes of the tree were connected to.

    Attributes:
        role: `store`, or `internal` (within the tree).
        connections: Maximum number of connections that were open at the same time.
        opened: Connections seen over the whole time. Many short connections cost one handshake each.
        receiving_share: Share of a connection's samples in which bytes had arrived since the previous sample.
        rtt_s: Median round-trip time that TCP measured; None if TCP info is not available.
        retransmits: Number of retransmitted segments, in both directions if TCP reports both.
    """

    address: str
    port: int
    role: str
    connections: int
    opened: int
    received_bytes: int
    sent_bytes: int
    rate_bytes_per_s: float
    receiving_share: float
    rtt_s: float | None = None
    retransmits: int = 0


class FileSystem(msgspec.Struct, frozen=True, kw_only=True):
    """One mounted file system on which the tree had data files open.

    Attributes:
        kind: Type of the file system as in /proc/mounts: `ext4`, `nfs4`, `fuse.s3fs`, `overlay`.
        place: `local` (block device of this node), `remote`, `fuse`, or `memory`.
        files: Distinct data files that were seen open. Libraries and the program's own code are not counted.
        read_bytes_per_s: Computed from the positions of open files. This is a lower bound, because short-lived files
            can be missed.
        blocked_share: Share of the time, 0 to 1, in which the threads that read this file system were blocked in reads.
        device: Block device of the file system, with the share of time in which requests were in flight; None if not
            local.
    """

    mount_point: str
    kind: str
    place: str
    files: int
    read_bytes_per_s: float
    blocked_share: float = 0.0
    device: str | None = None
    device_busy_share: float | None = None
    example: str | None = None


class Ceiling(msgspec.Struct, frozen=True, kw_only=True):
    """Use of one resource compared with its limit. `source` states how the limit was found."""

    resource: str
    value: float
    limit: float
    unit: str
    source: str

    @property
    def share(self) -> float:
        """Used share of the limit."""
        return self.value / self.limit if self.limit > 0 else 0.0


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """Price of the waiting, if the program ran all day as it did during the observation.

    Attributes:
        hours_lost_per_day: Hours of each day in which the consumer waits.
        price_usd_per_hour: Price of all waiting nodes per hour; None without --price.
        price_source: `--price`, or the item, region and date of the price book.
    """

    hours_lost_per_day: float
    price_usd_per_hour: float | None = None
    usd_lost_per_day: float | None = None
    price_source: str | None = None


_MAX_GAIN = 100


class Remedy(msgspec.Struct, frozen=True, kw_only=True):
    """One proposed change. Remedies are sorted by their gain.

    Attributes:
        gain: Predicted steps/s divided by measured steps/s; 1.0 means no gain.
        gain_source: Calculation of the gain, with the term that becomes the next limit.
        command: Penstock command or line of code that makes the change; None if the remedy is outside Penstock.
    """

    text: str
    gain: float
    gain_source: str
    command: str | None = None

    @property
    def gain_text(self) -> str:
        """The gain as printed text. The gain is an estimate with assumed factors, so a large gain has no decimals."""
        if self.gain > _MAX_GAIN:
            return f"more than {_MAX_GAIN}x"
        return f"{self.gain:.1f}x" if self.gain < 10 else f"{self.gain:.0f}x"


class Overhead(msgspec.Struct, frozen=True, kw_only=True):
    """Cost of observing.

    Attributes:
        wall_s: Duration of the start-up and the observation.
        cpu_s: CPU seconds of this process's collectors and of the stack sampler, start-up included.
        pause_s: Seconds in which the program was stopped for reading its stacks.
        share: (cpu_s + pause_s) / wall_s: as if the program had one core only.
        share_of_machine: cpu_s / wall_s / cores: share of all cores of the machine, without `pause_s`.
    """

    wall_s: float
    cpu_s: float
    pause_s: float
    share: float
    share_of_machine: float
    cores: int
    stack_samples: int = 0


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """The observed program.

    Attributes:
        exit_code: Exit code of the program if it ended; negative for a signal; None if it is still running, or not
            started by Penstock (--pid).
        seen_s: Length of the observation, without the start-up.
        startup_s: Length of the start-up before the observation (imports, first connections).
        ended: Whether the program ended within the observation.
        attached: Whether the program was already running (--pid).
    """

    argv: tuple[str, ...]
    pid: int
    seen_s: float
    startup_s: float = 0.0
    ended: bool = False
    exit_code: int | None = None
    attached: bool = False
    host: str = ""
    started: str = ""


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """The whole result.

    Attributes:
        limits: What could not be seen, one sentence each: no stack sampler, TLS hides status codes, no GPU library.
    """

    verdict: Verdict
    program: Program
    overhead: Overhead
    evidence: tuple[Evidence, ...] = ()
    shares: tuple[TimeShare, ...] = ()
    processes: tuple[ProcessFacts, ...] = ()
    endpoints: tuple[Endpoint, ...] = ()
    file_systems: tuple[FileSystem, ...] = ()
    ceilings: tuple[Ceiling, ...] = ()
    cost: Cost = Cost(hours_lost_per_day=0.0)
    remedies: tuple[Remedy, ...] = ()
    limits: tuple[str, ...] = ()
    schema_version: int = SCHEMA_VERSION


def encode(result: Explanation) -> bytes:
    """Encode a result as one line of JSON."""
    return msgspec.json.encode(result)


def decode(data: bytes | str) -> Explanation:
    """Decode a result.

    Raises:
        ConfigError: The text is not a result of `penstock explain`, or has a newer schema.
    """
    try:
        version = msgspec.json.decode(data, type=_Version).schema_version
        if version > SCHEMA_VERSION:
            raise ConfigError(
                f"this result has schema_version {version}, but this build reads up to {SCHEMA_VERSION}",
                hint="read it with the version of Penstock that wrote it, or a newer one",
            )
        return msgspec.json.decode(data, type=Explanation)
    except msgspec.DecodeError as error:
        raise ConfigError(f"this is not a result of `penstock explain --json`: {error}") from error


class _Version(msgspec.Struct):
    schema_version: int

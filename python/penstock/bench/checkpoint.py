# SPDX-License-Identifier: Apache-2.0
"""Checkpoint benchmark: measures how long the ranks of a node take to write and restore a checkpoint. The slowest rank
determines the rate.

Creates its own files and removes them. A write is timed from the moment that all ranks are ready until `fsync` returns.
A restore starts after the files are dropped from this host's page cache.
"""

from __future__ import annotations

import multiprocessing
import os
import secrets
import time
import zlib
from contextlib import suppress
from dataclasses import dataclass
from threading import BrokenBarrierError
from typing import TYPE_CHECKING, Any

from penstock.bench.results import as_fault
from penstock.errors import ConfigError, Corrupt, RankFailed
from penstock.ownership import remove_file

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.synchronize import Barrier
    from pathlib import Path

__all__ = ["CheckpointTimes", "measure"]

_BLOCK = 8 << 20
_READY_S = 120.0


@dataclass(frozen=True)
class CheckpointTimes:
    """Seconds of each rank, in rank order, and the bytes of all ranks."""

    bytes: int
    write_s: tuple[float, ...]
    restore_s: tuple[float, ...]

    @property
    def write_bytes_per_s(self) -> float:
        """Write rate in bytes per second, determined by the slowest rank."""
        return self.bytes / max(self.write_s)

    @property
    def restore_bytes_per_s(self) -> float:
        """Restore rate in bytes per second, determined by the slowest rank."""
        return self.bytes / max(self.restore_s)


def measure(folder: Path, *, total_bytes: int, ranks: int) -> CheckpointTimes:
    """Write and restore one checkpoint, one file per rank.

    Args:
        folder: Folder on the measured storage; created if missing. The files are removed afterwards.
        total_bytes: Size of the checkpoint; each rank writes an equal share.

    Raises:
        ConfigError: `total_bytes` is smaller than the number of ranks.
        Denied, NoSpace, SystemFault: The folder cannot be written.
        Corrupt: The restored content differs from the written content.
        RankFailed: A process ended without a result.
    """
    if total_bytes < ranks or ranks < 1:
        raise ConfigError(f"a checkpoint of {total_bytes} bytes is too small for {ranks} ranks")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise as_fault(error, str(folder)) from None
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(ranks)
    token = secrets.token_hex(8)  # part of the file names; at removal, it proves that this run made the files
    files = [folder / f".penstock-checkpoint-{token}-{rank}" for rank in range(ranks)]
    pipes, processes = [], []
    try:
        for rank, file in enumerate(files):
            ours, theirs = context.Pipe(duplex=False)
            share = total_bytes // ranks + (1 if rank < total_bytes % ranks else 0)
            process = context.Process(target=_rank, args=(theirs, barrier, file, share, rank), daemon=True)
            process.start()
            theirs.close()
            pipes.append(ours)
            processes.append(process)
        times = _collect(pipes)
    finally:
        for process in processes:
            process.kill()
            process.join()
        for file in files:
            with suppress(OSError):
                remove_file(file)
    return CheckpointTimes(total_bytes, tuple(one[0] for one in times), tuple(one[1] for one in times))


def _collect(pipes: list[Connection]) -> list[tuple[float, float]]:
    results: list[Any] = []
    for rank, pipe in enumerate(pipes):
        try:
            results.append(pipe.recv())
        except EOFError:
            results.append(RankFailed(f"rank {rank} of the checkpoint ended without a result", rank=rank))
    errors = [one for one in results if isinstance(one, Exception)]
    # Raise the original error first. Ranks that waited for the failed rank only report a broken barrier.
    for error in sorted(errors, key=lambda one: isinstance(one, BrokenBarrierError)):
        raise as_fault(error, str(error.filename or "the checkpoint")) if isinstance(error, OSError) else error
    return results


def _rank(pipe: Connection, barrier: Barrier, file: Path, size: int, rank: int) -> None:
    try:
        noise = bytearray(os.urandom(_BLOCK))
        barrier.wait(_READY_S)
        began = time.perf_counter()
        written = _write(file, noise, size)
        write_s = time.perf_counter() - began
        barrier.wait()
        began = time.perf_counter()
        read = _read(file, size)
        restore_s = time.perf_counter() - began
        if read != written:
            raise Corrupt(
                f"{file}: the bytes that rank {rank} read differ from the bytes that it wrote", where=str(file)
            )
        pipe.send((write_s, restore_s))
    except Exception as error:
        barrier.abort()
        pipe.send(error)


def _write(file: Path, noise: bytearray, size: int) -> int:
    """Write the file; return the CRC-32 of its content. Each block contains its offset, so that storage cannot
    deduplicate blocks.
    """
    crc, done = 0, 0
    with file.open("xb", buffering=0) as out:
        while done < size:
            noise[:8] = done.to_bytes(8, "little")
            part = memoryview(noise)[: min(size - done, len(noise))]
            with part[: out.write(part)] as written:
                crc = zlib.crc32(written, crc)
                done += len(written)
        os.fsync(out.fileno())
        os.posix_fadvise(out.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return crc


def _read(file: Path, size: int) -> int:
    crc, buffer = 0, bytearray(min(size, _BLOCK))
    with file.open("rb", buffering=0) as source:
        while got := source.readinto(buffer):
            crc = zlib.crc32(memoryview(buffer)[:got], crc)
    return crc

# SPDX-License-Identifier: Apache-2.0
"""Settings of `penstock bench storage`, and checks that reject impossible settings before a file is created."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from penstock.bench import machine_card
from penstock.bench.rows import columns
from penstock.errors import BudgetExceeded, ConfigError, Denied, NoSpace, NotFound
from penstock.units import format_bytes

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["PHASES", "Point", "StorageBench", "kind_of"]

PHASES = ("mkdirs", "write", "read", "stat", "delete")
_NEEDS_A_TREE = {"mkdirs", "stat", "delete"}


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One point of a sweep: a concurrency and a size. `files` is the number of files per thread and folder.

    Attributes:
        of_files: Number of files in the published sweep, if this sweep was scaled down.
    """

    threads: int = 1
    io_depth: int = 1
    file_size_bytes: int = 1 << 20
    block_size_bytes: int = 1 << 20
    directories: int = 1
    files: int = 64
    of_files: int | None = None

    @property
    def total_files(self) -> int:
        return self.threads * self.directories * self.files

    @property
    def bytes(self) -> int:
        return self.total_files * self.file_size_bytes

    @property
    def folder(self) -> str:
        """Name of the point's tree. The name depends only on the point's shape, so that a later run finds the files
        again.
        """
        return f"tree-{self.threads}x{self.directories}x{self.files}x{self.file_size_bytes}"


class StorageBench(msgspec.Struct, frozen=True, kw_only=True):
    """All settings except the points. `salt` is None if content is not verified."""

    engine: Literal["threads", "io_uring"] = "threads"
    pattern: Literal["sequential", "random"] = "sequential"
    phases: tuple[str, ...] = PHASES
    direct: bool = False
    fsync: bool = True
    drop_caches: bool = True
    salt: int | None = None
    compressible: int = 0
    time_limit_s: float | None = None
    io_limit: int | None = None
    repeat_io: bool = False
    arrivals: Literal["closed", "constant", "poisson"] = "closed"
    rate_per_s: float | None = None
    seed: int = 0
    overwrite_device: bool = False
    start_at_s: float | None = None
    repeats: int = 1
    gpu: int | None = None
    cufile: bool = False

    def native(self, path: Path, point: Point, phase: str, start_at_s: float | None) -> dict[str, Any]:
        """Settings of one phase, in the form that the core expects. The phase starts at `start_at_s` on this host's
        clock.
        """
        is_data = phase in {"write", "read"}
        return {
            "path": str(path),
            "threads": point.threads,
            "directories": point.directories,
            "files": point.files,
            "file_size": point.file_size_bytes,
            "block_size": point.block_size_bytes,
            "depth": point.io_depth,
            "engine": self.engine,
            "pattern": self.pattern,
            "direct": self.direct,
            "fsync": self.fsync,
            "verify": self.salt,
            "compressible": self.compressible,
            "time_limit_s": self.time_limit_s,
            "io_limit": self.io_limit if is_data else None,
            "repeat": self.repeat_io and is_data,
            "arrivals": self.arrivals,
            "rate": self.rate_per_s,
            "seed": self.seed,
            "write_shared": self.overwrite_device,
            "start_at_s": start_at_s,
        }

    def plain(self, points: tuple[Point, ...]) -> dict[str, Any]:
        """The settings as stored in results, without the path."""
        return {"bench": "storage", **msgspec.to_builtins(self), "points": columns(points)}


def kind_of(path: Path) -> str:
    """Return the kind of a path: `dir`, `file` or `blockdev`. A path that does not exist counts as `dir`.

    Raises:
        ConfigError: The path is of another kind.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return "dir"
    except PermissionError as error:
        raise Denied(f"{path} cannot be read: {error.strerror}", where=str(path)) from None
    for kind, holds in (("dir", stat.S_ISDIR), ("file", stat.S_ISREG), ("blockdev", stat.S_ISBLK)):
        if holds(mode):
            return kind
    raise ConfigError(f"{path} is neither a folder, a file nor a block device", where=str(path))


def refuse_impossible(path: Path, bench: StorageBench, points: tuple[Point, ...]) -> None:
    """Check all settings before the first point, including those that the core would reject only later.

    Raises:
        ConfigError: A phase or a point is impossible.
        NotFound: Files to read do not exist.
        BudgetExceeded: Blocks in flight would not fit into memory.
        NoSpace: The files would not fit onto the file system.
    """
    unknown = [phase for phase in bench.phases if phase not in PHASES]
    if unknown or not bench.phases:
        raise ConfigError(f"phases: `{','.join(unknown)}` is not one of {', '.join(PHASES)}", where="--phases")
    if bench.repeats > 1 and "delete" not in bench.phases and {"mkdirs", "write"} & set(bench.phases):
        raise ConfigError(
            "repeats: requires the delete phase, because a repeat must not find the files of the previous repeat",
            where="--repeats",
        )
    if not points:
        raise ConfigError(
            "block-size: every block size is larger than every file size, so there is nothing to measure",
            where="--block-size",
        )
    kind = kind_of(path)
    _refuse_on_gpu(path, kind, bench, points)
    if kind != "dir" and (misplaced := sorted(_NEEDS_A_TREE & set(bench.phases))):
        raise ConfigError(f"phases: {', '.join(misplaced)} requires a folder, but {path} is a {kind}", where="--phases")
    if not path.exists() and not {"mkdirs", "write"} & set(bench.phases):
        raise NotFound(f"{path} does not exist, and no phase writes to it", where=str(path))
    memory = machine_card.read().memory_bytes
    for point in points:
        blocks = point.threads * point.io_depth * point.block_size_bytes
        if blocks > memory // 2:
            raise BudgetExceeded(
                f"{point.threads} threads x {point.io_depth} in flight x {format_bytes(point.block_size_bytes, binary=True)}"
                f" require {format_bytes(blocks, binary=True)} for blocks, but the machine has "
                f"{format_bytes(memory, binary=True)}"
            )
        if kind == "dir" and "write" in bench.phases:
            _refuse_too_large(path, point)


def _refuse_on_gpu(path: Path, kind: str, bench: StorageBench, points: tuple[Point, ...]) -> None:
    if bench.gpu is None:
        if bench.cufile:
            raise ConfigError("cufile: requires --gpu", where="--cufile")
        return
    if kind != "dir" and "write" in bench.phases:
        # Only the core asks for confirmation and checks that a device is unused, and phases with --gpu bypass the core.
        raise ConfigError(f"gpu: the write phase requires a folder, but {path} is a {kind}", where="--phases")
    for is_asked, flag, why in (
        (
            bench.engine == "io_uring" or any(p.io_depth > 1 for p in points),
            "--depth",
            "each thread has only one block in flight",
        ),
        (bench.arrivals != "closed", "--arrivals", "each thread starts a block when the previous block is complete"),
        (bench.salt is not None, "--verify", "data in a GPU's memory are not compared with the pattern"),
        (bench.compressible > 0, "--compressible", "the content is random"),
    ):
        if is_asked:
            raise ConfigError(f"gpu: {flag} is not supported with --gpu: {why}", where=flag)


def _refuse_too_large(path: Path, point: Point) -> None:
    there = path
    while not there.exists():
        there = there.parent
    free = os.statvfs(there)
    room, need = free.f_bavail * free.f_frsize, point.bytes
    # A file system without a size limit (ramfs) reports 0 blocks.
    if free.f_blocks and need > room:
        raise NoSpace(
            f"{path} has {format_bytes(room)} free, but {point.total_files:,} files of"
            f" {format_bytes(point.file_size_bytes, binary=True)} need {format_bytes(need)}",
            where=str(path),
            hint="lower --files or --file-size, or --scale a sweep",
        )
    # A file system that allocates inodes dynamically reports 0 inodes.
    if free.f_files and point.total_files > free.f_favail:
        raise NoSpace(
            f"{path} has room for {free.f_favail:,} more files, but {point.total_files:,} are needed",
            where=str(path),
        )

# SPDX-License-Identifier: Apache-2.0
"""Points of published sweeps, and of grids over sizes and threads."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from penstock.bench.storage.spec import Point

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["SWEEPS", "grid", "nag_beeond"]

_NAG_THREADS = (1, 8, 32, 128)
_NAG_SIZES = (256 << 10, 1 << 20, 4 << 20, 64 << 20)
# Files per host: elbencho's -N option was 12800 / threads in AzureML_Best_Practice,
# beeond/scripts/run_elbencho_multifile.sh.
_NAG_FILES = 12_800


def nag_beeond(*, scale: float | None, room_bytes: int) -> tuple[Point, ...]:
    """NAG's sweep of BeeOND: file sizes from 256 KiB to 64 MiB, with 1, 8, 32 and 128 threads. Each file is one block.

    Args:
        scale: Share of the published number of files. None uses as many of these files as fit into `room_bytes`.
        room_bytes: Space for one point.
    """
    points = []
    for size, threads in product(_NAG_SIZES, _NAG_THREADS):
        published = _NAG_FILES // threads
        wanted = published * scale if scale is not None else min(published, room_bytes // (size * threads))
        files = max(1, int(wanted))
        points.append(
            Point(
                threads=threads,
                file_size_bytes=size,
                block_size_bytes=size,
                files=files,
                of_files=None if files == published else published,
            )
        )
    return tuple(points)


SWEEPS: dict[str, Callable[..., tuple[Point, ...]]] = {"nag-beeond": nag_beeond}


def grid(
    *,
    threads: Iterable[int],
    depths: Iterable[int],
    file_sizes: Iterable[int],
    block_sizes: Iterable[int],
    directories: int,
    files: int,
) -> tuple[Point, ...]:
    """All combinations of sizes and threads in which a block fits into a file. A file size of 0 means a whole device,
    which allows any block size.
    """
    return tuple(
        Point(
            threads=count,
            io_depth=depth,
            file_size_bytes=size,
            block_size_bytes=block,
            directories=directories,
            files=files,
        )
        for size, block, count, depth in product(file_sizes, block_sizes, threads, depths)
        if size == 0 or block <= size
    )

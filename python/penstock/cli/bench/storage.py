# SPDX-License-Identifier: Apache-2.0
"""`penstock bench storage`: measure disks, pools and whole devices."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.bench.hosts import is_many, measured, on_hosts
from penstock.cli.bench.load import load_of, loads
from penstock.cli.bench.output import outputs
from penstock.cli.parameters import BYTES, Several

if TYPE_CHECKING:
    from penstock.bench.storage import Point

__all__ = ["command"]

_PHASES = "mkdirs,write,read,stat,delete"
# Limits of one point in a sweep without --scale: maximum share of the free space, and maximum size.
_ROOM_SHARE, _ROOM_BYTES = 0.25, 4 << 30


@click.command("storage")
@click.argument("path", type=click.Path(path_type=Path))
@click.option(
    "--phases",
    type=Several(str, "list"),
    default=None,
    metavar="LIST",
    help=f"Phases to run, in this order: {_PHASES}.  [default: all; read on a file or device]",
)
@click.option(
    "--file-size",
    type=Several(BYTES, "sizes"),
    default="1MiB",
    show_default=True,
    metavar="SIZES",
    help="Size of each file; several sizes make a sweep.",
)
@click.option(
    "--block-size",
    type=Several(BYTES, "sizes"),
    default=None,
    metavar="SIZES",
    help="Size of each read and write.  [default: 1MiB, or the file's size if that is less]",
)
@click.option(
    "--threads",
    type=Several(int, "list"),
    default="1",
    show_default=True,
    metavar="LIST",
    help="Number of threads; several numbers make a sweep.",
)
@click.option(
    "--depth",
    type=Several(int, "list"),
    default="1",
    show_default=True,
    metavar="LIST",
    help="Reads or writes in flight per thread; above 1, io_uring is used.",
)
@click.option("--files", type=int, default=64, show_default=True, help="Number of files per thread and folder.")
@click.option("--directories", type=int, default=1, show_default=True, help="Number of folders per thread.")
@click.option(
    "--sweep",
    type=click.Choice(["nag-beeond"]),
    help="Run a published sweep: 256 KiB to 64 MiB by 1, 8, 32 and 128 threads.",
)
@click.option(
    "--scale",
    type=float,
    metavar="F",
    help="Fraction of the sweep's number of files.  [default: as fits into 4 GiB per point]",
)
@click.option(
    "--engine",
    type=click.Choice(["threads", "io_uring"]),
    help="I/O engine: pread and pwrite, or one io_uring per thread.  [default: determined by --depth]",
)
@click.option("--random", "is_random", is_flag=True, help="Visit the blocks of a file in random order, each once.")
@click.option("--direct", is_flag=True, help="Bypass the page cache (O_DIRECT).")
@click.option("--fsync/--no-fsync", default=True, show_default=True, help="Call fsync before a file counts as written.")
@click.option(
    "--drop-caches/--keep-caches",
    default=True,
    show_default=True,
    help="Drop the page cache before each phase; needs root.",
)
@loads("threads", "Time limit of each phase.")
@click.option("--io-limit", type=int, metavar="N", help="End a thread after N reads or writes.")
@click.option("--repeat-io", is_flag=True, help="Read or write again from the first file until a limit ends the phase.")
@click.option(
    "--repeats", type=click.IntRange(min=1), default=1, show_default=True, help="Number of measurements per point."
)
@click.option(
    "--gpu",
    type=click.IntRange(0),
    metavar="N",
    help="Read into GPU N's memory and write from it, through pinned memory.",
)
@click.option("--cufile", is_flag=True, help="With --gpu: use cuFile, which bypasses the host's memory if possible.")
@click.option(
    "--overwrite-device", is_flag=True, help="Allow the write phase to destroy the content of PATH, a device or file."
)
@click.option(
    "--start-at", type=float, metavar="UNIX_S", help="Start time that the hosts agreed on; for one point and phase."
)
@on_hosts
@outputs
def command(path: Path, **given: Any) -> None:
    """Measure PATH: a folder (empty, or new), a file, or a whole block device, which is never written unless
    --overwrite-device is given.

    Each phase starts with cold caches if possible and ends when the slowest thread ends; the result also has the time
    at which the first thread ended. Files are created, fsynced, read and deleted in PATH; a run that fails or is
    stopped deletes them, too.

    With --nodes, or a --launcher other than `local`, all nodes run the benchmark together: phases start at the same
    time, each node has its own folder in PATH (which may be shared; {node} in it is the node's name), and rows cover
    all nodes.
    """
    from penstock.bench.distributed.config import Storage
    from penstock.bench.storage import run

    bench, points = _asked(path, given)
    for point in points:
        if point.of_files is not None:
            click.echo(
                f"{point.threads} threads x {point.files:,} files of {point.file_size_bytes:,} bytes; the sweep has {point.of_files:,}",
                err=True,
            )
    work = Storage(path=str(path.absolute()), bench=bench, points=points)
    measured(work, lambda hooks: run(path, bench, points, hooks), bench.plain(points), given)


def _asked(path: Path, given: dict[str, Any]) -> tuple[Any, tuple[Point, ...]]:
    import shutil

    from penstock.bench.storage import SWEEPS, StorageBench
    from penstock.bench.storage.spec import kind_of
    from penstock.bench.storage.sweeps import grid
    from penstock.errors import ConfigError

    kind = kind_of(path)
    if given["sweep"]:
        there = next(place for place in (path, *path.absolute().parents) if place.exists())
        # With several hosts, each host checks its own free space.
        room = _ROOM_BYTES if is_many(given) else min(int(shutil.disk_usage(there).free * _ROOM_SHARE), _ROOM_BYTES)
        if given["scale"] is not None and not 0 < given["scale"] <= 1:
            raise ConfigError(f"scale: must be above 0 and at most 1 (got {given['scale']})", where="--scale")
        points = SWEEPS[given["sweep"]](scale=given["scale"], room_bytes=room)
    else:
        whole = (
            kind != "dir"
            and click.get_current_context().get_parameter_source("file_size") == click.core.ParameterSource.DEFAULT
        )
        sizes = (0,) if whole else given["file_size"]
        blocks = given["block_size"] or (min(1 << 20, *(size for size in (*sizes, 1 << 20) if size)),)
        points = grid(
            threads=given["threads"],
            depths=given["depth"],
            file_sizes=sizes,
            block_sizes=blocks,
            directories=given["directories"],
            files=given["files"],
        )
    deep = any(point.io_depth > 1 for point in points)
    bench = StorageBench(
        engine=given["engine"] or ("io_uring" if deep else "threads"),
        pattern="random" if given["is_random"] else "sequential",
        phases=given["phases"] or (tuple(_PHASES.split(",")) if kind == "dir" else ("read",)),
        direct=given["direct"],
        fsync=given["fsync"],
        drop_caches=given["drop_caches"],
        io_limit=given["io_limit"],
        repeat_io=given["repeat_io"],
        overwrite_device=given["overwrite_device"],
        start_at_s=given["start_at"],
        repeats=given["repeats"],
        gpu=given["gpu"],
        cufile=given["cufile"],
        **load_of(given),
    )
    if bench.start_at_s is not None and is_many(given):
        raise ConfigError(
            "start-at: cannot be set for several hosts, because they agree on start times themselves",
            where="--start-at",
        )
    if bench.start_at_s is not None and len(points) * len(bench.phases) * bench.repeats > 1:
        raise ConfigError("start-at: requires a single point, phase and repeat", where="--start-at")
    return bench, points

# SPDX-License-Identifier: Apache-2.0
"""`penstock bench storage`: disks, pools and whole devices."""

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
# Of a sweep whose number of files nobody scaled: at most so much of what is free, and at most this, for one point.
_ROOM_SHARE, _ROOM_BYTES = 0.25, 4 << 30


@click.command("storage")
@click.argument("path", type=click.Path(path_type=Path))
@click.option(
    "--phases",
    type=Several(str, "list"),
    default=None,
    metavar="LIST",
    help=f"Of {_PHASES}; in this order.  [default: all; read on a file or device]",
)
@click.option(
    "--file-size",
    type=Several(BYTES, "sizes"),
    default="1MiB",
    show_default=True,
    metavar="SIZES",
    help="Of each file; several are points of a sweep.",
)
@click.option(
    "--block-size",
    type=Several(BYTES, "sizes"),
    default=None,
    metavar="SIZES",
    help="Of each read and write.  [default: 1MiB, or the file's size where that is less]",
)
@click.option(
    "--threads", type=Several(int, "list"), default="1", show_default=True, metavar="LIST", help="Workers at once."
)
@click.option(
    "--depth",
    type=Several(int, "list"),
    default="1",
    show_default=True,
    metavar="LIST",
    help="Reads or writes in flight a thread; above 1 by io_uring.",
)
@click.option("--files", type=int, default=64, show_default=True, help="Files of each thread in each of its folders.")
@click.option("--directories", type=int, default=1, show_default=True, help="Folders of each thread.")
@click.option(
    "--sweep",
    type=click.Choice(["nag-beeond"]),
    help="A published sweep: 256 KiB to 64 MiB by 1, 8, 32 and 128 threads.",
)
@click.option(
    "--scale",
    type=float,
    metavar="F",
    help="Of a sweep: share of its number of files.  [default: what fits into 4 GiB a point]",
)
@click.option(
    "--engine",
    type=click.Choice(["threads", "io_uring"]),
    help="pread and pwrite, or a ring a thread.  [default: as --depth needs]",
)
@click.option(
    "--random", "is_random", is_flag=True, help="Visit the blocks of a file in an order of their own, each once."
)
@click.option("--direct", is_flag=True, help="Pass the page cache by (O_DIRECT).")
@click.option(
    "--fsync/--no-fsync", default=True, show_default=True, help="A file counts as written when it is durable."
)
@click.option("--drop-caches/--keep-caches", default=True, show_default=True, help="Before each phase; needs root.")
@loads("threads", "End each phase after so long.")
@click.option("--io-limit", type=int, metavar="N", help="End a thread after N reads or writes.")
@click.option("--repeat-io", is_flag=True, help="Read or write again from the first file until a limit ends the phase.")
@click.option(
    "--repeats", type=click.IntRange(min=1), default=1, show_default=True, help="Measure each point so often."
)
@click.option(
    "--gpu", type=click.IntRange(0), metavar="N", help="Read into GPU N's memory, and write from it: by pinned memory."
)
@click.option(
    "--cufile", is_flag=True, help="With --gpu: by cuFile instead, past this host's memory where that can be."
)
@click.option("--overwrite-device", is_flag=True, help="Let the write phase destroy what is on PATH, a device or file.")
@click.option(
    "--start-at", type=float, metavar="UNIX_S", help="Begin at this moment, on which hosts agreed; one point and phase."
)
@on_hosts
@outputs
def command(path: Path, **given: Any) -> None:
    """Measure PATH: a folder (empty, or new), a file, or a whole block device, which is read only unless told.

    Every phase begins with cold caches where that can be had, ends when the slowest thread ends, and says when the first
    one did. Files are made, fsynced, read and deleted in PATH; a run that fails or is stopped leaves none behind.

    With --nodes or another --launcher than `local`, every node does all of it at once: phases begin together, each node
    has a folder of its own in PATH (which they may share; {node} in it is the node's name), and rows are of all nodes.
    """
    from penstock.bench.hosts.orders import Storage
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
        # What other hosts have free is theirs to say, and to refuse by.
        room = _ROOM_BYTES if is_many(given) else min(int(shutil.disk_usage(there).free * _ROOM_SHARE), _ROOM_BYTES)
        if given["scale"] is not None and not 0 < given["scale"] <= 1:
            raise ConfigError(f"scale: {given['scale']} is not above 0 and at most 1", where="--scale")
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
        raise ConfigError("start-at: hosts of one bench agree on their starts by themselves", where="--start-at")
    if bench.start_at_s is not None and len(points) * len(bench.phases) * bench.repeats > 1:
        raise ConfigError("start-at: an agreed start is one phase's; give one point and one phase", where="--start-at")
    return bench, points

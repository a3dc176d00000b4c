# SPDX-License-Identifier: Apache-2.0
"""Disks of the study: a folder on the local disk, and a disk of 64 MB/s, which needs root."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from penstock.bench.loop_disk import LoopDisk, Rate
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.study.run import Context

__all__ = ["LIMITED", "opened"]

LIMITED = "64 MB/s"


@contextmanager
def opened(context: Context) -> Iterator[tuple[dict[str, Path], list[str]]]:
    """Yield name -> folder on each disk, and the reasons why a disk is missing.

    The disk of 64 MB/s is a loop device that the kernel limits (docs/decisions/0912).
    """
    limits, folder = context.study.tables["limits"], context.scratch
    disks = {"local": folder / "local"}
    disks["local"].mkdir()
    mount = folder / "limited"
    mount.mkdir()
    disk = LoopDisk(
        mount, size_bytes=context.size["disk_image_bytes"], ios=None, moved=Rate(float(limits["disk_bytes_per_s"])),
        images=folder,
    )  # fmt: skip
    missing: list[str] = []
    with ExitStack() as running:
        try:
            running.enter_context(disk)
            disks[LIMITED] = mount
        except PenstockError as error:
            missing.append(f"the disk of {LIMITED}: {error}")
        yield disks, missing

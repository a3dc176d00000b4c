# SPDX-License-Identifier: Apache-2.0
"""Hosts of the rehearsal: network namespaces on this machine, with limited links and disks."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING
from uuid import uuid4

from penstock.bench.loop_disk import LoopDisk, Rate
from penstock.cluster import Cluster, raise_for_failures
from penstock.launchers.netns_hosts import Hosts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.study.run import Context

__all__ = ["rehearsed"]


@contextmanager
def rehearsed(context: Context, disk_bytes_per_s: float, link_bytes_per_s: float) -> Iterator[tuple[Cluster, str]]:
    """Yield a cluster of hosts on this machine, and the path of their own disk on each.

    Each disk is a loop device, limited by the kernel (docs/decisions/0912); links are limited by tc.
    """
    size = context.size
    with ExitStack() as running:
        folders = []
        # The disks are mounted first: hosts have their own mounts, and do not see later ones.
        for at in range(1, size["hosts"] + 1):
            folder = context.scratch / f"disk-{at}"
            folder.mkdir()
            running.enter_context(
                LoopDisk(
                    folder, size_bytes=size["disk_image_bytes"], ios=None, moved=Rate(disk_bytes_per_s),
                    images=context.scratch,
                )
            )  # fmt: skip
            folders.append(folder)
        hosts = running.enter_context(
            Hosts.up(f"study-{uuid4().hex[:6]}", size["hosts"], rate_bytes_per_s=link_bytes_per_s)
        )
        cluster = running.enter_context(Cluster.open("local", {"hosts": hosts.name}))
        for node, folder in zip(cluster.nodes, folders, strict=True):
            argv = ["mount", "--bind", str(folder), hosts.own_disk]
            raise_for_failures(cluster.run(argv, on=[node], timeout_s=30), "mounting the disk")
        yield cluster, f"{hosts.own_disk}/pool"

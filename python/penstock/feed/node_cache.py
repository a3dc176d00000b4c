# SPDX-License-Identifier: Apache-2.0
"""Settings of the node cache: the folder in which fetched objects are stored (set by `Dataset.cache` or detected), and
its maximum size. The core decides which objects are evicted.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from penstock.errors import ConfigError, NotFound
from penstock.feed.number_arguments import as_int_or_none

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["AUTO", "CacheRequest", "NodeCache", "Transcode", "cache_request", "resolve"]

Transcode = Literal["never", "auto", "always"]
"""Whether compressed objects are cached as planes (see `Dataset.cache`)."""

_SCRATCH_VARIABLES = ("PENSTOCK_SCRATCH", "SLURM_TMPDIR", "PBS_JOBFS", "JOB_SCRATCH_DIR")
"""Environment variables that sites and schedulers set to a job's folder on the node's own disk. Penstock's own variable
has priority.
"""

_LOCAL = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "zfs"})
"""File systems of local disks. A cache on a shared file system would cause the traffic that it should avoid, and a
cache on tmpfs would use memory.
"""

_REMOTE = ("s3://", "az://", "gs://", "http://", "https://", "hdfs://", "hf://")

_MAX_FREE_SHARE = 0.9
"""Maximum share of the free space that the cache may use. A full disk would affect all other programs that write to
it."""


@dataclass(frozen=True, slots=True)
class CacheRequest:
    """Arguments of `Dataset.cache`. If `is_on` is None, caching is automatic."""

    is_on: bool | None = None
    folder: str | None = None
    limit_bytes: int | None = None
    transcode: Transcode = "never"


AUTO = CacheRequest()
"""The default request: automatic caching."""


@dataclass(frozen=True, slots=True)
class NodeCache:
    """A cache: its folder, its maximum size in bytes, and whether compressed objects are stored as planes."""

    folder: str
    limit_bytes: int
    transcode: Transcode = "never"


def cache_request(
    folder: str | os.PathLike[str] | bool | None,  # noqa: FBT001 - False is off
    limit_bytes: int | None,
    transcode: Transcode = "never",
) -> CacheRequest:
    """Check the arguments of `Dataset.cache`.

    Raises:
        ConfigError: The limit is not a number of bytes or is combined with `cache(False)`, or `transcode` is unknown.
    """
    if transcode not in get_args(Transcode):
        raise ConfigError(f"transcode: {transcode!r} is not one of {', '.join(get_args(Transcode))}", where="transcode")
    limit = as_int_or_none("limit_bytes", limit_bytes)
    if limit is not None and limit < 1:
        raise ConfigError(f"limit_bytes: must be at least 1 (got {limit})", where="limit_bytes")
    if isinstance(folder, bool) or folder is None:
        if folder is False and (limit is not None or transcode != "never"):
            raise ConfigError("cache: limit_bytes and transcode cannot be combined with cache(False)", where="cache")
        return CacheRequest(is_on=folder is not False, limit_bytes=limit, transcode=transcode)
    return CacheRequest(is_on=True, folder=str(Path(folder).absolute()), limit_bytes=limit, transcode=transcode)


def resolve(request: CacheRequest, url: str, size_bytes: int, variables: Mapping[str, str]) -> NodeCache | None:
    """Return the cache for a dataset of `size_bytes`; None if the dataset is not cached.

    By default, only datasets in a remote store are cached, and only if the whole dataset fits. The folder is a scratch
    folder that an environment variable names, or that is mounted (`/scratch`, `/local_scratch`, `/mnt/nvme`...).

    Raises:
        NotFound: A cache was requested, and no scratch folder was found.
    """
    if request.is_on is False:
        return None
    folder = request.folder or _find_scratch(variables)
    if request.is_on:
        if folder is None:
            raise NotFound(
                "no scratch folder was found for the cache",
                where="cache",
                hint="set a folder: .cache('/mnt/nvme/me'), or PENSTOCK_SCRATCH",
            )
        return NodeCache(folder, request.limit_bytes or _available_bytes(Path(folder)), request.transcode)
    if folder is None or not url.startswith(_REMOTE):
        return None
    room = _available_bytes(Path(folder))
    # Reserve 1 % for checksums and metadata, which take 5e-6 of the bytes plus 512 bytes per object.
    return NodeCache(folder, room) if size_bytes * 1.01 < room else None


def _available_bytes(folder: Path) -> int:
    """Return the number of bytes that the cache is allowed to use. It is 9/10 of (free space + size of an existing
    Penstock cache in this folder).
    """
    ours = folder / "penstock-cache-1" / "ledger"
    try:
        held = int.from_bytes(ours.read_bytes()[:8], "little")
    except OSError:
        held = 0
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return int(_MAX_FREE_SHARE * (shutil.disk_usage(folder).free + held))


def _find_scratch(variables: Mapping[str, str]) -> str | None:
    for name in _SCRATCH_VARIABLES:
        folder = variables.get(name)
        if folder and os.access(folder, os.W_OK):
            return folder
    try:
        mounts = Path("/proc/mounts").read_text("utf-8", "replace")
    except OSError:
        return None
    return _scratch_mount(mounts)


def _scratch_mount(mounts: str) -> str | None:
    """Return the first mount point of a local file system whose name is typical for a node's scratch folder."""
    for line in mounts.splitlines():
        _, point, kind, *_ = [*line.split(), "", "", ""]
        name = point.rpartition("/")[2]
        is_scratch = (
            name.startswith(("scratch", "local_scratch", "localscratch", "nvme", "resource")) or name == "local_ssd"
        )
        if kind in _LOCAL and is_scratch and os.access(point, os.W_OK):
            return point
    return None

# SPDX-License-Identifier: Apache-2.0
"""Configuration of a benchmark agent, which receives it on stdin. Contains only plain values."""

from __future__ import annotations

from typing import Literal

import msgspec

from penstock.bench.objects import ObjectBench, ObjectPoint  # noqa: TC001 - msgspec reads them
from penstock.bench.storage import Point, StorageBench  # noqa: TC001 - msgspec reads them

__all__ = ["AgentConfig", "Objects", "Storage", "folder_of"]


class Storage(msgspec.Struct, frozen=True, kw_only=True, tag="storage"):
    """Benchmark of a path. `{node}` in the path is replaced by the node's name."""

    path: str
    bench: StorageBench
    points: tuple[Point, ...]


class Objects(msgspec.Struct, frozen=True, kw_only=True, tag="objects"):
    """Benchmark of an object store."""

    url: str
    bench: ObjectBench
    points: tuple[ObjectPoint, ...]


class AgentConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Configuration of one launch.

    Attributes:
        verb: `run` measures. `sweep` removes data that hosts of the same session may have left.
        session: Identifier that is recorded with everything that this benchmark creates. A sweep removes only data with
            this identifier.
        token: Secret that authenticates the hosts of this benchmark to each other.
        nodes: Node names, by rank.
        address, port: Address of the leader, on the first node.
        max_skew_s: Maximum clock difference between a host and the leader.
    """

    verb: Literal["run", "sweep"]
    session: str
    token: str
    nodes: tuple[str, ...]
    address: str
    port: int
    max_skew_s: float
    work: Storage | Objects


def folder_of(config: AgentConfig, rank: int) -> str:
    """Name of a host's folder. For a path, the name contains only the host's number, so that a later run finds the
    files again.
    """
    return f"host-{rank:04}" if isinstance(config.work, Storage) else f"penstock-bench-{config.session}-{rank:04}"

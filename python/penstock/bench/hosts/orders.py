# SPDX-License-Identifier: Apache-2.0
"""Orders: the message that every agent gets on its stdin, as plain values."""

from __future__ import annotations

from typing import Literal

import msgspec

from penstock.bench.objects import ObjectBench, ObjectPoint  # noqa: TC001 - msgspec reads them
from penstock.bench.storage import Point, StorageBench  # noqa: TC001 - msgspec reads them

__all__ = ["Objects", "Orders", "Storage", "folder_of"]


class Storage(msgspec.Struct, frozen=True, kw_only=True, tag="storage"):
    """Benchmark of a path; `{node}` in the path is replaced by the node's name."""

    path: str
    bench: StorageBench
    points: tuple[Point, ...]


class Objects(msgspec.Struct, frozen=True, kw_only=True, tag="objects"):
    """Benchmark of an object store."""

    url: str
    bench: ObjectBench
    points: tuple[ObjectPoint, ...]


class Orders(msgspec.Struct, frozen=True, kw_only=True):
    """Orders of one launch.

    Attributes:
        verb: `run`, or `sweep`: remove what hosts of the same session may have left.
        session: Name in everything that this benchmark creates; a sweep removes nothing else.
        token: Secret by which the hosts of this benchmark recognise each other.
        nodes: Node names, by rank.
        address, port: Where the leader listens, on the first node.
        max_skew_s: Larger clock differences are refused.
    """

    verb: Literal["run", "sweep"]
    session: str
    token: str
    nodes: tuple[str, ...]
    address: str
    port: int
    max_skew_s: float
    work: Storage | Objects


def folder_of(orders: Orders, rank: int) -> str:
    """Name of a host's folder. For files it contains only the host's number, so that a later run finds them again."""
    return f"host-{rank:04}" if isinstance(orders.work, Storage) else f"penstock-bench-{orders.session}-{rank:04}"

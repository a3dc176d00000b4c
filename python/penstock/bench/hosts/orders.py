# SPDX-License-Identifier: Apache-2.0
"""What every agent is told, on its stdin, and what the first one tells: plain values both ways."""

from __future__ import annotations

from typing import Literal

import msgspec

from penstock.bench.objects import ObjectBench, ObjectPoint  # noqa: TC001 - msgspec reads them
from penstock.bench.storage import Point, StorageBench  # noqa: TC001 - msgspec reads them

__all__ = ["Objects", "Orders", "Storage", "folder_of"]


class Storage(msgspec.Struct, frozen=True, kw_only=True, tag="storage"):
    """A bench of a path; `{node}` in it is the node's name."""

    path: str
    bench: StorageBench
    points: tuple[Point, ...]


class Objects(msgspec.Struct, frozen=True, kw_only=True, tag="objects"):
    """A bench of a store."""

    url: str
    bench: ObjectBench
    points: tuple[ObjectPoint, ...]


class Orders(msgspec.Struct, frozen=True, kw_only=True):
    """One launch.

    Attributes:
        verb: `run`, or `sweep`: remove what hosts of the same session may have left.
        session: Names what this bench makes, so that nothing else is ever swept.
        token: By which hosts of this bench know one another.
        nodes: Names, by rank.
        address, port: Where the first of them listens.
        max_skew_s: Clocks further apart are refused.
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
    """Name of the folder that a host works in: of its number for files, which are found again by a later run."""
    return f"host-{rank:04}" if isinstance(orders.work, Storage) else f"penstock-bench-{orders.session}-{rank:04}"

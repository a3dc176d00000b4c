# SPDX-License-Identifier: Apache-2.0
"""Locality of reads in a pool: which objects this node stores as files, which nodes store the other objects, and the
source bucket.

Queries the pool engine once before the first read; the core performs the reads. Used only if the process has a pool
context (`penstock.pool.context`).
"""

from __future__ import annotations

import json
import logging
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock import ranks
from penstock.errors import ConfigError, PenstockError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock import _native
    from penstock.pool import context
    from penstock.protocols import Access

__all__ = ["Locality", "find", "with_pool_routes"]

_LOG = logging.getLogger("penstock.feed")
# At most `_MAX_CALLS` queries of an engine run at a time, with at most `_KEYS_PER_CALL` objects each.
_MAX_CALLS, _KEYS_PER_CALL = 16, 16
_TRIES = 4
_CONTEXT = "PENSTOCK_JOB_POOL"
"""The same name as `context.VARIABLE`, so that `context` and the engines are imported only if the variable is set.
Importing them increases the feed's import time by a third.
"""


@dataclass(frozen=True, slots=True)
class Locality:
    """Locations of a dataset's objects in a pool, seen from one node.

    Attributes:
        own_bytes, bytes: Bytes that this node reads from its own files, and total bytes of the dataset.
        mine: Keys of the objects in this node's part, for reads with `scope="node"`. If all nodes query the same pool,
            every object is in the part of exactly one node.
    """

    node: str
    nodes: int
    copies: int
    own_bytes: int
    bytes: int
    mine: frozenset[str]

    @property
    def expected(self) -> float:
        """Expected share of local reads in a globally shuffled order: copies divided by nodes."""
        return min(1.0, self.copies / self.nodes)

    @property
    def share(self) -> float:
        """Share of all bytes that this node stores."""
        return self.own_bytes / self.bytes if self.bytes else 0.0

    def facts(self) -> dict[str, Any]:
        """Return the locality as plain data, for reports."""
        return {
            "node": self.node,
            "nodes": self.nodes,
            "copies": self.copies,
            "expected_local_share": self.expected,
            "local_share": self.share,
        }

    def __str__(self) -> str:
        return (
            f"node {self.node} of {self.nodes} holds {100 * self.share:.1f} % of the bytes; a global order reads "
            f"{100 * self.expected:.1f} % locally ({self.copies} of {self.nodes})"
        )


def find(url: str, environment: Mapping[str, str]) -> context.PoolContext | None:
    """Return the pool that contains a dataset's URL, if this process has a pool context."""
    if not environment.get(_CONTEXT):
        return None
    from penstock.pool import context

    here = context.from_env(environment)
    if here is None:
        return None
    return here if _folder(url).startswith(_folder(here.data)) else None


def _folder(url: str) -> str:
    """Normalise the URL of a folder so that it can be compared with a pool's URL. The URL of a mounted pool is a
    path.
    """
    return url.removeprefix("file://").rstrip("/") + "/"


def with_pool_routes(
    source: _native.Source, here: context.PoolContext, environment: Mapping[str, str]
) -> tuple[_native.Source, Locality]:
    """Return the source with its routes through the pool, and the locality of its objects.

    Raises:
        ConfigError: This process is not on a node of the pool, or the dataset is not below the pool's URL.
    """
    node = here.node(environment)
    url, root = _folder(source.url), _folder(here.pool.url)
    if not url.startswith(root):
        raise ConfigError(f"{source.url} is not below the pool's {here.pool.url}", where="url")
    tail, folder = url.removeprefix(_folder(here.data)), url.removeprefix(root)
    listed = json.loads(source.manifest())["objects"]
    sizes = {entry["key"]: int(entry["size"]) for entry in listed if isinstance(entry.get("key"), str)}
    from penstock.pool import engine_registry

    access = engine_registry.load(here.pool.engine, here.engine_settings).access(here.pool, node)
    objects = _locate_all(access, folder, list(sizes), node)
    names = [each.name for each in here.pool.nodes if each.name == node or each.name not in here.lost]
    numbers = {name: at for at, name in enumerate(names)}
    routes: dict[str, Any] = {
        "bucket": None if here.source is None else f"{here.source.rstrip('/')}/{tail}",
        "reader": _process_index(numbers[node], len(names), environment),
        "objects": {
            key: {
                "own": own,
                "nodes": None if holders is None else sorted(numbers[name] for name in holders if name in numbers),
            }
            for key, (own, holders) in objects.items()
        },
    }
    locality = Locality(
        node,
        len(here.pool.nodes),
        here.pool.copies,
        sum(sizes[key] for key, (own, _) in objects.items() if own is not None),
        sum(sizes.values()),
        frozenset(
            key
            for key, (_, holders) in objects.items()
            if _owner(key, sorted(numbers.keys() & (holders or ())) or names) == node
        ),
    )
    _LOG.info("%s: %s", source.url, locality)
    return source.routed(json.dumps(routes)), locality


def _process_index(node: int, nodes: int, environment: Mapping[str, str]) -> dict[str, int]:
    """Return the index of this process among the processes of the pool. They share the reads of objects that the pool
    has lost.
    """
    place = ranks.detect(environment)
    return {
        "node": node,
        "nodes": nodes,
        "local": place.local_rank,
        "locals": max(place.local_rank + 1, -(-place.world // place.nodes)),
    }


def _owner(key: str, holders: list[str]) -> str:
    """Return the node whose part contains an object: one of the nodes that store it. Every node computes the same
    result.
    """
    return holders[zlib.crc32(key.encode()) % len(holders)]


def _locate_all(
    access: Access, folder: str, keys: list[str], node: str
) -> dict[str, tuple[str | None, list[str] | None]]:
    """For each object, return its file on this node, if one exists, and the nodes that store it, if the engine reports
    them.
    """

    def some(part: list[str]) -> dict[str, tuple[str | None, list[str] | None]]:
        for last in [False] * (_TRIES - 1) + [True]:
            try:
                located = access.locate([folder + key for key in part])
                break
            except PenstockError as error:
                if last or not error.retryable:
                    _LOG.warning(
                        "pool: the location of %s and %d more objects is unknown: %s", part[0], len(part) - 1, error
                    )
                    return dict.fromkeys(part, (None, None))
        found: dict[str, tuple[str | None, list[str] | None]] = {}
        for key in part:
            pieces = located[folder + key]
            # Only a node that has all pieces of an object has a complete copy.
            holders = set.intersection(*(set(piece.nodes) for piece in pieces)) if pieces else set()
            has_locations = any(piece.nodes for piece in pieces) or not _hides_locations(access)
            own = access.fast_path(folder + key) if node in holders else None
            found[key] = (None if own is None else str(own), sorted(holders) if has_locations else None)
        return found

    parts = [keys[at : at + _KEYS_PER_CALL] for at in range(0, len(keys), _KEYS_PER_CALL)]
    with ThreadPoolExecutor(_MAX_CALLS, thread_name_prefix="penstock-locate") as threads:
        return {key: where for part in threads.map(some, parts) for key, where in part.items()}


def _hides_locations(access: Access) -> bool:
    """True for an engine that never reports locations, such as a mount. Programs open the files of a mount by path."""
    return not getattr(access, "reports_locations", True)

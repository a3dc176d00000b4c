# SPDX-License-Identifier: Apache-2.0
"""A pool's objects from one of its nodes: `penstock pool orders ENGINE NODE ORDERS`, or the same behind
`python -m penstock.pool.rpc`, with the pool as JSON on stdin.

Sent to a node by whoever is not on one: the repair of a pool, the suites, `penstock run`. Orders are JSON lists, done in
order, as [["put", "a/b", "/tmp/x"], ["read", "a/b", 0, 100]]; answers are one JSON list, bytes as their length and
CRC-32, errors as {"error": code, "text": ...}.
"""

from __future__ import annotations

import json
import sys
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.errors import ConfigError, PenstockError
from penstock.pool import engine_plugins
from penstock.protocols import Pool

if TYPE_CHECKING:
    from penstock.protocols import Access

__all__ = ["answers", "main", "perform"]

# Names in one question.
_AT_ONCE = 1000


def perform(access: Access, order: list[Any]) -> Any:
    """One order's answer, as plain values."""
    try:
        match order:
            case ["names", prefix]:
                return access.names(prefix)
            case ["put", name, path]:
                return access.put(name, Path(path))
            case ["read", name, offset, length]:
                body = access.read(name, offset, length)
                return {"length": len(body), "crc32": zlib.crc32(body)}
            case ["locate", names]:
                return {
                    name: [[piece.offset, piece.length, list(piece.nodes)] for piece in pieces]
                    for name, pieces in access.locate(names).items()
                }
            case ["fast_path" | "mount_path" as which, name]:
                path = access.fast_path(name) if which == "fast_path" else access.mount_path(name)
                if path is None:
                    return None
                body = path.read_bytes() if path.is_file() else b""
                return {"path": str(path), "length": len(body), "crc32": zlib.crc32(body)}
            case ["forsake", lost]:
                return _forsake(access, set(lost))
            case ["delete", names]:
                return access.delete(names)
            case _:
                return {"error": "usage", "text": f"no such order: {order}"}
    except PenstockError as error:
        return {"error": error.code, "text": str(error)}


def _forsake(access: Access, lost: set[str]) -> int:
    """Deletes the objects of which a piece lies on lost nodes alone; how many there were."""
    names, gone = access.names(), 0
    for at in range(0, len(names), _AT_ONCE):
        located = access.locate(names[at : at + _AT_ONCE])
        only_there = [
            name
            for name, pieces in located.items()
            if any(piece.nodes and set(piece.nodes) <= lost for piece in pieces)
        ]
        access.delete(only_there)
        gone += len(only_there)
    return gone


def answers(engine: str, node: str, orders: str, pool: bytes) -> str:
    """The answers to orders, as one JSON list.

    Args:
        orders: A JSON list of them.
        pool: The pool as JSON.

    Raises:
        ConfigError: The pool or the orders are not what they should be.
        PenstockError: The pool does not answer at all.
    """
    try:
        known, asked = msgspec.json.decode(pool, type=Pool), msgspec.json.decode(orders, type=list[list[Any]])
    except msgspec.DecodeError as error:
        raise ConfigError(
            f"pool orders: {error}", hint="the pool comes as JSON on stdin, the orders as a list"
        ) from error
    access = engine_plugins.load(engine, {}).access(known, node)
    return json.dumps([perform(access, order) for order in asked])


def main() -> int:
    """Does the orders of the command line."""
    engine, node, orders = sys.argv[1:]
    sys.stdout.write(answers(engine, node, orders, sys.stdin.buffer.read()))
    return 0


if __name__ == "__main__":
    sys.exit(main())

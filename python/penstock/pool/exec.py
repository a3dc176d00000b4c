# SPDX-License-Identifier: Apache-2.0
"""Runs object operations on a node of a pool, for callers on other machines (node-loss recovery, `EngineSuite`).

Start this module on the node as `penstock pool exec ENGINE NODE REQUESTS`, or with the same arguments as `python -m
penstock.pool.exec`. The process reads the pool as JSON from stdin. REQUESTS is a JSON list that runs in order, such as
[["put", "a/b", "/tmp/x"], ["read", "a/b", 0, 100]]. The results are one JSON list on stdout. Bytes are returned as
length and CRC-32, errors as {"error": code, "text": ...}.
"""

from __future__ import annotations

import json
import sys
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.errors import ConfigError, PenstockError
from penstock.pool import engine_registry
from penstock.protocols import Pool

if TYPE_CHECKING:
    from penstock.protocols import Access

__all__ = ["execute", "execute_all", "main"]

# Maximum number of names in one `locate` call.
_NAMES_PER_REQUEST = 1000


def execute(access: Access, request: list[Any]) -> Any:
    """Run one request; return its result or error as plain values for JSON."""
    try:
        match request:
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
            case ["evict", lost]:
                return _evict(access, set(lost))
            case ["delete", names]:
                return access.delete(names)
            case _:
                return {"error": "usage", "text": f"unknown request: {request}"}
    except PenstockError as error:
        return {"error": error.code, "text": str(error)}


def _evict(access: Access, lost: set[str]) -> int:
    """Delete every object that has a piece stored only on lost nodes; return the number of deleted objects."""
    names, gone = access.names(), 0
    for at in range(0, len(names), _NAMES_PER_REQUEST):
        located = access.locate(names[at : at + _NAMES_PER_REQUEST])
        only_there = [
            name
            for name, pieces in located.items()
            if any(piece.nodes and set(piece.nodes) <= lost for piece in pieces)
        ]
        access.delete(only_there)
        gone += len(only_there)
    return gone


def execute_all(engine: str, node: str, requests: str, pool: bytes) -> str:
    """Run all requests; return the results as one JSON list.

    Args:
        requests: A JSON list of requests.
        pool: The pool as JSON.

    Raises:
        ConfigError: The pool or the requests cannot be parsed.
        PenstockError: The pool cannot be accessed. The error of a single request is in its result instead.
    """
    try:
        known, decoded = msgspec.json.decode(pool, type=Pool), msgspec.json.decode(requests, type=list[list[Any]])
    except msgspec.DecodeError as error:
        raise ConfigError(
            f"pool exec: {error}", hint="pass the pool as JSON on stdin and the requests as a JSON list"
        ) from error
    access = engine_registry.load(engine, {}).access(known, node)
    return json.dumps([execute(access, request) for request in decoded])


def main() -> int:
    """Run the requests that the command line contains, and print their results."""
    engine, node, requests = sys.argv[1:]
    sys.stdout.write(execute_all(engine, node, requests, sys.stdin.buffer.read()))
    return 0


if __name__ == "__main__":
    sys.exit(main())

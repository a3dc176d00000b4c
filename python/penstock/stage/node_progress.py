# SPDX-License-Identifier: Apache-2.0
"""Exchanges the progress of a launch's nodes through one small file per node, in a folder that all nodes share.

Needs no service and no port, and sends no request to the store. A separate thread reads and writes the files, so a file
system that hangs does not delay a stage or cause an error. If the folder is not shared, the first node finds only its
own file, and reports that the folder is not shared. Never waits for another node.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.ownership import OwnedFolder, remove_flat_folder

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.ranks import Rank

__all__ = ["COUNTERS", "SharedProgress", "folder_for", "summed"]

COUNTERS = (
    "objects", "bytes", "done", "done_bytes", "skipped", "bytes_in", "bytes_out", "resumed_bytes", "refetched", "failed",
    "requests", "retries", "throttles",
)  # fmt: skip

# Maximum number of file writes per second, summed over all nodes.
_WRITES_PER_S = 50
_PERIOD_S = 1.0
# Maximum file size. A file of counters is short; a longer file belongs to another program.
_MAX_BYTES = 4096
# Age in seconds at which a launch's folder counts as abandoned and is removed.
_OLD_S = 7 * 86400
_FOLDER = re.compile(r"[0-9a-f]{24}")
_FILES = r"[0-9]+\.json|\.[0-9]+\.json\.[0-9]+\.[0-9a-f]+|\.[0-9]+\.[0-9]+"


def folder_for(environment: Mapping[str, str], rank: Rank, given: str | None, what: str) -> Path | None:
    """Return the folder that the nodes of this launch share; None for a single node, or if the launch has no id.

    Args:
        environment: Environment variables, of which HOME and XDG_CACHE_HOME are used.
        rank: Rank of this process.
        given: Folder that the user chose; by default the user's cache folder, which is in HOME and therefore usually
            shared.
        what: Identifies the stage, so that two stages of one launch use different folders.
    """
    if rank.nodes < 2 or rank.launch_id is None:
        return None
    home = environment.get("HOME")
    cache = environment.get("XDG_CACHE_HOME") or (f"{home}/.cache" if home else None)
    base = Path(given) if given else Path(cache) / "penstock/launches" if cache else None
    name = hashlib.sha256(f"{rank.launch_id}\0{rank.nodes}\0{what}".encode()).hexdigest()[:24]
    return None if base is None else base / name


class SharedProgress:
    """Writes one node's file in the folder. On the first node, it also reads the other nodes' files."""

    def __init__(self, folder: Path, node: int, nodes: int, *, period_s: float = _PERIOD_S) -> None:
        self._folder, self.node, self.nodes = folder, node, nodes
        self._period_s = max(period_s, nodes / _WRITES_PER_S)
        self._mine: dict[str, Any] = {}
        self._seen: dict[int, dict[str, Any]] = {}
        self._fresh: dict[int, tuple[Any, float]] = {}
        self._beat = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-board", daemon=True)
        self._thread.start()

    def post(self, now: Mapping[str, Any]) -> None:
        """Set the counters to write next. This method only stores a dict, so it is cheap."""
        self._mine = {name: now.get(name, 0) for name in COUNTERS}

    def seen(self) -> dict[int, dict[str, Any]]:
        """Return the latest counters of each node: from the last `post` for this node, and from the files for all other
        nodes.
        """
        return {**self._seen, self.node: self._mine} if self._mine else dict(self._seen)

    def running(self, within_s: float) -> int:
        """Return the number of other nodes that have not ended, and have written their file in the last `within_s`
        seconds.
        """
        fresh = time.monotonic() - within_s
        return sum(
            1
            for node, one in self._seen.items()
            if node != self.node and not one.get("ended") and self._fresh[node][1] > fresh
        )

    def close(self, *, ended: bool = True) -> None:
        """Write the last counters; the first node also removes the folder. Waits only briefly for a slow file
        system.
        """
        self._mine = {**self._mine, "ended": ended}
        self._stop.set()
        self._thread.join(timeout=2.0)

    def _run(self) -> None:
        held: OwnedFolder | None = None
        with suppress(OSError):
            held = self._opened()
            if self.node == 0:
                self._sweep()
        while True:
            stopping = self._stop.wait(self._period_s)
            with suppress(OSError, ValueError):
                held = held or self._opened()
                if self._mine:
                    self._write(held)
                if self.node == 0:
                    self._read(held)
            if stopping:
                break
        if held is not None:
            held.close()
        if self.node == 0 and not self.running(30.0):
            _clear(self._folder)

    def _opened(self) -> OwnedFolder:
        """Open the folder, and create it if it is missing. Access is through the folder's descriptor, so that a link
        that replaces the folder cannot redirect writes.
        """
        self._folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        return OwnedFolder.made(str(self._folder))

    def _write(self, held: OwnedFolder) -> None:
        self._beat += 1
        text = json.dumps({**self._mine, "beat": self._beat})
        held.write(f"{self.node}.json", text.encode("ascii"), replaces=True)

    def _read(self, held: OwnedFolder) -> None:
        for name in held.names():
            number, _, suffix = name.partition(".")
            if suffix != "json" or not number.isdecimal() or int(number) >= self.nodes or int(number) == self.node:
                continue
            given: Any = None
            # Ignore an invalid file, and read the next file.
            with suppress(OSError, ValueError, RecursionError):
                given = json.loads((held.read(name) or b"")[:_MAX_BYTES])
            if not isinstance(given, dict) or not all(isinstance(given.get(name), int) for name in COUNTERS):
                continue
            node = int(number)
            if self._fresh.get(node, (None, 0.0))[0] != given.get("beat"):
                self._fresh[node] = (given.get("beat"), time.monotonic())
            self._seen[node] = given

    def _sweep(self) -> None:
        old = time.time() - _OLD_S
        with os.scandir(self._folder.parent) as entries:
            beside = list(entries)[:256]
        for entry in beside:
            if (
                _FOLDER.fullmatch(entry.name)
                and entry.is_dir(follow_symlinks=False)
                and entry.stat(follow_symlinks=False).st_mtime < old
            ):
                _clear(Path(entry.path))


def _clear(folder: Path) -> None:
    """Remove a launch's folder, unless it contains anything other than this user's node files."""
    with suppress(OSError):
        remove_flat_folder(str(folder), _FILES)


def summed(now: Mapping[int, Mapping[str, Any]], nodes: int) -> dict[str, Any]:
    """Sum the counters of all nodes. Adds the number of nodes that reported, and the slowest node with its progress."""
    known = {node: one["done_bytes"] / one["bytes"] for node, one in now.items() if one.get("bytes")}
    slowest = min(known, key=lambda node: known[node], default=None)
    total: dict[str, Any] = {name: sum(one.get(name, 0) for one in now.values()) for name in COUNTERS}
    return total | {
        "nodes": nodes,
        "nodes_seen": len(now),
        "slowest_node": slowest,
        "slowest_share": None if slowest is None else known[slowest],
    }

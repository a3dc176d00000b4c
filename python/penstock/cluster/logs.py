# SPDX-License-Identifier: Apache-2.0
"""Writes per-node logs: `NODE.log` contains every output line of a node with its time, rank and stream."""

from __future__ import annotations

import re
import threading
import time
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from penstock.protocols import OnLine

__all__ = ["Logs"]


class Logs:
    """Per-node logs of one command. `on_line` writes a line, then passes it to the callback `then`."""

    def __init__(self, folder: Path, then: OnLine | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._then = then
        self._files: dict[str, IO[bytes]] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> Logs:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in self._files.values():
            file.close()

    def on_line(self, node: str, rank: int, stream: str, line: bytes) -> None:
        """Write one output line to its node's log. May be called from any thread."""
        with self._lock:
            file = self._files.get(node)
            if file is None:
                # Node names that contain ports or addresses are not valid file names.
                name = re.sub(r"[^A-Za-z0-9._-]", "_", node)
                file = self._files[node] = (self._folder / f"{name}.log").open("ab")
            stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime())
            file.write(f"{stamp} {rank} {stream} ".encode() + line + b"\n")
            file.flush()
        if self._then is not None:
            self._then(node, rank, stream, line)

# SPDX-License-Identifier: Apache-2.0
"""Connection of one host to the leader: joins the benchmark, starts phases at the agreed times, and sends the rows."""

from __future__ import annotations

import os
import queue
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from penstock import _native
from penstock.bench.distributed.jsonl import JsonLines
from penstock.errors import PenstockError, RankFailed, Unreachable, to_wire

if TYPE_CHECKING:
    from penstock.bench.distributed.config import AgentConfig
    from penstock.bench.rows import Row

__all__ = ["Follower"]

_JOIN_S = 60.0
_RETRY_S = 0.1
_REPORT_S = 0.5


class Follower:
    """Client of the leader. Its methods are the hooks of a benchmark (`penstock.bench.phases.Hooks`)."""

    def __init__(self, config: AgentConfig, rank: int) -> None:
        """Connect to the leader and join the benchmark.

        Raises:
            Unreachable: The leader cannot be reached.
            RankFailed: The leader rejected this or another host.
        """
        self._rank = rank
        self._lines = JsonLines(_connected(config.address, config.port))
        self._starts: queue.Queue[float | None] = queue.Queue()
        self._aborted: str | None = None
        self._is_over = threading.Event()
        self._reported_at = 0.0
        self._phase = -1
        self._machine = _machine()
        self._lines.limit(_JOIN_S)
        self._lines.send({"token": config.token, "rank": rank, "version": _native.__version__})
        self._clock()
        self._lines.limit(None)
        threading.Thread(target=self._receive, name="penstock-member", daemon=True).start()

    def _clock(self) -> None:
        """Respond to the leader's clock requests until the leader has accepted all hosts."""
        while True:
            try:
                message = self._lines.receive()
            except OSError as error:
                raise Unreachable(f"the first host does not respond: {error}") from None
            match message:
                case {"clock": _}:
                    self._lines.send({"clock": time.time()})
                case {"joined": _}:
                    return
                case {"abort": str(why)}:
                    raise RankFailed(why)
                case _:
                    raise RankFailed("the first host disconnected while hosts were joining")

    def _receive(self) -> None:
        while True:
            try:
                message = self._lines.receive()
            except (OSError, PenstockError):
                message = None
            match message:
                case {"start": float(moment)}:
                    self._starts.put(moment)
                case {"abort": str(why)}:
                    self._aborted = why
                    self._starts.put(None)
                case _:
                    self._aborted = self._aborted or "the first host disconnected"
                    self._starts.put(None)
                    self._is_over.set()
                    return

    def check(self) -> None:
        """Raise RankFailed if the leader has aborted the benchmark."""
        if self._aborted is not None:
            raise RankFailed(self._aborted)

    def start(self, phase: str) -> float:
        """Wait until all hosts are ready; return the agreed start time on this host's clock."""
        self.check()
        self._phase += 1
        self._lines.send({"ready": self._phase, "phase": phase})
        moment = self._starts.get()
        self.check()
        assert moment is not None
        return moment

    def on_progress(self, phase: str, workers: int, done: tuple[int, int, int]) -> None:
        """Report this host's progress, at most once per `_REPORT_S`."""
        self.check()
        now = time.monotonic()
        if now - self._reported_at >= _REPORT_S:
            self._reported_at = now
            self._lines.send({"progress": [phase, workers, list(done)]})

    def on_row(self, row: Row) -> None:
        """Send a row to the leader."""
        self.check()
        if self._machine:
            row = msgspec.structs.replace(row, raw={**row.raw, "boot_id": self._machine, "affinity": _affinity()})
        self._lines.send({"row": msgspec.to_builtins(row), "of": self._phase})

    def done(self) -> None:
        """Report that this host has finished and cleaned up. Return when all hosts have done so."""
        with suppress(OSError):
            self._lines.send({"done": True})
            self._is_over.wait()

    def failed(self, error: Exception) -> None:
        """Report to the leader why this host cannot continue, if the connection still works."""
        if self._aborted is None:
            with suppress(OSError):
                self._lines.send({"fault": to_wire(error)})

    def close(self) -> None:
        """Close the connection."""
        self._lines.close()


def _machine() -> str:
    """Boot ID of this host's machine, which shows whether several hosts share one machine. Empty if the kernel does not
    report it.
    """
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return ""


def _affinity() -> str:
    """Comma-separated numbers of the processors that this host may use."""
    return ",".join(map(str, sorted(os.sched_getaffinity(0))))


def _connected(address: str, port: int) -> socket.socket:
    until = time.monotonic() + _JOIN_S
    while True:
        try:
            return socket.create_connection((address, port), timeout=5)
        except OSError as error:
            if time.monotonic() > until:
                raise Unreachable(f"the first host at {address}:{port} does not respond: {error}") from None
            time.sleep(_RETRY_S)

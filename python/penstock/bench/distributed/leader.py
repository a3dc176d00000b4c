# SPDX-License-Identifier: Apache-2.0
"""Leader of a benchmark on many hosts: compares their clocks, starts each phase on all of them, and merges their rows.

If a host fails or disconnects, the leader reports the failure once, and aborts the benchmark on all other hosts.
"""

from __future__ import annotations

import hmac
import queue
import socket
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from penstock import _native
from penstock.bench.distributed.jsonl import JsonLines
from penstock.bench.distributed.merge import merge
from penstock.bench.rows import Row
from penstock.errors import (
    ConfigError,
    Corrupt,
    PenstockError,
    RankFailed,
    SystemFault,
    Unreachable,
    from_wire,
    to_wire,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.bench.distributed.config import AgentConfig

__all__ = ["Leader"]

_JOIN_S = 60.0
# Number of clock requests per host. The request with the shortest round trip has the most accurate offset.
_ASKED = 16
# Delay between the start message and the start of a phase. The message must reach every host before the start.
_LEAD_S = 0.25


class Leader:
    """Leads one benchmark. Calls `send` with every message for the user's machine, as plain values."""

    def __init__(self, config: AgentConfig, send: Callable[[dict[str, Any]], None]) -> None:
        """Start listening.

        Raises:
            SystemFault: Another program uses the port.
        """
        self._orders = config
        self._send = send
        self._events: queue.Queue[tuple[int, dict[str, Any] | None]] = queue.Queue()
        self._members: dict[int, JsonLines] = {}
        self._offsets: dict[int, float] = {}
        self._rows: dict[int, list[dict[str, Any]]] = {}
        try:
            self._listener = socket.create_server((config.address, config.port), backlog=1024)
        except OSError as error:
            raise SystemFault(f"cannot listen on {config.address}:{config.port}: {error.strerror}") from None
        self._thread = threading.Thread(target=self._lead, name="penstock-leader", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Wait until all messages are sent."""
        self._thread.join(_JOIN_S)
        self._listener.close()

    def _lead(self) -> None:
        try:
            self._join()
            self._phases()
            self._send({"done": True})
        except Exception as error:  # reported below, because nothing would catch it at the end of this thread
            self._send({"fault": to_wire(error)})
            for lines in self._members.values():
                with suppress(OSError):
                    lines.send({"abort": str(error)})
        finally:
            for lines in self._members.values():
                lines.close()

    # ------------------------------------------------------------ joining

    def _join(self) -> None:
        wanted = len(self._orders.nodes)
        until = time.monotonic() + _JOIN_S
        while len(self._members) < wanted:
            self._listener.settimeout(max(0.001, until - time.monotonic()))
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                missing = [name for rank, name in enumerate(self._orders.nodes) if rank not in self._members]
                raise Unreachable(
                    f"{missing[0]} has not joined within {_JOIN_S:g} s"
                    f"{f' (and {len(missing) - 1} more)' if len(missing) > 1 else ''}",
                    hint="check that every host can connect to the first host's address (see --on)",
                ) from None
            self._welcome(JsonLines(connection))
        for rank, lines in self._members.items():
            lines.limit(None)
            with suppress(OSError):  # the loss of a host is detected when its message is received
                lines.send({"joined": True})
            threading.Thread(
                target=self._receive, args=(rank, lines), name=f"penstock-leader-{rank}", daemon=True
            ).start()
        self._send({"joined": wanted, "clock_skew_s": max(abs(offset) for offset in self._offsets.values())})

    def _welcome(self, lines: JsonLines) -> None:
        lines.limit(5.0)
        try:
            hello = lines.receive() or {}
        except (OSError, PenstockError):
            hello = {}
        rank = hello.get("rank")
        is_ours = hmac.compare_digest(str(hello.get("token", "")), self._orders.token)
        if not is_ours or not isinstance(rank, int) or not 0 <= rank < len(self._orders.nodes):
            lines.close()  # an unknown connection must not end the benchmark
            return
        if rank in self._members:
            raise ConfigError(f"{self._name(rank)} joined twice")
        self._members[rank] = lines
        if hello.get("version") != _native.__version__:
            raise ConfigError(
                f"{self._name(rank)} has penstock {hello.get('version')}, but {self._name(0)} has "
                f"{_native.__version__}",
                hint="install the same version on all hosts",
            )
        offset, doubt = self._clock(rank, lines)
        if abs(offset) - doubt > self._orders.max_skew_s:
            raise SystemFault(
                f"{self._name(rank)}: the clock differs from the clock of {self._name(0)} by {offset:+.3f} s"
                f" (limit {self._orders.max_skew_s:g} s)",
                hint="synchronise the clocks (chrony, ntpd), or allow more with --max-skew",
            )
        self._offsets[rank] = offset

    def _clock(self, rank: int, lines: JsonLines) -> tuple[float, float]:
        """Offset of a host's clock from the leader's clock, and its uncertainty, in seconds."""
        best, found = float("inf"), 0.0
        for _ in range(_ASKED):
            asked = time.time()
            try:
                lines.send({"clock": asked})
                reported = (lines.receive() or {}).get("clock")
            except OSError as error:
                raise Unreachable(f"{self._name(rank)} disconnected during the clock comparison: {error}") from None
            took = time.time() - asked
            if not isinstance(reported, float):
                raise Corrupt(f"{self._name(rank)}: invalid clock reading {reported!r}")
            if took < best:
                best, found = took, reported - (asked + took / 2)
        return found, best / 2

    # ------------------------------------------------------------ phases

    def _receive(self, rank: int, lines: JsonLines) -> None:
        while True:
            try:
                message = lines.receive()
            except (OSError, PenstockError):
                message = None
            self._events.put((rank, message))
            if message is None:
                return

    def _phases(self) -> None:
        everyone = set(self._members)
        ready: dict[int, int] = {}
        done: set[int] = set()
        seen: dict[int, tuple[int, int, int]] = {}
        phase = "joining"
        while done != everyone:
            rank, message = self._events.get()
            match message:
                case {"ready": int(at), "phase": str(phase)}:
                    ready[rank] = at
                    if len(ready) == len(everyone):
                        if len(set(ready.values())) > 1 or done:
                            raise RankFailed("the hosts are in different phases", where=self._name(rank))
                        ready.clear()
                        seen.clear()
                        self._flush()
                        self._begin()
                case {"row": dict(row), "of": int(at)}:
                    self._rows.setdefault(at, []).append({"rank": rank, "row": row})
                case {"progress": [str(name), int(workers), [int(a), int(b), int(c)]]}:
                    seen[rank] = (a, b, c)
                    total = [sum(column) for column in zip(*seen.values(), strict=True)]
                    self._send({"progress": [name, workers * len(everyone), total]})
                case {"done": True}:
                    done.add(rank)
                case {"fault": dict(reported)}:
                    raise from_wire(reported, prefix=f"{self._name(rank)}: ", where=self._name(rank))
                case None if rank not in done:
                    raise RankFailed(
                        f"{self._name(rank)} disconnected during {phase}; the benchmark was stopped on all "
                        f"{len(everyone)} hosts",
                        rank=rank,
                        where=self._name(rank),
                    )
                case None:
                    pass
                case _:
                    raise Corrupt(f"{self._name(rank)} sent an unknown message: {str(message)[:100]}")
        self._flush()

    def _begin(self) -> None:
        moment = time.time() + _LEAD_S
        for rank, lines in self._members.items():
            with suppress(OSError):  # the loss of a host is detected when its message is received
                lines.send({"start": moment + self._offsets[rank]})

    def _flush(self) -> None:
        """Send the rows of finished phases. The rows of each operation are merged over all hosts, and the operations
        keep their order of arrival.
        """
        for of in sorted(self._rows):
            found: dict[tuple[str, str], list[Row]] = {}
            for each in self._rows[of]:
                row = msgspec.convert(each["row"], Row)
                found.setdefault((row.operation, row.raw.get("request", "")), []).append(row)
            for rows in found.values():
                late = [float(row.raw.get("start_late_s", 0.0)) for row in rows]
                self._send({"row": msgspec.to_builtins(merge(rows, late))})
        self._rows.clear()

    def _name(self, rank: int) -> str:
        return self._orders.nodes[rank]

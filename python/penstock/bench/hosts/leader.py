# SPDX-License-Identifier: Apache-2.0
"""Leader of a benchmark on many hosts: compares their clocks, starts each phase on all of them, and merges their rows.

Owns the end of a benchmark that cannot continue: it reports one host's failure or silence once, and calls off all
others.
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
from penstock.bench.hosts.merge import merge
from penstock.bench.hosts.wire import Wire, fault
from penstock.bench.rows import Row
from penstock.errors import ConfigError, Corrupt, PenstockError, RankFailed, SystemFault, Unreachable, of_code

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.bench.hosts.orders import Orders

__all__ = ["Leader"]

_JOIN_S = 60.0
# Clock requests per host; the one with the shortest round trip is the most exact.
_ASKED = 16
# Delay between the start message and the start itself: the message must reach every host first.
_LEAD_S = 0.25


class Leader:
    """One benchmark. `say` is called with every message for the user's machine, as plain values."""

    def __init__(self, orders: Orders, send: Callable[[dict[str, Any]], None]) -> None:
        """Start to listen.

        Raises:
            SystemFault: Another program uses the port.
        """
        self._orders = orders
        self._send = send
        self._events: queue.Queue[tuple[int, dict[str, Any] | None]] = queue.Queue()
        self._members: dict[int, Wire] = {}
        self._offsets: dict[int, float] = {}
        self._rows: dict[int, list[dict[str, Any]]] = {}
        try:
            self._listener = socket.create_server((orders.address, orders.port), backlog=1024)
        except OSError as error:
            raise SystemFault(f"{orders.address}:{orders.port} cannot be listened at: {error.strerror}") from None
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
        except Exception as error:  # reported below: an exception would be lost at this thread's end
            self._send(fault(error))
            for wire in self._members.values():
                with suppress(OSError):
                    wire.send({"abort": str(error)})
        finally:
            for wire in self._members.values():
                wire.close()

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
                    hint="hosts of a bench reach the first one at its own address; see --on",
                ) from None
            self._welcome(Wire(connection))
        for rank, wire in self._members.items():
            wire.limit(None)
            with suppress(OSError):  # a silent host is detected at its turn
                wire.send({"joined": True})
            threading.Thread(
                target=self._receive, args=(rank, wire), name=f"penstock-leader-{rank}", daemon=True
            ).start()
        self._send({"joined": wanted, "clock_skew_s": max(abs(offset) for offset in self._offsets.values())})

    def _welcome(self, wire: Wire) -> None:
        wire.limit(5.0)
        try:
            hello = wire.receive() or {}
        except (OSError, PenstockError):
            hello = {}
        rank = hello.get("rank")
        is_ours = hmac.compare_digest(str(hello.get("token", "")), self._orders.token)
        if not is_ours or not isinstance(rank, int) or not 0 <= rank < len(self._orders.nodes):
            wire.close()  # an unknown connection must not end the benchmark
            return
        if rank in self._members:
            raise ConfigError(f"{self._name(rank)} has joined twice")
        self._members[rank] = wire
        if hello.get("version") != _native.__version__:
            raise ConfigError(
                f"{self._name(rank)} has penstock {hello.get('version')}, and {self._name(0)} has {_native.__version__}",
                hint="one bench wants one version everywhere",
            )
        offset, doubt = self._clock(rank, wire)
        if abs(offset) - doubt > self._orders.max_skew_s:
            raise SystemFault(
                f"{self._name(rank)}: its clock is {offset:+.3f} s from that of {self._name(0)}, and"
                f" {self._orders.max_skew_s:g} s are allowed",
                hint="set the clocks by one source (chrony, ntpd); --max-skew allows more",
            )
        self._offsets[rank] = offset

    def _clock(self, rank: int, wire: Wire) -> tuple[float, float]:
        """Offset of a host's clock from ours, and its uncertainty, in seconds."""
        best, found = float("inf"), 0.0
        for _ in range(_ASKED):
            asked = time.time()
            try:
                wire.send({"clock": asked})
                reported = (wire.receive() or {}).get("clock")
            except OSError as error:
                raise Unreachable(f"{self._name(rank)} went away as its clock was compared: {error}") from None
            took = time.time() - asked
            if not isinstance(reported, float):
                raise Corrupt(f"{self._name(rank)}: its clock says {reported!r}")
            if took < best:
                best, found = took, reported - (asked + took / 2)
        return found, best / 2

    # ------------------------------------------------------------ phases

    def _receive(self, rank: int, wire: Wire) -> None:
        while True:
            try:
                message = wire.receive()
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
                            raise RankFailed(
                                "hosts have come apart: they are at different phases", where=self._name(rank)
                            )
                        ready.clear()
                        seen.clear()
                        self._flush()
                        self._begin()
                case {"row": dict(row), "of": int(at)}:
                    self._rows.setdefault(at, []).append({"rank": rank, "row": row})
                case {"look": [str(name), int(workers), [int(a), int(b), int(c)]]}:
                    seen[rank] = (a, b, c)
                    total = [sum(column) for column in zip(*seen.values(), strict=True)]
                    self._send({"look": [name, workers * len(everyone), total]})
                case {"done": True}:
                    done.add(rank)
                case {"fault": str(code), "text": str(text), "hint": hint}:
                    raise of_code(code, f"{self._name(rank)}: {text}", hint=hint, where=self._name(rank))
                case None if rank not in done:
                    raise RankFailed(
                        f"{self._name(rank)} went away during {phase}; the bench is ended on all {len(everyone)} hosts",
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
        for rank, wire in self._members.items():
            with suppress(OSError):  # a silent host is detected at its turn
                wire.send({"start": moment + self._offsets[rank]})

    def _flush(self) -> None:
        """Send the rows of finished phases, each merged over all hosts, in the order of the first host that has them."""
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

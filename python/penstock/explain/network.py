# SPDX-License-Identifier: Apache-2.0
"""Follows the TCP connections of a process tree, and sums them by remote endpoint."""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from statistics import median

from penstock.errors import SystemFault
from penstock.explain.result import Endpoint
from penstock.explain.sockets import TcpSocket, TcpSockets

__all__ = ["Connections"]


@dataclass(slots=True)
class _Connection:
    remote: tuple[str, int]
    local: tuple[str, int]
    began_s: float
    first_received: int
    received: int
    first_sent: int
    sent: int
    retransmits: int
    last_s: float
    samples: int = 0
    receiving: int = 0
    rtts_s: list[float] = field(default_factory=list)


class Connections:
    """Connections of the tree. Misses connections that open and close between two reads.

    `error` states why TCP is not visible.
    """

    def __init__(self) -> None:
        self.error: str | None = None
        self._seen: dict[int, _Connection] = {}
        self._open: dict[tuple[str, int], int] = defaultdict(int)
        self._rates: list[tuple[float, int]] = []
        self._kernel: TcpSockets | None = None
        try:
            self._kernel = TcpSockets()
        except SystemFault as error:
            self.error = str(error)

    def read(self, now_s: float, inodes: set[int]) -> None:
        """Read the connections whose sockets belong to the tree."""
        if self._kernel is None:
            return
        try:
            ours = [one for one in self._kernel.read(inodes - {0}) if one.inode]
        except OSError as error:
            self.error = f"TCP information is not available: {error.strerror or error}"
            self.close()
            return
        counts: dict[tuple[str, int], int] = defaultdict(int)
        arrived = 0
        for one in ours:
            counts[one.remote] += 1
            arrived += self._note(one, now_s)
        self._rates.append((now_s, arrived))
        for remote, count in counts.items():
            self._open[remote] = max(self._open[remote], count)

    def _note(self, one: TcpSocket, now_s: float) -> int:
        known = self._seen.get(one.inode)
        if known is None or known.local != one.local:
            # A connection that is found after the first reading is new, so all its bytes count.
            first = one.received_bytes if not self._rates else 0
            first_sent = one.sent_bytes if not self._rates else 0
            known = self._seen[one.inode] = _Connection(
                one.remote, one.local, now_s, first, first, first_sent, one.sent_bytes, one.retransmits, now_s
            )
        arrived = one.received_bytes - known.received
        known.samples += 1
        known.receiving += arrived > 0
        known.received, known.sent, known.last_s = one.received_bytes, one.sent_bytes, now_s
        known.retransmits = max(known.retransmits, one.retransmits)
        if one.rtt_s > 0:
            known.rtts_s.append(one.rtt_s)
        return max(0, arrived)

    def restart(self) -> None:
        """Reset the counters at the end of the start-up."""
        for known in self._seen.values():
            known.first_received, known.first_sent = known.received, known.sent
            known.samples = known.receiving = 0
        self._rates = self._rates[-1:]

    def endpoints(self, seconds: float) -> tuple[Endpoint, ...]:
        """Sum the connections by remote endpoint, largest first."""
        # If the remote address is the local address of another connection, the remote process belongs to the tree.
        locals_ = {known.local for known in self._seen.values()}
        groups: dict[tuple[str, int], list[_Connection]] = defaultdict(list)
        for known in self._seen.values():
            if known.samples:
                groups[known.remote].append(known)
        found = []
        for remote, members in groups.items():
            received = sum(one.received - one.first_received for one in members)
            samples = sum(one.samples for one in members)
            rtts_s = [rtt for one in members for rtt in one.rtts_s]
            found.append(
                Endpoint(
                    address=remote[0],
                    port=remote[1],
                    role="internal" if remote in locals_ else "store",
                    connections=self._open[remote],
                    opened=len(members),
                    received_bytes=received,
                    sent_bytes=sum(one.sent - one.first_sent for one in members),
                    rate_bytes_per_s=received / seconds if seconds > 0 else 0.0,
                    receiving_share=sum(one.receiving for one in members) / samples if samples else 0.0,
                    rtt_s=median(rtts_s) if rtts_s else None,
                    retransmits=sum(one.retransmits for one in members),
                )
            )
        return tuple(sorted(found, key=lambda one: -one.received_bytes))

    def best_rate_bytes_per_s(self, window_s: float = 1.0) -> float:
        """Highest rate of all connections within any second."""
        best, start, total = 0.0, 0, 0
        for now_s, arrived in self._rates[1:]:
            total += arrived
            while start < len(self._rates) - 1 and now_s - self._rates[start][0] > window_s:
                start += 1
                total -= self._rates[start][1]
            if now_s - self._rates[start][0] > 0.5 * window_s:
                best = max(best, total / (now_s - self._rates[start][0]))
        return best

    def steady_share(self, interval_s: float = 0.5) -> float:
        """Share of the intervals in which the rate was within 25 % of its median: 1 for a link at its limit."""
        buckets: dict[int, int] = defaultdict(int)
        for now_s, arrived in self._rates[1:]:
            buckets[int(now_s / interval_s)] += arrived
        values = list(buckets.values())[1:-1]
        if len(values) < 4 or median(values) <= 0:
            return 0.0
        middle = median(values)
        return sum(abs(value - middle) <= 0.25 * middle for value in values) / len(values)

    def close(self) -> None:
        """Close the connection to the kernel."""
        if self._kernel is not None:
            with suppress(OSError):
                self._kernel.close()
            self._kernel = None

# SPDX-License-Identifier: Apache-2.0
"""A loopback proxy in front of an S3 server with limits that the tier book cannot express.

The limits are burst credits of bytes, latency that grows with the requests in flight, refusals above a number of
requests in flight, and a rate that rises slowly. Requests pass unchanged with their Host header, so signatures stay
valid.

    with ShapedStore(emulator.endpoint, Shape(...)) as store: ...   # store.endpoint
"""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from time import monotonic
from typing import Self
from urllib.parse import urlsplit

_PIECE = 1 << 16
_REFUSAL_BODY = b"<Error><Code>SlowDown</Code><Message>too many requests in flight</Message></Error>"
_REFUSAL = b"HTTP/1.1 503 Slow Down\r\nContent-Type: application/xml\r\nContent-Length: %d\r\n\r\n%s" % (
    len(_REFUSAL_BODY),
    _REFUSAL_BODY,
)


@dataclass(frozen=True)
class Shape:
    """Limits of the proxy; rates in bytes/s of all connections together, times in seconds.

    Attributes:
        bytes_per_s: Base rate; 0 means no limit.
        burst_per_s, credits: Rate while there are credits, and their number in bytes. They are earned at the base rate.
        latency_s, latency_per_request_s: First-byte latency is `latency_s` plus `latency_per_request_s` for every request
        in flight.
        max_in_flight: Requests in flight above which the next one is refused with 503.
        ramp_from_per_s, doubling_s: Rate at the first request, and the time in which it doubles up to `bytes_per_s`.
    """

    bytes_per_s: float = 0.0
    burst_per_s: float = 0.0
    credits: float = 0.0
    latency_s: float = 0.0
    latency_per_request_s: float = 0.0
    max_in_flight: int = 0
    ramp_from_per_s: float = 0.0
    doubling_s: float = 0.0


class _Pace:
    """Times at which bytes may pass."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._held = shape.credits
        self._at = self._began = self._free = 0.0

    def _rate(self, now: float) -> float:
        shape = self._shape
        if shape.doubling_s:
            risen = shape.ramp_from_per_s * 2 ** min((now - self._began) / shape.doubling_s, 60.0)
            return min(shape.bytes_per_s, risen)
        return shape.burst_per_s if self._held > 0 else shape.bytes_per_s

    def until(self, count: int) -> float:
        """Reserve `count` bytes; return when the last of them may pass."""
        now = monotonic()
        if not self._shape.bytes_per_s:
            return now
        if not self._began:
            self._began = self._at = now
        at = max(self._free, now - 0.02)  # 20 ms of credit, so that late timers do not lower the mean rate
        self._free = at + count / self._rate(max(at, now))
        if self._shape.credits:
            earned = max(0.0, self._free - self._at) * self._shape.bytes_per_s
            self._held = min(self._shape.credits, self._held + earned - count)
            self._at = self._free
        return self._free


class ShapedStore:
    """Context manager that serves at `endpoint` from its own thread. `refused` counts its 503 responses."""

    def __init__(self, upstream: str, shape: Shape) -> None:
        parts = urlsplit(upstream)
        self._upstream = (parts.hostname or "127.0.0.1", parts.port or 80)
        self._shape, self._pace = shape, _Pace(shape)
        self._in_flight = 0
        self.refused = 0
        self.endpoint = ""

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        ready = threading.Event()

        def serve() -> None:
            asyncio.set_event_loop(self._loop)
            server = self._loop.run_until_complete(asyncio.start_server(self._client, "127.0.0.1", 0, limit=1 << 18))
            self.endpoint = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            ready.set()
            self._loop.run_forever()
            server.close()
            left = asyncio.all_tasks(self._loop)
            for task in left:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            self._loop.run_until_complete(asyncio.sleep(0))
            self._loop.close()

        self._thread = threading.Thread(target=serve, name="shaped-store", daemon=True)
        self._thread.start()
        ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream: asyncio.StreamWriter | None = None
        try:
            source, upstream = await asyncio.open_connection(*self._upstream, limit=1 << 18)
            while await self._exchange(reader, writer, source, upstream):
                pass
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, asyncio.CancelledError, ValueError):
            pass  # the client or the store has gone, or the proxy stops
        finally:
            writer.close()
            if upstream is not None:
                upstream.close()

    async def _exchange(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        source: asyncio.StreamReader,
        upstream: asyncio.StreamWriter,
    ) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        body = await reader.readexactly(int(_fields(head).get(b"content-length", b"0")))
        if self._shape.max_in_flight and self._in_flight >= self._shape.max_in_flight:
            self.refused += 1
            writer.write(_REFUSAL)
            await writer.drain()
            return True
        self._in_flight += 1
        try:
            latency_s = self._shape.latency_s + self._shape.latency_per_request_s * self._in_flight
            if latency_s:
                await asyncio.sleep(latency_s)
            upstream.write(head + body)
            await upstream.drain()
            return await self._relay(source, writer, is_bare=head.startswith(b"HEAD "))
        finally:
            self._in_flight -= 1

    async def _relay(self, source: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_bare: bool) -> bool:
        head = await source.readuntil(b"\r\n\r\n")
        fields = _fields(head)
        writer.write(head)
        if b"chunked" in fields.get(b"transfer-encoding", b""):
            while True:
                line = await source.readuntil(b"\r\n")
                size = int(line.split(b";")[0], 16)
                writer.write(line + await source.readexactly(size + 2))
                await writer.drain()
                if not size:
                    return True
        left = 0 if is_bare else int(fields.get(b"content-length", b"0"))
        while left:
            piece = await source.read(min(_PIECE, left))
            if not piece:
                return False
            left -= len(piece)
            wait_s = self._pace.until(len(piece)) - monotonic()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            writer.write(piece)
            await writer.drain()
        await writer.drain()
        return True


def _fields(head: bytes) -> dict[bytes, bytes]:
    lines = (line.partition(b":") for line in head.split(b"\r\n")[1:] if line)
    return {name.strip().lower(): value.strip() for name, _, value in lines}

# SPDX-License-Identifier: Apache-2.0
"""A loopback proxy in front of an S3 server that injects the faults of networks and stores into reads.

Requests pass unchanged, including the Host header, so signatures stay valid. A seed determines which response fails,
and how. Bodies are streamed, never buffered whole. `Faults.counts` counts the injected faults; a fault counts once it
has reached the client.
"""

from __future__ import annotations

import asyncio
import collections
import random
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable

BEFORE = ("503 burst", "429 + Retry-After", "reset before", "expired token")
INSIDE = ("reset inside", "truncated body", "flipped bit", "slow-loris", "replaced mid-GET")
PIECE = 1 << 16
SLOW_S = 1.0
BURST = 4


@dataclass
class Faults:
    """Fault settings: the share of GETs that fail, the kinds of fault, and a callback that replaces an object."""

    rate: float
    seed: int
    kinds: tuple[str, ...] = BEFORE + INSIDE
    replace: Callable[[str], bool] | None = None
    counts: collections.Counter[str] = field(default_factory=collections.Counter)
    body_bytes: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.burst = 0

    def draw(self, target: bytes) -> str | None:
        if b"/large" in target and self.replace is not None and self.random.random() < 0.3:
            return "replaced mid-GET"  # only large objects are replaced, and few requests read them
        if self.burst:
            self.burst -= 1
            return "503 burst"
        if self.random.random() >= self.rate:
            return None
        kind = self.random.choice(self.kinds)
        if kind == "503 burst":
            self.burst = BURST - 1
        return kind


def _error(status: str, code: str, *headers: str) -> bytes:
    body = (
        f'<?xml version="1.0" encoding="UTF-8"?><Error><Code>{code}</Code><Message>injected</Message></Error>'.encode()
    )
    lines = [f"HTTP/1.1 {status}", "Content-Type: application/xml", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


ANSWERS = {
    "503 burst": _error("503 Slow Down", "SlowDown"),
    "429 + Retry-After": _error("429 Too Many Requests", "TooManyRequests", "Retry-After: 1"),
    "expired token": _error("400 Bad Request", "ExpiredToken"),
}


class Proxy:
    """`with Proxy(upstream, faults) as proxy:` serves at `proxy.endpoint` from its own thread."""

    def __init__(self, upstream: str, faults: Faults) -> None:
        parts = urlsplit(upstream)
        self.upstream = (parts.hostname or "127.0.0.1", parts.port or 80)
        self.faults = faults
        self.endpoint = ""

    def __enter__(self) -> Proxy:
        self.loop = asyncio.new_event_loop()
        ready = threading.Event()

        def serve() -> None:
            asyncio.set_event_loop(self.loop)
            server = self.loop.run_until_complete(asyncio.start_server(self._client, "127.0.0.1", 0, limit=1 << 20))
            self.endpoint = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            ready.set()
            self.loop.run_forever()
            server.close()
            left = asyncio.all_tasks(self.loop)
            for task in left:
                task.cancel()
            self.loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))

        self.thread = threading.Thread(target=serve, daemon=True)
        self.thread.start()
        ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._exchange(reader, writer):
                pass
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
            pass
        finally:
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        lines = head.split(b"\r\n")[:-2]
        fields = _fields(lines)
        body = await reader.readexactly(int(fields.get(b"content-length", b"0")))
        method, target, _ = lines[0].split(b" ", 2)
        query = target.partition(b"?")[2]
        is_read = method == b"GET" and target.count(b"/") > 1 and b"list-type" not in query and b"location" not in query
        fault = self.faults.draw(target) if is_read else None
        if fault in ANSWERS:
            self.faults.counts[fault] += 1
            writer.write(ANSWERS[fault])
            await writer.drain()
            return True
        if fault == "reset before":
            self.faults.counts[fault] += 1
            writer.transport.abort()
            return False
        up_reader, up_writer = await asyncio.open_connection(*self.upstream, limit=1 << 20)
        try:
            kept = [line for line in lines if not line.lower().startswith((b"connection:", b"expect:"))]
            up_writer.write(b"\r\n".join(kept) + b"\r\nConnection: close\r\n\r\n" + body)
            await up_writer.drain()
            return await self._relay(up_reader, writer, method, target, fault)
        finally:
            up_writer.close()

    async def _relay(
        self,
        source: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        method: bytes,
        target: bytes,
        fault: str | None,
    ) -> bool:
        head = await source.readuntil(b"\r\n\r\n")
        lines = [line for line in head.split(b"\r\n")[:-2] if not line.lower().startswith(b"connection:")]
        fields, status = _fields(lines), lines[0].split(b" ")[1]
        bare = method == b"HEAD" or status in (b"204", b"304")
        if b"content-length" not in fields and not bare:
            # Chunked responses are listings: they are relayed unchanged, and then the connection is closed.
            writer.write(b"\r\n".join(lines) + b"\r\nConnection: close\r\n\r\n" + await source.read())
            await writer.drain()
            return False
        length = 0 if bare else int(fields[b"content-length"])
        writer.write(b"\r\n".join(lines) + b"\r\n\r\n")
        if fault is None or length < 2 or status not in (b"200", b"206"):
            fault = None
        strike = self.faults.random.randrange(1, length) if fault else 0
        at = 0
        while at < length:
            piece = await source.read(min(PIECE, length - at))
            if not piece:
                raise ConnectionResetError("the server ended early")
            if fault and at <= strike < at + len(piece):
                here = strike - at
                if fault == "flipped bit":
                    piece = (
                        piece[:here] + bytes([piece[here] ^ (1 << self.faults.random.randrange(8))]) + piece[here + 1 :]
                    )
                writer.write(piece[:here])
                await writer.drain()
                if fault != "replaced mid-GET":
                    self.faults.counts[fault] += 1
                if fault == "truncated body":
                    return False
                if fault == "reset inside":
                    writer.transport.abort()
                    return False
                if fault == "slow-loris":
                    for byte in piece[here : here + 10]:
                        writer.write(bytes([byte]))
                        await writer.drain()
                        await asyncio.sleep(SLOW_S / 10)
                    here = min(here + 10, len(piece))
                if fault == "replaced mid-GET" and self.faults.replace is not None:
                    key = target.split(b"?")[0].decode()
                    if await asyncio.get_running_loop().run_in_executor(None, self.faults.replace, key):
                        self.faults.counts[fault] += 1
                writer.write(piece[here:])
            else:
                writer.write(piece)
            await writer.drain()
            at += len(piece)
        self.faults.body_bytes += length
        return True


def _fields(lines: list[bytes]) -> dict[bytes, bytes]:
    return {name.strip().lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines[1:])}

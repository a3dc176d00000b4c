# SPDX-License-Identifier: Apache-2.0
"""JSON lines over one connection between an agent and the leader."""

from __future__ import annotations

import json
import socket
import threading
from contextlib import suppress
from typing import Any

from penstock.errors import Corrupt

__all__ = ["JsonLines"]

# Maximum message size. A row with its histograms and time series has a few hundred kilobytes.
_MAX_BYTES = 64 << 20
# TCP keepalive settings. A host that disappears silently is detected after _IDLE_S + _INTERVAL_S * _PROBES seconds.
_IDLE_S, _INTERVAL_S, _PROBES = 5, 5, 3


class JsonLines:
    """One connection. `send` may be called from any thread, `receive` from only one."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _IDLE_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _INTERVAL_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * (_IDLE_S + _INTERVAL_S * _PROBES))
        self._connection = connection
        self._lines = connection.makefile("rb")
        self._turn = threading.Lock()

    def limit(self, seconds: float | None) -> None:
        """Set the timeout of `receive` in seconds; None waits without limit."""
        self._connection.settimeout(seconds)

    def send(self, message: dict[str, Any]) -> None:
        """Send one message.

        Raises:
            OSError: The other end has closed.
        """
        line = json.dumps(message).encode() + b"\n"
        with self._turn:
            self._connection.sendall(line)

    def receive(self) -> dict[str, Any] | None:
        """Return the next message; None at the end of the connection.

        Raises:
            Corrupt: The line is not a message.
            OSError: The connection broke, or the timeout has passed.
        """
        line = self._lines.readline(_MAX_BYTES)
        if not line.endswith(b"\n"):
            return None
        try:
            message = json.loads(line)
        except ValueError as error:
            raise Corrupt(f"invalid message from another host: {error}") from None
        if not isinstance(message, dict):
            raise Corrupt("invalid message from another host")
        return message

    def close(self) -> None:
        """Close the connection in both directions; safe to call twice."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

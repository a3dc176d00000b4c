# SPDX-License-Identifier: Apache-2.0
"""A TCP proxy before a store: forwards bytes, rejects connections for a while, breaks them in an upload, or is slow."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import Self


class Tap:
    """Listens on loopback and forwards to `upstream` (`http://HOST:PORT`). Its settings may change while it runs."""

    def __init__(self, upstream: str) -> None:
        host, _, port = upstream.removeprefix("http://").rstrip("/").partition(":")
        self._to = (host, int(port))
        self._server = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"http://127.0.0.1:{self._server.getsockname()[1]}"
        self.refuses_until = 0.0  # monotonic time until which every request gets a 503
        self.breaks = 0  # number of further connections to break, each after `breaks_at` uploaded bytes
        self.breaks_at = 3_000_000
        self.rate_bytes_per_s = 0.0  # upload rate; 0 means no limit
        self.refused = 0
        self.sent = 0
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.close()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._client, args=(client,), daemon=True).start()

    def _client(self, client: socket.socket) -> None:
        if time.monotonic() < self.refuses_until:
            self.refused += 1
            with client:
                client.recv(65536)
                client.sendall(b"HTTP/1.1 503 Slow Down\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            return
        try:
            store = socket.create_connection(self._to)
        except OSError:
            client.close()
            return
        threading.Thread(target=self._pass, args=(store, client, False), daemon=True).start()
        self._pass(client, store, True)

    def _pass(self, source: socket.socket, sink: socket.socket, upwards: bool) -> None:
        passed = 0
        try:
            while data := source.recv(65536):
                if upwards:
                    passed += len(data)
                    self.sent += len(data)
                    if self.rate_bytes_per_s:
                        time.sleep(len(data) / self.rate_bytes_per_s)
                    with self._lock:
                        cut = self.breaks > 0 and passed >= self.breaks_at
                        self.breaks -= cut
                    if cut:
                        source.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                        break
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

# SPDX-License-Identifier: Apache-2.0
"""Tests that a store behind a forward proxy is reached through HTTP_PROXY, as in other programs."""

from __future__ import annotations

import http.client
import http.server
import threading
from contextlib import closing
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class _Handler(http.server.BaseHTTPRequestHandler):
    """Forwards requests for `http://store.example` to the server at `upstream`."""

    protocol_version = "HTTP/1.1"
    server: _Proxy

    def _pass_on(self) -> None:
        self.server.lines.append(f"{self.command} {self.path}")
        parts = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        headers = {name: value for name, value in self.headers.items() if name.lower() != "connection"}
        with closing(http.client.HTTPConnection("127.0.0.1", self.server.upstream, timeout=30)) as upstream:
            upstream.request(self.command, parts._replace(scheme="", netloc="").geturl(), body, headers)
            answer = upstream.getresponse()
            content = answer.read()
        self.send_response_only(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("connection", "transfer-encoding", "content-length"):
                self.send_header(name, value)
        self.send_header("content-length", answer.headers.get("content-length") or str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _pass_on

    def log_message(self, *_: object) -> None:
        """Suppresses the log on stderr; `lines` records the requests instead."""


class _Proxy(http.server.ThreadingHTTPServer):
    daemon_threads = True
    upstream = 0

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.lines: list[str] = []


@pytest.fixture
def proxy() -> Iterator[_Proxy]:
    with _Proxy() as proxy:
        thread = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield proxy
        proxy.shutdown()
        thread.join()


def test_stage_reaches_a_signed_store_through_the_proxy_of_the_environment(
    run_cli: Callable[..., object], emulator: Callable[..., object], proxy: _Proxy, tmp_path
) -> None:
    source, back = tmp_path / "source", tmp_path / "back"
    source.mkdir()
    for name in ("a", "b +%20.bin", "c"):
        (source / name).write_bytes(name.encode() * 1000)
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    store = emulator(bucket)
    env = store.env | {
        "AWS_ENDPOINT_URL": "http://store.example",
        "PENSTOCK_ALLOW_HTTP": "1",
        "HTTP_PROXY": f"http://127.0.0.1:{proxy.server_port}",
        "NO_PROXY": "",
    }
    proxy.upstream = urlsplit(store.env["AWS_ENDPOINT_URL"]).port
    for src, dst in ((source, f"{store.url}up/"), (f"{store.url}up/", back)):
        done = run_cli("stage", src, dst, env=env)
        assert done.code == 0, done.err
    assert {p.name: p.read_bytes() for p in back.iterdir() if not p.name.startswith(".")} == {
        p.name: p.read_bytes() for p in source.iterdir()
    }
    assert all(" http://store.example/" in line for line in proxy.lines)
    assert len(proxy.lines) > 6

    reached = len(proxy.lines)
    done = run_cli("index", f"{store.url}up/", env=store.env | {"HTTP_PROXY": env["HTTP_PROXY"], "NO_PROXY": ""})
    assert done.code == 0, done.err
    assert len(proxy.lines) == reached, "this machine is reached directly"

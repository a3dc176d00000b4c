# SPDX-License-Identifier: Apache-2.0
"""An S3 endpoint on loopback that returns correct or wrong responses, as a test chooses. It checks no signatures."""

from __future__ import annotations

import hashlib
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, quote_from_bytes, unquote_to_bytes, urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass
class Lie:
    """One object: its bytes, and the false values that the endpoint reports for it."""

    body: bytes
    listed_size: int | None = None
    listed_etag: str | None = None
    etag: str | None = None
    length: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    ignores_pins: bool = False
    part_bytes: int | None = None  # part size, if parts can be requested by number
    flips: int = 0  # number of further responses with a flipped bit

    @property
    def true_etag(self) -> str:
        return self.etag or hashlib.md5(self.body).hexdigest()


class Liar:
    """`with Liar({b"key": Lie(b"...")}) as liar:` has `.url` and `.env`. `pages` are the key lists of listing pages."""

    def __init__(self, objects: dict[bytes, Lie], pages: list[list[bytes]] | None = None) -> None:
        self.objects = objects
        self.pages = pages or [sorted(objects)]
        self.before_page: Callable[[int], None] = lambda _: None
        self.next_token: Callable[[int], str | None] = lambda at: str(at + 1) if at + 1 < len(self.pages) else None

    def __enter__(self) -> Liar:
        liar = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None:
                pass

            def do_HEAD(self) -> None:
                self.do_GET()

            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                query = parse_qs(parts.query)
                key = unquote_to_bytes(parts.path.removeprefix("/liar").removeprefix("/"))
                if "list-type" in query:
                    self.answer(200, liar.listing(int(query.get("continuation-token", ["0"])[0])), {})
                elif (lie := liar.objects.get(key)) is None:
                    self.answer(404, b"<Error><Code>NoSuchKey</Code></Error>", {})
                elif not lie.ignores_pins and self.headers.get("If-Match", "").strip('"') not in ("", lie.true_etag):
                    self.answer(412, b"<Error><Code>PreconditionFailed</Code></Error>", {})
                else:
                    self.give(lie, int(query.get("partNumber", ["0"])[0]))

            def give(self, lie: Lie, part: int) -> None:
                headers, body, status = {"ETag": f'"{lie.true_etag}"', **lie.headers}, lie.body, 200
                if asked := self.headers.get("Range", "").removeprefix("bytes="):
                    start, _, end = asked.partition("-")
                    body = body[int(start) : int(end) + 1 if end else None]
                    last = int(start) + len(body) - 1
                    headers["Content-Range"] = f"bytes {start}-{last}/{len(lie.body)}"
                    status = 206
                if part and lie.part_bytes:
                    body, status = body[(part - 1) * lie.part_bytes : part * lie.part_bytes], 206
                if lie.flips and body and self.command == "GET":
                    lie.flips -= 1
                    body = bytes([body[0] ^ 1]) + body[1:]
                self.answer(status, body, headers, None if asked else lie.length)

            def answer(self, status: int, body: bytes, headers: dict[str, str], length: int | None = None) -> None:
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body) if length is None else length))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body if length is None else body[:length])
                if length is not None and length > len(body):
                    self.close_connection = True

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()

    def listing(self, at: int) -> bytes:
        self.before_page(at)
        rows = []
        for key in self.pages[min(at, len(self.pages) - 1)]:
            lie = self.objects.get(key, Lie(b""))
            size = len(lie.body) if lie.listed_size is None else lie.listed_size
            etag = lie.listed_etag or lie.true_etag
            rows.append(
                f"<Contents><Key>{quote_from_bytes(key)}</Key><Size>{size}</Size><ETag>&quot;{etag}&quot;</ETag>"
                "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
            )
        token = self.next_token(at)
        more = f"<IsTruncated>true</IsTruncated><NextContinuationToken>{token}</NextContinuationToken>" if token else ""
        return (
            "<ListBucketResult><EncodingType>url</EncodingType>" + "".join(rows) + more + "</ListBucketResult>"
        ).encode()

    @property
    def url(self) -> str:
        return "s3://liar/"

    @property
    def env(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.server.server_address[1]}",
            "AWS_ACCESS_KEY_ID": "k",
            "AWS_SECRET_ACCESS_KEY": "s",
            "AWS_REGION": "us-east-1",
        }

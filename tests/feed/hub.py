# SPDX-License-Identifier: Apache-2.0
"""A Hugging Face Hub over loopback with one dataset, and the server of its large files.

Answers have the form of the Hub's own (paths, JSON, headers), as its clients read them: `list_repo_tree`, `repo_info`
and `get_hf_file_metadata` of huggingface_hub, and https://huggingface.co/docs/hub/rate-limits.
"""

from __future__ import annotations

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

PAGE = 3
"""Number of entries of a page."""


def _etag(content, *, large):
    if large:
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, code, body=b"", **headers):
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if "Content_Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def content(self, body, **headers):
        """Answer with a body, or the range of it that is asked for."""
        asked = self.headers.get("Range")
        if asked is None:
            self.answer(200, body, Accept_Ranges="bytes", **headers)
            return
        first, _, last = asked.removeprefix("bytes=").partition("-")
        part = body[int(first) : int(last) + 1 if last else None]
        content_range = f"bytes {first}-{int(first) + len(part) - 1}/{len(body)}"
        self.answer(206, part, Content_Range=content_range, **headers)

    def do_HEAD(self):
        self.do_GET()


class Hub:
    """`with Hub() as hub`: the dataset `lab/set`, with `hub.files` on the branch `main`. Files under `data/` are large."""

    def __init__(self):
        self.files, self.commits = {}, {}
        self.large = "data/"
        self.throttled, self.throttle = 0, {"RateLimit": '"api";r=0;t=0.2'}
        self.private, self.gated = None, False
        self.requests, self.cdn_requests = [], []
        self.expired = set()
        self.fault = ""  # `cycle` (pages that repeat), `json`, `inward` (a redirect to a metadata address), `short`

    def commit(self):
        """Save the files as a commit of `main`, and return its hash."""
        text = json.dumps(sorted((name, _etag(content, large=True)) for name, content in self.files.items()))
        sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
        self.commits[sha] = dict(self.files)
        self.main = sha
        return sha

    def __enter__(self):
        hub = self

        class Cdn(_Handler):
            def do_GET(self):
                hub.cdn_requests.append((self.path, dict(self.headers)))
                if self.path in hub.expired:
                    self.answer(403)
                    return
                sha, name = unquote(urlsplit(self.path).path).removeprefix("/repos/").split("/", 1)
                content = hub.commits[sha][name]
                content = content[:-9] if hub.fault == "short" else content
                self.content(content, ETag=f'"cdn-{len(content)}"')

        class Api(_Handler):
            def do_GET(self):
                hub.requests.append((self.command, self.path, dict(self.headers)))
                if hub.throttled:
                    hub.throttled -= 1
                    self.answer(429, b'{"error":"Too Many Requests"}', **hub.throttle)
                    return
                token = self.headers.get("Authorization")
                if hub.private is not None and token != f"Bearer {hub.private}":
                    self.answer(401, b'{"error":"Invalid username or password."}')
                    return
                self.dataset(unquote(urlsplit(self.path).path), parse_qs(urlsplit(self.path).query))

            def dataset(self, path, query):
                if hub.gated:
                    self.answer(403, **{"X-Error-Code": "GatedRepo", "X-Error-Message": "Access is restricted."})
                elif path.startswith("/api/datasets/lab/set/revision/"):
                    revision = path.removeprefix("/api/datasets/lab/set/revision/")
                    if revision not in ("main", "refs/convert/parquet"):
                        self.answer(404, **{"X-Error-Code": "RevisionNotFound"})
                        return
                    body = {"_id": "6", "id": "lab/set", "author": "lab", "sha": hub.main, "private": False,
                            "gated": False, "siblings": [{"rfilename": name} for name in hub.files]}  # fmt: skip
                    self.answer(200, json.dumps(body).encode())
                elif path.startswith("/api/datasets/lab/set/tree/"):
                    sha, _, folder = path.removeprefix("/api/datasets/lab/set/tree/").partition("/")
                    self.tree(sha, folder, query)
                elif path.startswith("/datasets/lab/set/resolve/"):
                    self.resolve(*path.removeprefix("/datasets/lab/set/resolve/").split("/", 1))
                else:
                    self.answer(404, **{"X-Error-Code": "RepoNotFound"})

            def tree(self, sha, folder, query):
                assert query["recursive"] == ["true"]
                entries = []
                if sha not in hub.commits:
                    self.answer(404, **{"X-Error-Code": "RevisionNotFound"})
                    return
                for name, content in hub.commits[sha].items():
                    if folder and not name.startswith(f"{folder}/"):
                        continue
                    entry = {"type": "file", "oid": _etag(content, large=False), "size": len(content), "path": name}
                    if name.startswith(hub.large):
                        entry |= {"oid": "0" * 40, "xetHash": "f" * 64,
                                  "lfs": {"oid": _etag(content, large=True), "size": len(content), "pointerSize": 134}}  # fmt: skip
                    entries.append(entry)
                if not entries:
                    self.answer(404, **{"X-Error-Code": "EntryNotFound"})
                    return
                entries.insert(0, {"type": "directory", "oid": "0" * 40, "size": 0, "path": "data"})
                first = int(query.get("cursor", ["0"])[0])
                link = {}
                if hub.fault == "cycle":
                    first = 0
                if first + PAGE < len(entries):
                    # The link has the public host, which is not the endpoint here.
                    link["Link"] = (
                        f"<https://huggingface.co/api/datasets/lab/set/tree/{sha}/{folder}?recursive=true"
                        f'&expand=false&cursor={first + PAGE}>; rel="next"'
                    )
                body = json.dumps(entries[first : first + PAGE]).encode()
                self.answer(200, b'[{"type": "file", "path": 7}]' if hub.fault == "json" else body, **link)

            def resolve(self, sha, name):
                content = hub.commits[sha].get(name)
                if content is None:
                    self.answer(404, **{"X-Error-Code": "EntryNotFound"})
                elif name.startswith(hub.large):
                    etag = f'"{_etag(content, large=True)}"'
                    host = "http://169.254.169.254" if hub.fault == "inward" else hub.cdn
                    place = f"{host}/repos/{sha}/{name}?X-Amz-Signature=sig{len(hub.requests)}"
                    size = {} if hub.fault == "size" else {"X-Linked-Size": str(len(content))}
                    self.answer(302, Location=place, **size,
                                **{"X-Linked-Etag": etag, "X-Repo-Commit": sha, "ETag": etag})  # fmt: skip
                else:
                    self.content(content, ETag=f'"{_etag(content, large=False)}"')

        self._servers = [ThreadingHTTPServer(("127.0.0.1", 0), handler) for handler in (Api, Cdn)]
        self.endpoint, self.cdn = (f"http://127.0.0.1:{server.server_port}" for server in self._servers)
        for server in self._servers:
            threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_):
        for server in self._servers:
            server.shutdown()
            server.server_close()

# SPDX-License-Identifier: Apache-2.0
"""Index, stage and feed from what is no S3: Azure Blob (Azurite), Google Cloud Storage (fake-gcs-server), plain HTTP."""

from __future__ import annotations

import base64
import gzip
import hashlib
import hmac
import http.server
import json
import os
import random
import socket
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from dataclasses import dataclass
from email.utils import formatdate
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from stage_kit import facts, tree

if TYPE_CHECKING:
    from collections.abc import Iterator

TOOLS = Path(__file__).resolve().parents[2] / ".tools"
ACCOUNT = "testaccount"
KEY = base64.b64encode(b"made up for this test").decode()


@dataclass(frozen=True)
class Source:
    """A dataset in a store, what it inflates to, and what a process must know to read it."""

    url: str
    env: dict[str, str]
    want: dict[str, bytes]


def bodies() -> tuple[dict[str, bytes], dict[str, bytes]]:
    """Twelve objects as stored (every third plain, one of 20 MB) and as they come out."""
    stored, want = {}, {}
    for at in range(12):
        body = random.Random(at).randbytes(20_000_000 if at == 5 else 3000 * at)
        name = f"part {at % 3}/f{at:02d}.bin"
        want[name] = body
        stored[name + ("" if at % 3 == 0 else ".gz")] = body if at % 3 == 0 else gzip.compress(body, 1)
    return stored, want


def program(path: Path) -> str:
    if not os.access(path, os.X_OK):
        pytest.fail(f"{path.name} is not here; `make setup-peers` installs it", pytrace=False)
    return str(path)


@pytest.fixture
def running(tmp_path: Path, free_port: int) -> Iterator[object]:
    """`running([program, ...], env)`: a server that is up, and ends with the test."""
    started: list[subprocess.Popen[bytes]] = []

    def start(argv: list[str], env: dict[str, str] | None = None) -> None:
        process = subprocess.Popen(
            argv,
            cwd=tmp_path,
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        started.append(process)
        until = time.monotonic() + 30
        while time.monotonic() < until and process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", free_port), timeout=1).close()
            except OSError:
                time.sleep(0.05)
            else:
                return
        pytest.fail(f"{argv[0]} did not start (exit {process.poll()})")

    yield start
    for process in started:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@pytest.fixture
def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def put_blob(port: int, path: str, body: bytes, query: str, headers: dict[str, str]) -> None:
    """One request to Azure, signed here by hand (Shared Key): a client that is not ours."""
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2020-12-06", **headers}
    quoted = urllib.parse.quote(path)
    canonical = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
    resource = f"/{ACCOUNT}{quoted}" + "".join(f"\n{pair.replace('=', ':')}" for pair in query.split("&") if pair)
    text = f"PUT\n\n\n{len(body) or ''}\n\n\n\n\n\n\n\n\n{canonical}{resource}"
    signature = base64.b64encode(hmac.digest(base64.b64decode(KEY), text.encode(), hashlib.sha256)).decode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{quoted}" + (f"?{query}" if query else ""),
        data=body,
        method="PUT",
        headers={**headers, "Authorization": f"SharedKey {ACCOUNT}:{signature}", "Content-Type": ""},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.status == 201


@pytest.fixture
def azure(running, free_port: int) -> Source:
    argv = [program(TOOLS / "azurite/node_modules/.bin/azurite-blob"), "--silent", "--skipApiVersionCheck"]
    argv += ["--disableTelemetry", "--inMemoryPersistence", "--blobHost", "127.0.0.1", "--blobPort", str(free_port)]
    running(argv, {"AZURITE_ACCOUNTS": f"{ACCOUNT}:{KEY}"})
    stored, want = bodies()
    put_blob(free_port, f"/{ACCOUNT}/data", b"", "restype=container", {})
    for name, body in stored.items():
        put_blob(free_port, f"/{ACCOUNT}/data/set/{name}", body, "", {"x-ms-blob-type": "BlockBlob"})
    string = f"AccountName={ACCOUNT};AccountKey={KEY};BlobEndpoint=http://127.0.0.1:{free_port}/{ACCOUNT};"
    return Source("az://data/set/", {"AZURE_STORAGE_CONNECTION_STRING": string}, want)


@pytest.fixture
def google(running, free_port: int, tmp_path: Path) -> Source:
    stored, want = bodies()
    for name, body in stored.items():
        path = tmp_path / "seed/data/set" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)
    host = f"127.0.0.1:{free_port}"
    argv = [program(TOOLS / "bin/fake-gcs-server"), "-scheme", "http", "-host", "127.0.0.1", "-port", str(free_port)]
    argv += ["-backend", "memory", "-data", str(tmp_path / "seed"), "-public-host", host]
    running(argv)
    return Source("gs://data/set/", {"STORAGE_EMULATOR_HOST": host}, want)


class _Quiet(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass


class _Server(http.server.ThreadingHTTPServer):
    request_queue_size = 128


@pytest.fixture
def web(tmp_path: Path) -> Iterator[Source]:
    """Python's own web server: index pages, no ranges, times for versions."""
    stored, want = bodies()
    for name, body in stored.items():
        path = tmp_path / "site/set" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)
    server = _Server(("127.0.0.1", 0), partial(_Quiet, directory=str(tmp_path / "site")))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield Source(f"http://127.0.0.1:{server.server_address[1]}/set/", {}, want)
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("kind", ["azure", "google", "web"])
def test_stage_from_other_stores_is_whole_and_again_moves_nothing(kind, request, run_cli, tmp_path):
    source: Source = request.getfixturevalue(kind)
    ran = run_cli("index", source.url, "-o", tmp_path / "m.json", "--json", env=source.env)
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["objects"] == len(source.want)
    ran = run_cli("stage", source.url, tmp_path / "dst", "--inflate", "--json", env=source.env)
    assert ran.code == 0, ran.err
    assert tree(tmp_path / "dst") == source.want
    assert KEY not in ran.out + ran.err
    again = run_cli("stage", source.url, tmp_path / "dst", "--inflate", "--json", env=source.env)
    assert (facts(again)["bytes_in"], facts(again)["skipped"]) == (0, len(source.want)), again.err

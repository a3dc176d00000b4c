# SPDX-License-Identifier: Apache-2.0
"""Third-party stores, each a process: S3 (versitygw), Azure Blob (Azurite), Google Cloud Storage (fake-gcs-server)."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

TOOLS = Path(__file__).resolve().parents[1] / ".tools"
ACCOUNT = "testaccount"
KEY = base64.b64encode(b"made up for this test").decode()


@dataclass(frozen=True)
class S3Peer:
    """A running third-party S3 server over a folder: each sub-folder is a bucket."""

    endpoint: str
    folder: Path
    access_key: str = "penstock-test"
    secret_key: str = field(default="penstock-test-secret", repr=False)
    region: str = "us-east-1"

    @property
    def env(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_REGION": self.region,
            "AWS_DEFAULT_REGION": self.region,
        }

    def bucket(self, name: str) -> Path:
        """The folder of a bucket; it is created if it is missing."""
        (self.folder / name).mkdir(exist_ok=True)
        return self.folder / name


@dataclass(frozen=True)
class Azurite:
    """A running Azurite server with the container `data`."""

    port: int

    @property
    def env(self) -> dict[str, str]:
        string = f"AccountName={ACCOUNT};AccountKey={KEY};BlobEndpoint=http://127.0.0.1:{self.port}/{ACCOUNT};"
        return {"AZURE_STORAGE_CONNECTION_STRING": string}

    def put(self, name: str, body: bytes) -> None:
        """One blob."""
        _put_blob(self.port, f"/{ACCOUNT}/data/{name}", body, "", {"x-ms-blob-type": "BlockBlob"})


@dataclass(frozen=True)
class FakeGcs:
    """A running fake-gcs-server with the bucket `data`."""

    port: int

    @property
    def env(self) -> dict[str, str]:
        return {"STORAGE_EMULATOR_HOST": f"127.0.0.1:{self.port}"}


@contextmanager
def versitygw(folder: Path) -> Iterator[S3Peer]:
    """Starts a server over a sub-folder; its output goes to a log in `folder`."""
    port = free_port()
    buckets = folder / "buckets"
    buckets.mkdir()
    peer = S3Peer(f"http://127.0.0.1:{port}", buckets)
    # Installed by `make setup-peers`, or found on PATH after `go install`.
    installed = TOOLS / "bin/versitygw"
    program = shutil.which("versitygw") if not installed.exists() else None
    argv = [_program(Path(program or installed)), "--port", f"127.0.0.1:{port}", "--quiet", "posix", str(buckets)]
    with _running(argv, folder, port, {"ROOT_ACCESS_KEY": peer.access_key, "ROOT_SECRET_KEY": peer.secret_key}):
        yield peer


@contextmanager
def azurite(folder: Path) -> Iterator[Azurite]:
    """Starts a server that stores in memory; `folder` is its working directory."""
    port = free_port()
    argv = [_program(TOOLS / "azurite/node_modules/.bin/azurite-blob"), "--silent", "--skipApiVersionCheck"]
    argv += ["--disableTelemetry", "--inMemoryPersistence", "--blobHost", "127.0.0.1", "--blobPort", str(port)]
    with _running(argv, folder, port, {"AZURITE_ACCOUNTS": f"{ACCOUNT}:{KEY}"}):
        _put_blob(port, f"/{ACCOUNT}/data", b"", "restype=container", {})
        yield Azurite(port)


@contextmanager
def fake_gcs(folder: Path, objects: Mapping[str, bytes]) -> Iterator[FakeGcs]:
    """Starts a server that stores in memory and initially holds `objects`."""
    port = free_port()
    seed = folder / "seed"
    (seed / "data").mkdir(parents=True)
    for name, body in objects.items():
        path = seed / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)
    argv = [_program(TOOLS / "bin/fake-gcs-server"), "-scheme", "http", "-host", "127.0.0.1", "-port", str(port)]
    argv += ["-backend", "memory", "-data", str(seed), "-public-host", f"127.0.0.1:{port}"]
    with _running(argv, folder, port):
        yield FakeGcs(port)


def _program(path: Path) -> str:
    if not os.access(path, os.X_OK):
        pytest.fail(f"{path.name} is not here; `make setup-peers` installs it", pytrace=False)
    return str(path)


@contextmanager
def _running(argv: list[str], folder: Path, port: int, env: Mapping[str, str] | None = None) -> Iterator[None]:
    """Runs a server until the block ends; the block starts when the port accepts connections. Output goes to a log."""
    log = folder / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            argv, cwd=folder, env={**os.environ, **(env or {})}, stdin=subprocess.DEVNULL, stdout=out, stderr=out
        )
    try:
        until = time.monotonic() + 30
        while time.monotonic() < until and process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
            except OSError:
                time.sleep(0.02)
            else:
                break
        else:
            output = log.read_text(errors="replace")[-500:]
            pytest.fail(f"{argv[0]} did not start (exit {process.poll()}): {output}", pytrace=False)
        yield
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _put_blob(port: int, path: str, body: bytes, query: str, headers: dict[str, str]) -> None:
    """Sends one PUT to Azure, signed here by hand (Shared Key), as a third-party client."""
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

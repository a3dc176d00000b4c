# SPDX-License-Identifier: Apache-2.0
"""Tests index, stage and feed from stores other than S3: Azure Blob (Azurite), GCS (fake-gcs-server), plain HTTP."""

from __future__ import annotations

import gzip
import http.server
import json
import random
import subprocess
import sys
import threading
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pytest
from stage_kit import facts, program, tree

from tests.peer_stores import KEY, azurite, fake_gcs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@dataclass(frozen=True)
class Source:
    """A dataset in a store, its inflated content, and the environment that its readers need."""

    url: str
    env: dict[str, str]
    want: dict[str, bytes]


def bodies() -> tuple[dict[str, bytes], dict[str, bytes]]:
    """Twelve objects as stored (every third plain, one of 20 MB), and their inflated content."""
    stored, want = {}, {}
    for at in range(12):
        body = random.Random(at).randbytes(20_000_000 if at == 5 else 3000 * at)
        name = f"part {at % 3}/f{at:02d}.bin"
        want[name] = body
        stored[name + ("" if at % 3 == 0 else ".gz")] = body if at % 3 == 0 else gzip.compress(body, 1)
    return stored, want


@pytest.fixture
def azure(tmp_path: Path) -> Iterator[Source]:
    stored, want = bodies()
    with azurite(tmp_path) as peer:
        for name, body in stored.items():
            peer.put(f"set/{name}", body)
        yield Source("az://data/set/", peer.env, want)


@pytest.fixture
def google(tmp_path: Path) -> Iterator[Source]:
    stored, want = bodies()
    with fake_gcs(tmp_path, {f"set/{name}": body for name, body in stored.items()}) as peer:
        yield Source("gs://data/set/", peer.env, want)


class _Quiet(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass


class _Server(http.server.ThreadingHTTPServer):
    request_queue_size = 128


@pytest.fixture
def web(tmp_path: Path) -> Iterator[Source]:
    """Python's own web server: index pages, no range requests, and modification times as versions."""
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
    ran = run_cli("stage", source.url, tmp_path / "dst", "--decompress", "--json", env=source.env)
    assert ran.code == 0, ran.err
    assert tree(tmp_path / "dst") == source.want
    assert KEY not in ran.out + ran.err
    again = run_cli("stage", source.url, tmp_path / "dst", "--decompress", "--json", env=source.env)
    assert (facts(again)["bytes_in"], facts(again)["skipped"]) == (0, len(source.want)), again.err


class _WithoutRanges(_Quiet):
    def end_headers(self) -> None:
        self.send_header("Accept-Ranges", "none")
        super().end_headers()


def test_stage_of_a_large_object_from_a_server_without_ranges_keeps_to_its_memory(tmp_path):
    folder = tmp_path / "site/set"
    folder.mkdir(parents=True)
    with (folder / "large.bin").open("wb") as file:
        file.truncate(320 << 20)
    measured = (
        "import resource, subprocess, sys; code = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode; "
    )
    measured += "print(code, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10)"
    server = _Server(("127.0.0.1", 0), partial(_WithoutRanges, directory=str(tmp_path / "site")))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}/set/"
    command = (program(), "stage", url, str(tmp_path / "dst"), "--memory", "32MiB", "--quiet")
    ran = subprocess.run([sys.executable, "-c", measured, *command], stdout=subprocess.PIPE, text=True, check=True)
    server.shutdown()
    server.server_close()
    code, peak_bytes = map(int, ran.stdout.split())
    assert (code, (tmp_path / "dst/large.bin").stat().st_size) == (0, 320 << 20)
    assert peak_bytes < 200 << 20

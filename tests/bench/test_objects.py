# SPDX-License-Identifier: Apache-2.0
"""Tests `penstock bench object` over real sockets: it finds the injected limits, and leaves no object behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.bench.objects import parse_mix
from penstock.bench.rows import read_results
from penstock.emulator import Emulator
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

_SMALL = ("--size", "64KiB", "--objects", "24", "--concurrency", "4", "--prefixes", "3")

_BOOK = """
schema_version = 1
[[tier]]
name = "shaped"
year = 2026
title = "for a test"
[[tier.latency]]
what = "read"
p50_ms = 60.0
p99_ms = 61.0
source = "this test"
as_of = "2026"
confidence = "ours"
[[tier.limit]]
what = "read-bytes"
scope = "account"
value = 20000000.0
unit = "bytes/s"
source = "this test"
as_of = "2026"
confidence = "ours"
[[tier]]
name = "refusing"
year = 2026
title = "for a test"
[tier.throttle]
message = "slower, please"
retry_after_s = 0
[tier.burst]
value = 0.1
unit = "s"
source = "this test"
as_of = "2026"
confidence = "ours"
[[tier.limit]]
what = "read-requests"
scope = "account"
value = 50.0
unit = "requests/s"
source = "this test"
as_of = "2026"
confidence = "ours"
"""


def _document(ran: Any) -> dict[str, Any]:
    assert ran.code == 0, ran.err
    found: dict[str, Any] = json.loads(ran.out)
    return found


@pytest.fixture
def book(tmp_path: Path) -> Path:
    file = tmp_path / "book.toml"
    file.write_text(_BOOK)
    return file


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "bucket"
    made.mkdir()
    (made / "theirs.bin").write_bytes(b"not ours")
    return made


def _left(folder: Path) -> list[str]:
    """Files in the bucket, without the emulator's own."""
    files = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return sorted(str(file) for file in files if file.parts[0] != ".penstock-emulator")


def test_object_each_operation_gives_a_row_and_nothing_is_left(
    run_cli: Callable[..., Any], folder: Path, tmp_path: Path
) -> None:
    with Emulator(folder) as store:
        ran = run_cli(
            "bench", "object", store.url, *_SMALL, "--operations", "put,get,range,list,head,delete", "--range-size", "4KiB",
            "--verify", "7", "--json", "-o", tmp_path / "out", "--csv", tmp_path / "out.csv", env=store.env,
        )  # fmt: skip
    rows = {row["raw"]["request"]: row for row in _document(ran)["rows"]}
    assert list(rows) == ["put", "get", "range", "list", "head", "delete"]
    assert [row["operation"] for row in rows.values()] == ["WRITE", "READ", "READ", "LISTOBJ", "HEADOBJ", "RMOBJECTS"]
    assert (rows["put"]["last"]["entries"], rows["put"]["last"]["bytes"]) == (24, 24 * 65536)
    assert rows["get"]["raw"]["verified_bytes"] == str(24 * 65536)
    assert rows["range"]["raw"]["verified_bytes"] == str(24 * 4096)
    assert rows["get"]["first_byte_latency"]["count"] == 24
    assert _left(folder) == ["theirs.bin"]
    assert len(read_results(tmp_path / "out").rows) == 6
    assert len((tmp_path / "out.csv").read_text().splitlines()) == 7


def test_object_local_folder_is_left_as_it_was(run_cli: Callable[..., Any], folder: Path) -> None:
    assert run_cli("bench", "object", folder, *_SMALL).code == 0
    assert sorted(path.name for path in folder.iterdir()) == ["theirs.bin"]


def test_object_existing_keys_are_read_with_the_flag_and_never_written(
    run_cli: Callable[..., Any], folder: Path
) -> None:
    with Emulator(folder) as store:
        read = run_cli("bench", "object", store.url, "--existing", "--operations", "get,head", "--json", env=store.env)
        rows = _document(read)["rows"]
        assert [(row["last"]["entries"], row["last"]["bytes"]) for row in rows] == [(1, 8), (1, None)]
        for operations in ("delete", "put,get"):
            refused = run_cli("bench", "object", store.url, "--existing", "--operations", operations, env=store.env)
            assert refused.code == 2
            assert "never changed" in refused.err
    assert (folder / "theirs.bin").read_bytes() == b"not ours"


def test_object_web_server_needs_existing(run_cli: Callable[..., Any], folder: Path) -> None:
    import functools
    import http.server
    import threading

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        url = f"http://127.0.0.1:{server.server_address[1]}/theirs.bin"
        refused = run_cli("bench", "object", url, *_SMALL)
        assert refused.code != 0
        assert "not supported" in refused.err
        rows = _document(run_cli("bench", "object", url, "--existing", "--request-limit", "12", "--json"))["rows"]
        assert (rows[0]["last"]["entries"], rows[0]["last"]["bytes"]) == (12, 96)
    finally:
        server.shutdown()
        server.server_close()


def test_object_latency_and_bandwidth_are_found_again(run_cli: Callable[..., Any], folder: Path, book: Path) -> None:
    with Emulator(folder, tier="shaped", tiers=book) as store:
        ran = run_cli(
            "bench", "object", store.url, "--size", "1MiB", "--objects", "60", "--concurrency", "16", "--operations", "get",
            "--json", env=store.env,
        )  # fmt: skip
        one = run_cli(
            "bench", "object", store.url, "--size", "1KiB", "--objects", "20", "--concurrency", "1", "--operations", "get",
            "--json", env=store.env,
        )  # fmt: skip
    fast = _document(ran)["rows"][0]
    # The rate may not exceed the cap. There is no lower bound, since a busy machine may be slower; benches/ measures
    # the exact rate.
    assert fast["last"]["bytes_per_s"] <= 20e6 * 1.05
    assert _document(one)["rows"][0]["first_byte_latency"]["percentiles_us"]["50"] >= 58e3


def test_object_refusals_are_those_that_the_store_counted(
    run_cli: Callable[..., Any], folder: Path, book: Path
) -> None:
    with Emulator(folder, tier="refusing", tiers=book) as store:
        ran = run_cli(
            "bench", "object", store.url, *_SMALL, "--operations", "head", "--request-limit", "120", "--concurrency", "16",
            "--json", env=store.env,
        )  # fmt: skip
        counted = store.stats()
    row = _document(ran)["rows"][0]
    assert row["last"]["entries"] == 120
    assert row["errors_by_class"]["503"] > 0
    # Every HEAD request counts in the row. The final listing may be rejected several times too, but its errors do not
    # count.
    assert row["errors_by_class"]["503"] == counted["heads"] - 120
    assert row["retries"] == row["errors_by_class"]["503"]
    assert row["throttled_s"] > 0
    assert sum(sample["throttles"] for sample in row["series"]) <= row["errors_by_class"]["503"]


def test_object_interrupted_bench_takes_its_objects_with_it(folder: Path) -> None:
    program = [str(Path(sys.executable).with_name("penstock")), "bench", "object"]
    with Emulator(folder) as store:
        import os

        running = subprocess.Popen(
            [*program, store.url, *_SMALL, "--operations", "put,get", "--duration", "60"],
            env={**os.environ, **store.env},
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            until = time.monotonic() + 30
            while len(_left(folder)) < 25 and time.monotonic() < until:
                time.sleep(0.05)
            running.send_signal(signal.SIGINT)
            _, result = running.communicate(timeout=30)
        finally:
            running.kill()
        assert running.returncode == 130, result
        assert _left(folder) == ["theirs.bin"]


def test_object_ends_when_stable(run_cli: Callable[..., Any], folder: Path) -> None:
    with Emulator(folder) as store:
        ran = run_cli(
            "bench", "object", store.url, *_SMALL, "--mix", "get=9,head=1", "--until-stable", "--duration", "20s", "--json",
            "--ramp", "1s", env=store.env,
        )  # fmt: skip
    rows = _document(ran)["rows"]
    mixed = next(row for row in rows if row["raw"].get("mix") and row["raw"]["request"] == "get")
    assert mixed["raw"]["ended_by"] in {"stable", "time"}
    assert [s["workers"] for s in mixed["series"]] == sorted(s["workers"] for s in mixed["series"])


@pytest.mark.parametrize("text", ["get", "get=x", "fly=1", "get=-1", "get=1,,put=2", "get=inf"])
def test_mix_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_mix(text)

# SPDX-License-Identifier: Apache-2.0
"""Tests `penstock bench object` on stores other than S3 (HDFS: tests/hdfs, HTTP: test_objects). Issue 6, point 2."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from tests.peer_stores import azurite, fake_gcs

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_SMALL = ("--size", "64KiB", "--objects", "12", "--concurrency", "4", "--prefixes", "3", "--range-size", "4KiB")


@pytest.mark.parametrize("kind", ["az", "gs"])
def test_object_each_operation_on_other_stores_and_nothing_is_left(
    run_cli: Callable[..., Any], tmp_path: Path, kind: str
) -> None:
    with ExitStack() as stack:
        if kind == "az":
            peer: Any = stack.enter_context(azurite(tmp_path))
            peer.put("theirs.bin", b"not ours")
        else:
            peer = stack.enter_context(fake_gcs(tmp_path, {"theirs.bin": b"not ours"}))
        ran = run_cli(
            "bench", "object", f"{kind}://data/", *_SMALL, "--operations", "put,get,range,list,head,delete", "--verify", "7",
            "--json", env=peer.env,
        )  # fmt: skip
        assert ran.code == 0, ran.err
        rows = {row["raw"]["request"]: row for row in json.loads(ran.out)["rows"]}
        assert list(rows) == ["put", "get", "range", "list", "head", "delete"]
        assert {name: row["last"]["entries"] for name, row in rows.items() if name != "list"} == dict.fromkeys(
            ("put", "get", "range", "head", "delete"), 12
        )
        assert rows["get"]["raw"]["verified_bytes"] == str(12 * 65536)
        assert rows["range"]["last"]["bytes"] == 12 * 4096
        assert rows["get"]["first_byte_latency"]["count"] == 12
        existing = run_cli("bench", "object", f"{kind}://data/", "--existing", "--json", env=peer.env)
        assert existing.code == 0, existing.err
        # Only the foreign object is left to read: the bench has deleted all of its own.
        assert [row["last"]["bytes"] for row in json.loads(existing.out)["rows"]] == [8]

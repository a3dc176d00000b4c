# SPDX-License-Identifier: Apache-2.0
"""`penstock index --records`: the index that a loader then finds."""

from __future__ import annotations

import json

import penstock
from penstock import _native


def test_index_records_is_what_a_loader_finds(tmp_path, monkeypatch, run_cli):
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "d"
    folder.mkdir()
    for number in range(3):
        content = b"".join(_native.encode_tfrecord({"x": bytes(row + 1)}) for row in range(number + 1))
        (folder / f"{number}.tfrecord").write_bytes(content)
    done = run_cli("index", str(folder), "--records", "--json")
    assert (done.code, json.loads(done.out)["records"]) == (0, 6)
    counted = penstock.open(folder).counted()
    assert (counted.rung, counted.samples, counted.is_indexed) == ("index", 6, True)
    refused = run_cli("index", str(folder), "--records", "--select", "*.tfrecord")
    assert refused.code == 2

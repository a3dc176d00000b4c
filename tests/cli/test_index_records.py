# SPDX-License-Identifier: Apache-2.0
"""Tests `penstock index --records`: it writes an index that a loader then uses."""

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


def test_index_and_stage_refuse_braces_that_name_a_missing_object(tmp_path, run_cli):
    folder = tmp_path / "d"
    folder.mkdir()
    for number in range(3):
        (folder / f"s-{number}.bin").write_bytes(b"x")
    for command in (["index"], ["stage", "--dry-run"]):
        destination = [str(tmp_path / "to")] if command[0] == "stage" else []
        whole = run_cli(*command, f"{folder}/s-{{0..2}}.bin", *destination)
        assert whole.code == 0, whole.err
        refused = run_cli(*command, f"{folder}/s-{{0..4}}.bin", *destination)
        assert refused.code == 3, refused.err
        assert "s-3.bin (the first of 2 missing objects; the URL names 5) does not exist" in refused.err
    manifest = tmp_path / "m.json"
    assert run_cli("index", str(folder), "-o", str(manifest)).code == 0
    refused = run_cli("stage", f"{folder}/s-{{0..4}}.bin", str(tmp_path / "to"), "--manifest", str(manifest))
    assert (refused.code, "s-3.bin (the first of 2" in refused.err) == (3, True), refused.err
    differs = run_cli("diff", f"{folder}/s-{{0..4}}.bin", str(manifest))
    assert differs.code == 0, differs.err


def test_index_records_says_what_a_scan_reads_and_costs_before_it_reads(tmp_path, monkeypatch, run_cli, emulator):
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "d"
    folder.mkdir()
    for number in range(3):
        content = b"".join(_native.encode_tfrecord({"x": bytes(row + 1)}) for row in range(number + 1))
        (folder / f"{number}.tfrecord").write_bytes(content)
    size = sum(file.stat().st_size for file in folder.iterdir())
    server = emulator(folder=folder)
    output = run_cli("index", server.url, "--records", "--dry-run", "--json", env=server.env)
    facts = json.loads(output.out)
    assert (facts["rung"], facts["scan_bytes"], facts["scan_requests"]) == ("scan", size, 3)
    assert facts["scan_money"]["requests_usd"] > 0
    assert "records" not in facts
    assert not (tmp_path / "cache/records").exists()
    done = run_cli("index", server.url, "--records", env=server.env)
    assert (done.code, "a scan reads" in done.err, "3 requests: $" in done.err) == (0, True, True), done.err
    again = run_cli("index", server.url, "--records", "--dry-run", env=server.env)
    assert "(source: `index`)" in again.out
    assert run_cli("index", server.url, "--dry-run", env=server.env).code == 2

# SPDX-License-Identifier: Apache-2.0
"""Tests one dataset in two stores: reads are distributed, and no object is lost if one store is dead or damaged."""

from __future__ import annotations

import shutil
import threading
from contextlib import ExitStack

import pytest
from stage_kit import facts, fill, tree


@pytest.fixture
def twins(tmp_path):
    """Two folders with the same objects, and their inflated content."""
    want = fill(tmp_path / "a", 40, 60_000)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    return tmp_path / "a", tmp_path / "b", want


def args(url: str, mirror: object, folder: object) -> list[object]:
    return ["stage", f"{url.rstrip('/')}/set/", folder, "--mirror", mirror, "--decompress", "--json", "--quiet"]


def test_stage_spreads_its_reads_over_mirrors(emulator, twins, run_cli, tmp_path):
    a, b, want = twins
    first = emulator(folder=a)
    ran = run_cli(*args(first.url, b / "set", tmp_path / "d"), env=first.env)
    assert ran.code == 0, ran.err
    assert tree(tmp_path / "d") == want
    mirrors = facts(ran)["mirrors"]
    assert [m["url"].partition("://")[0] for m in mirrors] == ["s3", "file"]
    assert all(m["reads"] > 0 and "left_out" not in m for m in mirrors), mirrors
    assert sum(m["bytes"] for m in mirrors) == facts(ran)["bytes_in"]


def test_mirror_with_a_flipped_byte_is_named_and_left_out(emulator, twins, run_cli, tmp_path):
    a, b, want = twins
    for path in (b / "set").rglob("*.*"):
        body = bytearray(path.read_bytes())
        if body:
            body[len(body) // 2] ^= 1
            path.write_bytes(body)
    first = emulator(folder=a)
    ran = run_cli(*args(first.url, b / "set", tmp_path / "d"), env=first.env)
    assert ran.code == 0, ran.err
    assert tree(tmp_path / "d") == want
    honest, liar = facts(ran)["mirrors"]
    assert "left_out" not in honest
    assert "set/d/f" in liar["left_out"]


def test_source_that_dies_midway_leaves_the_rest_to_its_mirror(tmp_path, run_cli):
    from penstock.emulator import Emulator

    want = fill(tmp_path / "a", 48, 400_000)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    with ExitStack() as running:
        first = running.enter_context(Emulator(tmp_path / "a", tier="azure-hot", scale=0.001))
        timer = threading.Timer(1.0, running.pop_all().close)
        timer.start()
        try:
            ran = run_cli(*args(first.url, tmp_path / "b/set", tmp_path / "d"), env=first.env)
        finally:
            timer.join()
    assert ran.code == 0, ran.err
    assert tree(tmp_path / "d") == want

# SPDX-License-Identifier: Apache-2.0
"""Tests `penstock probe PATH`: a disk with known limits, and paths that cannot be probed."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from penstock.bench.loop_disk import LoopDisk, Rate
from penstock.errors import ConfigError, NotFound
from penstock.probe import codec_rates
from penstock.probe.files import DiskProbe
from penstock.probe.run import Settings
from penstock.probe.spending import Meter, Spent, prices_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def _made(path: Path, time_s: float = 8.0, **settings: Any) -> DiskProbe:
    prices = prices_of(str(path), is_custom_endpoint=True, same_region=False, tier="none")
    meter = Meter(prices, budget_usd=1.0, max_bytes=10**10, time_s=time_s)
    return DiskProbe(str(path), Settings(time_s=time_s, cpu=False, **settings), meter)


def _probe(path: Path, time_s: float = 8.0, **settings: Any) -> DiskProbe:
    probe = _made(path, time_s, **settings)
    probe.run()
    return probe


@pytest.mark.needs_root
def test_probe_finds_the_limits_of_a_disk(tmp_path: Path) -> None:
    mount = tmp_path / "disk"
    mount.mkdir()
    ios, moved = Rate(base_per_s=400), Rate(base_per_s=30e6)
    with LoopDisk(mount, size_bytes=256 << 20, ios=ios, moved=moved, images=tmp_path):
        with (mount / "data.bin").open("wb") as out:
            out.write(os.urandom(64 << 20))
            os.fsync(out.fileno())
        card = _probe(mount).card()
    assert not card.missing
    found = {one.what: one for one in card.limits}
    assert found["read-bytes"].value == pytest.approx(30e6, rel=0.15)
    assert found["read-requests"].value == pytest.approx(400, rel=0.15)
    assert found["read-bytes"].is_limit
    assert card.cache.startswith("bypassed")


def test_probe_of_a_folder_with_write_removes_its_scratch_file(tmp_path: Path) -> None:
    card = _probe(tmp_path, time_s=10.0, writes=True).card()
    assert list(tmp_path.iterdir()) == []
    assert card.limit("write-bytes") is not None
    assert card.latency["write"].count >= 20


def test_probe_never_writes_to_a_file_of_the_user(tmp_path: Path) -> None:
    file = tmp_path / "mine.bin"
    file.write_bytes(os.urandom(16 << 20))
    before = file.read_bytes()
    card = _probe(file, time_s=5.0, writes=True).card()
    assert file.read_bytes() == before
    assert any("never written" in text for text in card.unseen)


def test_codec_rates_name_an_object_of_unknown_format_and_a_lack_of_time(tmp_path: Path) -> None:
    (tmp_path / "mine.bin").write_bytes(os.urandom(1000))
    probe = _made(tmp_path)
    codec_rates.measure(probe)
    (text,) = probe.unseen
    assert text.startswith("inflating and decoding: an unknown format (mine.bin, the first of 1 objects")
    probe.meter.time_s = 1.0
    with pytest.raises(Spent, match="the time limit of 1 s is reached"):
        codec_rates.measure(probe)


def test_probe_of_small_files_asks_for_write(tmp_path: Path) -> None:
    (tmp_path / "small").write_bytes(b"x" * 1000)
    with (tmp_path / "sparse").open("wb") as out:
        out.truncate(64 << 20)  # nothing of it is on the disk
    with pytest.raises(NotFound, match="no file of at least") as error:
        _probe(tmp_path)
    assert "--write" in (error.value.hint or "")
    with pytest.raises(NotFound, match="does not exist"):
        _probe(tmp_path / "missing")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="neither"):
        _probe(tmp_path / "pipe")


def test_probe_command_of_a_path_adds_codec_rates_and_step_time(run_cli: Callable[..., Any], tmp_path: Path) -> None:
    from penstock import _native

    record = _native.encode_tfrecord({"x": os.urandom(1000) * 300}, codec="gzip")
    for at in range(4):
        (tmp_path / f"v{at}.tfrecord.gz").write_bytes(record)
    # Read by the disk phases, and too large for the codec rates.
    (tmp_path / "large.bin").write_bytes(os.urandom(1 << 20) * 64)
    ran = run_cli("probe", tmp_path, "--time", "10s", "--workload", "cosmoflow:v100", "--json")
    assert ran.code in (0, 1), ran.err
    card = json.loads(ran.out)
    assert card["kind"] == "disk"
    assert card["cpu"]["format"] == "tfrecord"
    assert card["cpu"]["inflate_bytes_per_s"] > 1e7
    assert card["step"]["samples_per_s"] == pytest.approx(1 / 0.00936, rel=0.01)

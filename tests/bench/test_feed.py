# SPDX-License-Identifier: Apache-2.0
"""Tests `bench feed`: contestants in processes, their order, and the check that all deliver the same samples."""

from __future__ import annotations

import gzip
import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest

import penstock
from penstock import _native
from penstock.bench import feed, interleaved, peers
from penstock.errors import ConfigError, RankFailed


def write(folder, samples=7):
    folder.mkdir()
    for number in range(samples):
        record = _native.encode_tfrecord({"x": np.full(6, number, "<i2").tobytes(), "y": [float(number)] * 4})
        (folder / f"{number:03d}.tfrecord").write_bytes(record)
    return folder


def opened(folder):
    return penstock.open(folder, records_per_object=1).fields(
        x=penstock.tensor("int16", (3, 2)), y=penstock.tensor("float32", (4,))
    )


def request(folder, *against, **fields):
    return feed.Request(dataset=opened(folder), against=against, **{"batch": 2, "repeats": 2, **fields})


@pytest.fixture
def twin(monkeypatch):
    """A peer that is our own loader, run through the same path as any other peer."""
    monkeypatch.setitem(peers.PEERS, "twin", peers.Peer("penstock_loader", "twin", "penstock", frozenset({"tfrecord"})))
    return "twin"


@pytest.fixture
def drive():
    spec = importlib.util.spec_from_file_location("drive", peers.RUNNER)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_abba_order_goes_forth_and_back():
    assert interleaved.abba_order(["a", "b", "c"], 3) == ["a", "b", "c", "c", "b", "a", "a", "b", "c"]


def test_contest_of_equals_gives_rows_ratios_and_the_same_samples(tmp_path, twin):
    found = feed.run(request(write(tmp_path / "d"), twin, caches=feed.CACHES))
    assert found.is_same
    assert (found.not_run, found.failed) == ({}, {})
    assert [(row.label, row.cache.state) for row in found.rows] == [
        (name, state) for state in feed.CACHES for name in (feed.OURS, twin)
    ]
    assert [(one["peer"], one["cache"]) for one in found.ratios] == [(twin, state) for state in feed.CACHES]
    ours = found.rows[0]
    assert (ours.samples, ours.bytes_delivered, ours.repeats) == (7, 7 * (12 + 16), 2)
    assert len({row.spec_hash for row in found.rows}) == 1
    assert len({row.workload["digest"] for row in found.rows}) == 1
    assert ours.loader["complete"] is True
    for row in found.rows:
        assert len(row.workload["passes"]) == 2
        assert row.wall_s > 0
        assert row.cpu_s > 0


def test_our_own_copies_in_planes_are_a_contestant_that_converts(tmp_path):
    folder = write(tmp_path / "d")
    for path in sorted(folder.iterdir()):
        path.with_suffix(".tfrecord.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    found = feed.run(request(folder, "planes", peers=tmp_path))
    assert found.is_same
    assert [row.label for row in found.rows] == [feed.OURS, "planes"]
    ours, planes = found.rows
    assert (ours.loader["cache_hits"], planes.loader["cache_hits"]) == (0, 7)
    assert found.begun["planes"]["converted_bytes"] > 0
    assert found.begun[feed.OURS]["converted_bytes"] == 0


def test_peers_that_cannot_read_it_or_are_not_there_are_told_and_left_out(tmp_path):
    found = feed.run(request(write(tmp_path / "d"), "webdataset", "grain", peers=tmp_path))
    assert found.not_run["webdataset"] == "reads format tar, but this is tfrecord"
    assert found.not_run["grain"].startswith("not installed")
    assert found.is_same
    assert [row.label for row in found.rows] == [feed.OURS]


def test_a_peer_that_breaks_is_told_and_the_rest_is_measured(tmp_path, twin, monkeypatch):
    monkeypatch.setitem(peers.PEERS, "broken", peers.Peer("no_such_driver", "x", "json", frozenset({"tfrecord"})))
    found = feed.run(request(write(tmp_path / "d"), "broken", twin))
    assert "no_such_driver" in found.failed["broken"]
    assert [row.label for row in found.rows] == [feed.OURS, twin]


def test_unknown_peer_is_refused_with_those_that_there_are(tmp_path):
    with pytest.raises(ConfigError, match="unknown peer `tensorfow`") as caught:
        feed.run(request(write(tmp_path / "d"), "tensorfow"))
    assert "tfdata" in caught.value.hint


def test_contestant_that_is_silent_for_too_long_is_ended():
    silent = interleaved.Participant("silent", [sys.executable, "-c", "import time; time.sleep(60)"], {}, limit_s=0.2)
    with pytest.raises(RankFailed, match="no response within"):
        silent.ask({"do": "pass"})
    silent.end()


def test_contestant_killed_shows_end_of_stderr():
    gone = interleaved.Participant("gone", [sys.executable, "-c", "raise SystemExit('no such thing')"], {}, limit_s=20)
    with pytest.raises(RankFailed, match="gone: the process ended: no such thing"):
        gone.ask({"do": "pass"})
    gone.end()


def test_digest_is_of_samples_in_any_order_and_batch(drive):
    fields = {"x": {"kind": "tensor"}, "t": {"kind": "bytes"}}
    rows = np.arange(12, dtype="<i2").reshape(6, 2)
    texts = [str(number).encode() for number in range(6)]

    def digest(order, size, rows=rows):
        seen = drive.Seen({"fields": fields})
        for at in range(0, 6, size):
            some = order[at : at + size]
            batch = {"x": rows[some], "t": [texts[number] for number in some]}
            seen.touch(batch)
            seen.hash(batch)
        assert seen.samples == 6
        return seen.digest

    assert digest([0, 1, 2, 3, 4, 5], 6) == digest([5, 2, 0, 1, 4, 3], 4)
    assert digest([0, 1, 2, 3, 4, 5], 6) != digest([0, 1, 2, 3, 4, 4], 6)
    assert digest([0, 1, 2, 3, 4, 5], 6) != digest([0, 1, 2, 3, 4, 5], 6, rows + 1)


def test_contestants_that_gave_other_samples_are_not_the_same():
    def hashed(**given):
        return {"samples": 3, "digest": "aa", "brightness": None, **given}

    def same(**theirs):
        return feed._is_same(feed.Contest(hashed=theirs))

    assert same(penstock=hashed(), tfdata=hashed())
    assert not same(penstock=hashed(), tfdata=hashed(samples=2))
    assert not same(penstock=hashed(), tfdata=hashed(digest="ab"))
    assert same(penstock=hashed(), bare=hashed(digest="00"))
    assert same(penstock=hashed(brightness=100.0), spdl=hashed(brightness=102.0))
    assert not same(penstock=hashed(brightness=100.0), spdl=hashed(brightness=104.0))


def test_plain_python_reads_our_records_and_finds_damage():
    spec = importlib.util.spec_from_file_location("tfexample", peers.RUNNER.with_name("tfexample.py"))
    tfexample = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tfexample)
    values = np.arange(300, dtype="<f4")
    data = _native.encode_tfrecord({"x": b"seven", "y": values.tolist()}) * 2

    def crc(payload):
        return _native.crc32c(bytes(payload))

    first, second = tfexample.frames(data, crc)
    assert first == second
    found = tfexample.features(first)
    assert bytes(found["x"]) == b"seven"
    assert np.array_equal(np.frombuffer(found["y"], "<f4"), values)
    broken = bytearray(data)
    broken[40] ^= 1
    with pytest.raises(ValueError, match="damaged"):
        list(tfexample.frames(bytes(broken), crc))


def test_cli_bench_feed_prints_one_json_line_and_keeps_its_rows(run_cli, tmp_path):
    folder = write(tmp_path / "d")
    flags = ["--field", "x=int16:3,2", "--records-per-object", 1, "--batch", 2, "--repeats", 1, "--cache", "warm"]
    flags += ["--allow-debug", "--output", tmp_path / "runs", "--against", "webdataset", "--peers", tmp_path]
    done = run_cli("bench", "feed", folder, *flags, "--json")
    assert done.code == 0, done.err
    result = json.loads(done.out)
    assert (result["schema_version"], result["is_same"], result["money"]) == (2, True, None)
    assert result["not_run"] == {"webdataset": "reads format tar, but this is tfrecord"}
    (saved,) = result["saved"]
    row = json.loads(Path(saved).read_text())
    assert (row["kind"], row["label"], row["samples"]) == ("feed", "penstock", 7)
    assert run_cli("bench", "feed", folder, *flags, "--against", "nobody").code == 2


def test_cli_bench_feed_says_what_epochs_cost_before_the_first(run_cli, emulator, tmp_path):
    store = emulator(write(tmp_path / "d"))
    flags = ["--records-per-object", 1, "--repeats", 1, "--cache", "warm", "--no-save", "--epochs", 10, "--json"]
    done = run_cli("bench", "feed", store.url, *flags, env=store.env)
    assert done.code == 0, done.err
    money = json.loads(done.out)["money"]
    size = sum(path.stat().st_size for path in (tmp_path / "d").iterdir())
    assert (money["tier"], money["epochs"], money["size_bytes"]) == ("s3-standard", 10, size)
    assert money["without_cache"]["egress_usd"] == pytest.approx(10 * money["with_cache"]["egress_usd"])
    assert done.err.index("without the node's cache") < done.err.index("first pass")


@pytest.mark.needs_tf
def test_tfdata_gives_the_same_samples_as_we(tmp_path):
    found = feed.run(request(write(tmp_path / "d"), "tfdata"))
    assert found.failed == {}
    assert found.not_run == {}
    assert found.is_same


@pytest.mark.parametrize(("label", "is_left_out"), [("tensor", False), ("bytes", True), ("image", True)])
def test_peer_of_pictures_and_numbers_is_left_out_of_other_fields(label, is_left_out):
    peer = peers.PEERS["webdataset"]
    fields = {"jpg": {"kind": "image"}, "cls": {"kind": label}}
    task = {"format": "tar", "codec": min(peer.codecs), "scheme": min(peer.schemes), "fields": fields}
    result = feed.unsuited(peer, task)
    assert (result is not None and "a picture and a number" in result) == is_left_out
    assert is_left_out or result is None

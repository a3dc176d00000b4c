# SPDX-License-Identifier: Apache-2.0
"""Tests that a stage saves record positions, so that the records of the copy are counted and read without a scan."""

from __future__ import annotations

import gzip
import json
import tarfile

import pytest

import penstock
from penstock import _native


def record(sample: int) -> bytes:
    # Records have different lengths, so that the record count cannot be computed from an object's size.
    return _native.encode_tfrecord({"y": [float(sample)], "p": bytes(sample % 3 * 7)})


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "source"
    (folder / "train").mkdir(parents=True)
    first = 0
    for number, count in enumerate([3, 5, 2]):
        content = b"".join(record(first + at) for at in range(count))
        first += count
        (folder / f"train/part-{number}.tfrecord.gz").write_bytes(gzip.compress(content))
    return folder


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))


def ids(dataset):
    data = dataset.fields(y=penstock.tensor("float32", ()))
    return sorted(int(y) for batch in penstock.Loader(data, batch_size=4) for y in batch["y"])


@pytest.mark.parametrize("kept", [True, False])
def test_staged_records_are_known_where_they_lie_without_a_scan(source, tmp_path, run_cli, caplog, monkeypatch, kept):
    if not kept:
        monkeypatch.setenv("PENSTOCK_CACHE", "")
    copy = tmp_path / "copy"
    assert run_cli("stage", source, copy, "--decompress").code == 0
    # The whole copy, and a sub-folder of it.
    for folder in (copy, copy / "train"):
        opened = penstock.open(folder)
        assert (opened.rung, opened.samples, opened.counted().is_indexed) == ("index", 10, True)
        assert ids(opened) == list(range(10))
    assert opened.fingerprint == penstock.open(source / "train").fingerprint
    assert [m for m in caplog.messages if "copy" in m] == []
    assert run_cli("verify", copy).code == 0
    assert run_cli("stage", source, copy, "--decompress", "--json").code == 0


def test_file_that_changed_since_is_scanned_and_its_neighbours_are_not(source, tmp_path, run_cli, caplog):
    copy = tmp_path / "copy"
    assert run_cli("stage", source, copy, "--decompress").code == 0
    path = copy / "train/part-1.tfrecord"
    path.write_bytes(b"".join(record(90 + at) for at in range(7)))
    opened = penstock.open(copy / "train")
    assert (opened.rung, opened.samples) == ("scan", 12)
    assert ids(opened) == [0, 1, 2, 8, 9, *range(90, 97)]


def test_tar_is_noted_and_a_damaged_log_costs_a_scan(tmp_path, run_cli, monkeypatch):
    source = tmp_path / "source"
    source.mkdir()
    with tarfile.open(source / "a.tar", "w") as archive:
        for sample in range(4):
            path = tmp_path / "member"
            path.write_text(str(sample))
            archive.add(path, f"{'long/' * 30}s{sample}.cls")
    copy = tmp_path / "copy"
    assert run_cli("stage", source, copy).code == 0
    opened = penstock.open(copy).fields(c=penstock.tensor("int64", ()).of("cls"))
    assert (opened.rung, opened.samples, opened.counted().is_indexed) == ("index", 4, True)
    (batch,) = penstock.Loader(opened, batch_size=4)
    assert batch["c"].tolist() == [0, 1, 2, 3]
    (log,) = (copy / ".penstock").glob("records-*.bin")
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "other"))
    content = bytearray(log.read_bytes())
    content[60] ^= 1
    log.write_bytes(content)
    assert penstock.open(copy).rung == "scan"


def test_ranks_of_many_nodes_each_note_their_share(source, tmp_path, run_cli):
    copy = tmp_path / "copy"
    for node in range(2):
        done = run_cli("stage", source, copy, "--decompress", "--node", str(node), "--nodes", "2", "--json")
        assert done.code == 0, done.err
        json.loads(done.out.splitlines()[-1])
    assert len(list((copy / ".penstock").glob("records-*.bin"))) == 2
    assert (penstock.open(copy).rung, penstock.open(copy).samples) == ("index", 10)

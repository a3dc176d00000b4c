# SPDX-License-Identifier: Apache-2.0
"""Tests index files of other programs: DALI's `.idx` of TFRecords and tars, and wids' list of shards."""

from __future__ import annotations

import json
import pickle
import struct
import tarfile

import numpy as np
import pytest

import penstock

from .conftest import dataset, samples, write
from .test_formats import INT, tar_bytes


def tfrecord_index(file):
    """Index as DALI's tfrecord2idx writes it: `offset size` per line; the size includes the frame."""
    content, at, lines = file.read_bytes(), 0, []
    while at < len(content):
        size = struct.unpack_from("<Q", content, at)[0] + 16
        lines.append(f"{at} {size}\n")
        at += size
    return "".join(lines)


def tar_index(file):
    """Index as DALI's wds2idx writes it, version 1.2."""
    found: dict[str, list[str]] = {}
    with tarfile.open(file) as archive:
        for member in archive:
            key, ext = member.name.rsplit("/", 1)[-1].split(".", 1)
            found.setdefault(key, []).append(f"{ext} {member.offset_data} {member.size} {member.name}")
    return f"v1.2 {len(found)}\n" + "".join(" ".join(parts) + "\n" for parts in found.values())


def tars(folder, counts, **arguments):
    folder.mkdir()
    first = 0
    for number, count in enumerate(counts):
        (folder / f"part-{number:03d}.tar").write_bytes(tar_bytes(range(first, first + count), **arguments))
        first += count
    return folder


def ids(opened, **arguments):
    return sorted(i for batch in penstock.Loader(opened, batch_size=3, **arguments) for i in samples(batch))


@pytest.mark.parametrize("name", ["part-{}.idx", "part-{}.tfrecord.idx"])
def test_index_beside_a_tfrecord_gives_counts_and_ranges_without_a_scan(made, caplog, name):
    folder = made([3, 5, 1], codec="none")
    for file in sorted(folder.iterdir()):
        (folder / name.format(file.stem.split("-")[1])).write_text(tfrecord_index(file))
    opened = dataset(folder).shuffle(seed=4)
    assert (opened.rung, opened.samples, opened.counted().is_indexed) == ("existing", 9, True)
    assert ids(opened) == list(range(9))
    loader = penstock.Loader(dataset(folder / "*.tfrecord"), batch_size=9)
    next(iter(loader))
    assert loader.report()["counts"] == "index", "what was imported is kept"
    assert not caplog.records


def test_index_beside_objects_is_no_object(made):
    # The names have no suffix: all objects are taken for TFRecords, but their indexes are not.
    folder = made([2, 1], codec="none")
    for number, file in enumerate(sorted(folder.iterdir())):
        plain = file.rename(folder / f"train-{number:05d}-of-00002")
        plain.with_name(plain.name + ".idx").write_text(tfrecord_index(plain))
    opened = dataset(folder)
    assert (opened.source.objects, opened.rung) == (2, "existing")
    assert ids(opened) == [0, 1, 2]


@pytest.mark.parametrize("lie", ["0 10\n", "0 60\n60 60\n", "garbage", ""])
def test_index_that_lies_is_set_aside_with_a_note_and_its_object_scanned(made, caplog, lie):
    folder = made([2, 3], codec="none")
    for file in sorted(folder.glob("*.tfrecord")):
        file.with_suffix(".idx").write_text(tfrecord_index(file))
    (folder / "part-0001.idx").write_text(lie)
    opened = dataset(folder)
    assert (opened.rung, opened.samples) == ("scan", 5)
    assert "an index is ignored: " in caplog.text
    assert "part-0001.idx" in caplog.text
    assert ids(opened) == list(range(5))


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT], ids=["gnu", "pax"])
def test_index_beside_a_tar_gives_its_samples_with_their_long_names(tmp_path, form):
    folder = tars(tmp_path / "d", [3, 4], format=form)
    for file in folder.glob("*.tar"):
        file.with_suffix(".idx").write_text(tar_index(file))
    opened = penstock.open(folder).fields(x=INT.of("x.npy"), key=penstock.raw().of("__key__"))
    assert (opened.rung, opened.samples) == ("existing", 7)
    (batch,) = penstock.Loader(opened, batch_size=7)
    assert batch["x"][:, 0, 0].tolist() == list(range(7))
    assert [bytes(key)[-11:] for key in batch["key"]] == [f"sample-{i:04d}".encode() for i in range(7)]


def test_list_of_shards_gives_counts_unless_a_size_differs(tmp_path, caplog):
    folder = tars(tmp_path / "d", [3, 4])
    listed = [
        {"url": file.name, "nsamples": count, "filesize": file.stat().st_size}
        for file, count in zip(sorted(folder.glob("*.tar")), [3, 4], strict=True)
    ]
    text = {"__kind__": "wids-shard-index-v1", "wids_version": 1, "shardlist": listed}
    (folder / "index.json").write_text(json.dumps(text))
    opened = penstock.open(folder).fields(x=INT.of("x.npy"))
    assert (opened.rung, opened.samples, opened.counted().is_indexed) == ("existing", 7, False)
    (batch,) = penstock.Loader(opened, batch_size=7)
    assert batch["x"][:, 0, 0].tolist() == list(range(7))
    listed[1]["filesize"] += 1
    (folder / "index.json").write_text(json.dumps(text))
    assert penstock.open(folder).rung == "scan"
    assert "bytes for `part-001.tar`, but the object has" in caplog.text


def test_indexes_elsewhere_are_used_where_they_are_said_to_be(made, tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_CACHE", "")  # no cache: the index is only in memory
    folder = made([3, 2], codec="none")
    elsewhere = tmp_path / "idx"
    elsewhere.mkdir()
    for file in folder.iterdir():
        (elsewhere / f"{file.name}.idx").write_text(tfrecord_index(file))
    opened = dataset(folder, indexes=elsewhere)
    assert (opened.rung, opened.samples) == ("existing", 5)
    assert ids(pickle.loads(pickle.dumps(opened))) == list(range(5))
    assert dataset(folder, indexes=str(elsewhere)).index().rung == "existing"


def test_map_dataset_reads_the_records_it_is_asked_for_and_no_more(tmp_path):
    folder = write(tmp_path / "d", [400], codec="none")
    (file,) = folder.iterdir()
    file.with_suffix(".idx").write_text(tfrecord_index(file))
    opened = dataset(folder)
    import torch

    from penstock.torch import MapDataset

    random = MapDataset(opened)
    assert torch.equal(random[399]["y"], torch.full((4,), 399.0))
    feed = random._loader._native_feed()
    size = file.stat().st_size // 400
    assert feed.metrics()["bytes_in"] <= 2 * size, "one record, not its object"
    assert [int(row["y"][0]) for row in random.__getitems__([5, 0, 399])] == [5, 0, 399]


def test_tar_index_of_other_bytes_is_found_out_when_it_is_read(tmp_path):
    folder = tars(tmp_path / "d", [4])
    (file,) = folder.glob("*.tar")
    text = tar_index(file)
    file.with_suffix(".idx").write_text(text)
    # Same length as before, but other content.
    file.write_bytes(bytes(np.random.default_rng(1).integers(1, 255, file.stat().st_size, dtype="u1")))
    opened = penstock.open(folder).fields(x=INT.of("x.npy"))
    with pytest.raises(penstock.errors.Corrupt, match=r"part-000\.tar"):
        list(penstock.Loader(opened, batch_size=2))

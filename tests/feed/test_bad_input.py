# SPDX-License-Identifier: Apache-2.0
"""Tests damaged, missing and unusual input: the affected batch raises one clear error, and the loader can continue."""

from __future__ import annotations

import gzip
import logging
import tarfile
from pathlib import Path

import pytest

import penstock
from penstock import _native
from penstock.errors import Changed, Corrupt, NotFound, Unreachable
from tests.ports import free_port

from .conftest import batches, dataset, record, samples


def damaged(folder, number: int, content: bytes) -> None:
    (folder / f"part-{number:04d}.tfrecord.gz").write_bytes(content)


def flipped(content: bytes, at: int) -> bytes:
    changed = bytearray(content)
    changed[at] ^= 1
    return bytes(changed)


CASES = {
    "truncated gzip": (lambda plain: gzip.compress(plain)[:-20], ""),
    "gzip without its trailer": (lambda plain: gzip.compress(plain)[:-8], ""),
    "bad payload checksum": (lambda plain: gzip.compress(flipped(plain, len(plain) - 10)), "record 0"),
    "record length beyond the file": (lambda plain: gzip.compress(plain[:-30]), "record 0"),
    "bad length checksum": (lambda plain: gzip.compress(flipped(plain, 1)), "record 0"),
    "not a TFRecord": (lambda plain: gzip.compress(b"#" * len(plain)), "not a TFRecord"),
    "not a tf.Example": (lambda plain: _foreign(), "record 0"),
    "empty": (lambda plain: b"", "empty"),
    "not gzip": (lambda plain: b"PK\x03\x04" * 40, ""),
    "two records where one was counted": (lambda plain: gzip.compress(plain + record(99)), "2 records"),
}


def _foreign() -> bytes:
    return gzip.compress(_native.encode_tfrecord({"z": b"12"}))


@pytest.mark.parametrize("case", CASES)
def test_bad_object_errs_at_its_batch_names_itself_and_ends_the_iterator(made, case):
    folder = made([1] * 6)
    make, words = CASES[case]
    damaged(folder, 3, make(record(3)))
    loader = penstock.Loader(dataset(folder, records_per_object=1), batch_size=2)
    walk = iter(loader)
    assert samples(next(walk)) == [0, 1]
    with pytest.raises(Corrupt, match=r"part-0003\.tfrecord\.gz") as caught:
        next(walk)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert list(walk) == []  # the iterator is closed
    assert loader.state_dict()["cursor"] == 2  # the delivered samples
    damaged(folder, 3, gzip.compress(record(3)))
    mended = penstock.Loader(dataset(folder, records_per_object=1), batch_size=2)
    mended.load_state_dict(loader.state_dict())
    assert batches(mended) == [[2, 3], [4, 5]]


def test_object_replaced_since_listing_is_changed(made):
    folder = made([1] * 4)
    loader = penstock.Loader(dataset(folder), batch_size=2)
    assert len(loader) == 2
    damaged(folder, 2, gzip.compress(record(7) + b""))
    walk = iter(loader)
    assert samples(next(walk)) == [0, 1]
    with pytest.raises(Changed, match="part-0002"):
        next(walk)


def test_object_gone_since_the_listing_is_not_found(made):
    folder = made([1] * 4)
    loader = penstock.Loader(dataset(folder, records_per_object=1), batch_size=2)
    (folder / "part-0003.tfrecord.gz").unlink()
    walk = iter(loader)
    next(walk)
    with pytest.raises(NotFound, match="part-0003"):
        next(walk)


def test_open_of_nothing_is_not_found(tmp_path):
    for url in (tmp_path / "nowhere", tmp_path, f"{tmp_path}/*.gz"):
        with pytest.raises(NotFound):
            penstock.open(url)


@pytest.mark.parametrize(
    ("field", "spec", "words"),
    [
        ("z", ("int16", (3, 2)), "z"),
        ("x", ("int16", (3, 3)), "x"),
        ("y", ("float32", (5,)), "y"),
        ("y", ("int64", (4,)), "is of kind float_list .* want int64"),
    ],
)
def test_feature_missing_or_of_another_size_or_type_is_named_with_its_numbers(made, field, spec, words):
    opened = penstock.open(made([1] * 2)).fields(**{field: penstock.tensor(*spec)})
    with pytest.raises(Corrupt, match=rf"part-0000.*record 0.*\b{words}\b"):
        next(iter(penstock.Loader(opened, batch_size=1)))


def golden_images() -> dict[str, bytes]:
    path = Path(__file__).resolve().parents[2] / "crates/record/tests/golden/image.tar.gz"
    with tarfile.open(path) as archive:
        return {member.name: archive.extractfile(member).read() for member in archive if member.name.count(".") == 1}


def test_jpegs_of_odd_kinds_are_pictures_and_absurd_sizes_are_refused_alone(tmp_path):
    images = golden_images()
    folder = tmp_path / "d/class"
    folder.mkdir(parents=True)
    kinds = ["420.jpg", "cmyk.jpg", "grey.jpg", "progressive.jpg"]
    for name in kinds:
        (folder / name).write_bytes(images[name])
    absurd = bytearray(images["420.jpg"])
    at = absurd.index(b"\xff\xc0")
    absurd[at + 5 : at + 9] = b"\xff\xff\xff\xff"
    (folder / "zabsurd.jpg").write_bytes(absurd)
    opened = penstock.open(tmp_path / "d").fields(image=penstock.image(24, 32, crop="none"))
    seen = []
    with pytest.raises(Corrupt, match=r"zabsurd\.jpg.*65,535 x 65,535 pixels \(allowed: 1 to 100,000,000 pixels\)"):
        seen.extend(penstock.Loader(opened, batch_size=4))
    (batch,) = seen
    means = batch["image"].reshape(4, -1, 3).mean(axis=1)
    # The images show the same picture in different encodings; the grey one has three equal channels.
    assert abs(means[[0, 1, 3]] - means[0]).max() < 12
    assert (means[2] == means[2][0]).all()
    loader = penstock.Loader(opened, batch_size=5, on_error="skip")
    (batch,) = loader
    assert (len(batch["image"]), loader.report()["skipped"]) == (4, 1)


def test_endpoint_that_nobody_serves_is_unreachable(monkeypatch):
    port = free_port()
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "k",
        "AWS_SECRET_ACCESS_KEY": "s",
        "AWS_REGION": "us-east-1",
        "PENSTOCK_GIVE_UP_AFTER_S": "1",
    }.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(Unreachable):
        penstock.open("s3://bucket/prefix/")


def test_scan_is_announced_with_its_bytes_and_counts_what_is_there(made, caplog):
    opened = dataset(made([1, 3, 2]))
    with caplog.at_level(logging.WARNING, "penstock.feed"):
        assert opened.samples == 6
    size = f"{opened.source.size_bytes:,} bytes"
    assert [size in text and "3 objects" in text for text in caplog.messages] == [True]
    assert opened.counted().rung == "scan"
    assert opened.shuffle(1).samples == 6
    assert len(caplog.messages) == 1  # counted once


def test_counts_declared_or_alike_need_no_scan(made, caplog):
    folder = made([2, 2, 2])
    assert dataset(folder, records_per_object=2).counted().rung == "declared"
    assert dataset(folder).counted().rung == "sizes"
    plain = made([2, 2, 2], codec="none", name="plain")
    assert dataset(plain).counted().rung == "sizes"
    assert dataset(plain).fingerprint == dataset(folder).fingerprint
    assert caplog.messages == []


def test_names_without_records_are_skipped_with_warning(made, caplog):
    folder = made([1] * 3)
    (folder / "README.md").write_text("# hello")
    (folder / ".penstock").mkdir()
    (folder / ".penstock/journal").write_text("x")
    assert batches(penstock.Loader(dataset(folder), batch_size=3)) == [[0, 1, 2]]
    assert "1 objects" in caplog.text

# SPDX-License-Identifier: Apache-2.0
"""Tests the node's cache in byte planes: samples stay the same despite bit rot, kills and changed settings."""

from __future__ import annotations

import gzip
import hashlib
from typing import TYPE_CHECKING

import numpy as np
import pytest

import penstock
from penstock import _native
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

OBJECTS = 8
SHAPE = (32, 32, 16)


def volume(number: int) -> np.ndarray:
    """Counts like those of cosmology volumes: they are small, so the upper bytes are nearly all equal."""
    generator = np.random.default_rng(number)
    return generator.poisson(np.exp(generator.normal(0, 1, SHAPE))).astype("<i2")


@pytest.fixture
def volumes(tmp_path) -> Callable[..., Path]:
    """Writes a folder of gzip'd TFRecords with one or two volumes each."""

    def write(each: int = 1) -> Path:
        folder = tmp_path / "volumes"
        folder.mkdir()
        for number in range(OBJECTS):
            content = b"".join(
                _native.encode_tfrecord({"x": volume(number * each + at).tobytes()}) for at in range(each)
            )
            (folder / f"{number:03d}.tfrecord.gz").write_bytes(gzip.compress(content, 6))
        return folder

    return write


def opened(folder: Path, each: int = 1) -> penstock.Dataset:
    dataset = penstock.open(str(folder), records_per_object=each).fields(x=penstock.tensor("int16", SHAPE))
    return dataset.shuffle(seed=5, window=3)


def hashed(loader: penstock.Loader, epochs: int) -> list[str]:
    """A digest per epoch of all bytes of all batches, in order."""
    found = []
    for _ in range(epochs):
        digest = hashlib.blake2b()
        for batch in loader:
            digest.update(batch["x"].tobytes())
        found.append(digest.hexdigest())
    return found


def entries(folder: Path) -> list[Path]:
    return [path for path in (folder / "penstock-cache-1/objects").glob("*/*") if path.is_file()]


@pytest.mark.parametrize("each", [1, 2])
def test_samples_in_planes_are_those_as_stored(volumes, tmp_path, each):
    ds = opened(volumes(each), each)
    want = hashed(penstock.Loader(ds.cache(False), batch_size=4), 4)
    loader = penstock.Loader(ds.cache(tmp_path / "nvme", transcode="always"), batch_size=4)
    assert hashed(loader, 1) == want[:1]
    assert loader.report()["cache_transcodes"] == OBJECTS
    assert len(entries(tmp_path / "nvme")) == OBJECTS, "each copy takes the place of what was stored"
    assert hashed(loader, 3) == want[1:]
    report = loader.report()
    assert (report["cache_hits"], report["cache_misses"], report["cache_transcodes"]) == (OBJECTS, 0, 0)
    # A later process that does not request transcoding ignores the transcoded entries.
    plain = penstock.Loader(ds.cache(tmp_path / "nvme"), batch_size=4)
    assert hashed(plain, 1) == want[:1]
    assert plain.report()["cache_misses"] == OBJECTS


def test_copy_that_rots_is_fetched_again(volumes, tmp_path):
    ds = opened(volumes()).cache(tmp_path / "nvme", transcode="always")
    loader = penstock.Loader(ds, batch_size=4)
    want = hashed(loader, 1)
    for number, path in enumerate(sorted(entries(tmp_path / "nvme"))):
        copy = bytearray(path.read_bytes())
        copy[(number * 977) % len(copy)] ^= 0x10
        path.write_bytes(copy[: -1 - number] if number % 3 == 0 else copy)
    loader.set_epoch(0)
    assert hashed(loader, 1) == want
    assert loader.report()["cache_corrupt"] == OBJECTS
    assert loader.report()["cache_misses"] == OBJECTS


def test_object_that_is_damaged_is_the_readers_error_and_no_copy(volumes, tmp_path):
    folder = volumes()
    path = folder / "003.tfrecord.gz"
    stored = bytearray(path.read_bytes())
    stored[len(stored) // 2] ^= 0x10
    path.write_bytes(stored)
    ds = opened(folder).cache(tmp_path / "nvme", transcode="always")
    loader = penstock.Loader(ds, batch_size=4, on_error="skip")
    rows = sum(len(batch["x"]) for batch in loader)
    assert rows == OBJECTS - 1
    assert loader.report()["cache_transcodes"] == OBJECTS - 1


def test_auto_measures_and_says_what_it_chose(volumes, tmp_path):
    ds = opened(volumes())
    want = hashed(penstock.Loader(ds.cache(False), batch_size=4), 2)
    loader = penstock.Loader(ds.cache(tmp_path / "nvme", transcode="auto"), batch_size=4, max_in_flight=1)
    assert hashed(loader, 2) == want
    (output,) = loader.report()["transcoding"]
    assert output.startswith(("cached as transposed copies (", "cached as stored: "))
    assert f"compressed objects are {output}" in str(loader.report())


def test_samples_are_the_same_where_not_all_find_room(volumes, tmp_path):
    folder = volumes()
    stored = sum(path.stat().st_size for path in folder.iterdir())
    cached = opened(folder).cache(tmp_path / "nvme", limit_bytes=stored // 2, transcode="always")
    loader = penstock.Loader(cached, batch_size=4)
    want = hashed(penstock.Loader(opened(folder).cache(False), batch_size=4), 3)
    assert hashed(loader, 3) == want
    assert sum(path.stat().st_size for path in entries(tmp_path / "nvme")) <= stored // 2


def test_auto_keeps_as_stored_what_would_not_fit_in_planes(volumes, tmp_path):
    folder = volumes()
    stored = sum(path.stat().st_size for path in folder.iterdir())
    cached = opened(folder).cache(tmp_path / "nvme", limit_bytes=stored // 2, transcode="auto")
    loader = penstock.Loader(cached, batch_size=4)
    hashed(loader, 2)
    (output,) = loader.report()["transcoding"]
    assert output.startswith("cached as stored: ")
    assert "but the limit is" in output
    assert loader.report()["cache_transcodes"] == 0


def test_records_by_their_places_are_the_same_in_planes(volumes, tmp_path):
    ds = opened(volumes(2), 2)
    hashed(penstock.Loader(ds.cache(tmp_path / "nvme", transcode="always"), batch_size=4), 1)
    cached = penstock.Loader(ds.cache(tmp_path / "nvme", transcode="always"), batch_size=4)
    plain = penstock.Loader(ds.cache(False), batch_size=4)
    wanted = [(0, 3, 1), (0, 0, 0), (0, 3, 0)]
    want = np.asarray(plain._native_feed().gather(wanted, 0, range(len(wanted)))["x"])
    assert (np.asarray(cached._native_feed().gather(wanted, 0, range(len(wanted)))["x"]) == want).all()


@pytest.mark.parametrize(("folder", "transcode"), [("nvme", "lz4"), (False, "auto")])
def test_transcode_that_cannot_be_is_refused(volumes, tmp_path, folder, transcode):
    with pytest.raises(ConfigError, match="transcode"):
        opened(volumes()).cache(folder and tmp_path / folder, transcode=transcode)

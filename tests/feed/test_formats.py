# SPDX-License-Identifier: Apache-2.0
"""Tests that every format, codec and world size delivers each sample once, in the same order.

Also tests the record index.
"""

from __future__ import annotations

import gzip
import io
import pickle
import struct
import tarfile
import zlib
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

import penstock
from penstock.errors import ConfigError, Corrupt, Mismatch

from .conftest import record
from .parquet import parquet_bytes
from .tfrecords import frame, sequence_example


def tar_bytes(samples, **arguments):
    """A WebDataset shard: each sample i has a class, an array and i bytes of text."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", **arguments) as archive:
        for sample in samples:
            array = io.BytesIO()
            np.save(array, np.full((3, 2), sample, "<i2"))
            files = {"cls": str(sample).encode(), "x.npy": array.getvalue(), "txt": b"t" * sample}
            for ext, content in files.items():
                info = tarfile.TarInfo(f"deep/{'long' * 30}/sample-{sample:04d}.{ext}")
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


def npy_bytes(array):
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def npz_bytes(sample):
    out = io.BytesIO()
    np.savez_compressed(out, x=np.full((3, 2), sample, "<i2"), y=np.float64(sample))
    return out.getvalue()


INT = penstock.tensor("int16", (3, 2))
# Format name: writer of samples, suffix, `format` argument (None: detected by name), fields, samples per object.
FORMATS = {
    "tfrecord": (lambda ids: b"".join(record(i) for i in ids), "tfrecord", None, {"x": INT}, 4),
    "tar": (tar_bytes, "tar", None, {"x": INT.of("x.npy")}, 4),
    "tar-pax": (lambda ids: tar_bytes(ids, format=tarfile.PAX_FORMAT), "tar", None, {"x": INT.of("x.npy")}, 4),
    "tar-gnu": (lambda ids: tar_bytes(ids, format=tarfile.GNU_FORMAT), "tar", None, {"x": INT.of("x.npy")}, 4),
    "npy": (lambda ids: npy_bytes(np.full((3, 2), ids[0], "<i2")), "npy", None, {"x": INT.of("array")}, 1),
    "npy-big": (lambda ids: npy_bytes(np.full((3, 2), ids[0], ">i2")), "npy", None, {"x": INT.of("array")}, 1),
    "npy-rows": (
        lambda ids: npy_bytes(np.stack([np.full((3, 2), i, "<i2") for i in ids])),
        "npy",
        penstock.formats.npy(rows=True),
        {"x": INT.of("array")},
        4,
    ),
    "npz": (lambda ids: npz_bytes(ids[0]), "npz", None, {"x": INT}, 1),
    "parquet": (
        lambda ids: parquet_bytes(x=tuple(np.full((3, 2), i, "<i2").tobytes() for i in ids), id=ids),
        "parquet",
        None,
        {"x": INT},
        4,
    ),
    "fixed": (
        lambda ids: b"".join(np.full((3, 2), i, "<i2").tobytes() for i in ids),
        "bin",
        penstock.formats.fixed(x=INT),
        {"x": INT},
        4,
    ),
    "tokens": (
        lambda ids: b"".join(np.full(6, i, "<i2").tobytes() for i in ids),
        "bin",
        penstock.formats.tokens(6, dtype="int16"),
        {"x": penstock.tensor("int16", (6,)).of("tokens")},
        4,
    ),
}
CODECS = {"none": ("", bytes), "gzip": (".gz", gzip.compress)}


def write(folder: Path, kind: str, codec: str, objects: int = 5) -> tuple[Path, int]:
    make, suffix, _, _, each = FORMATS[kind]
    folder.mkdir(parents=True)
    ending, pack = CODECS[codec]
    for number in range(objects):
        ids = list(range(number * each, (number + 1) * each))
        (folder / f"part-{number:03d}.{suffix}{ending}").write_bytes(pack(make(ids)))
    return folder, objects * each


def opened(folder: Path, kind: str) -> penstock.Dataset:
    _, _, output, fields, _ = FORMATS[kind]
    return penstock.open(folder, format=output).fields(**fields).shuffle(seed=11, window=3)


def sequence(dataset, world):
    steps = {}
    for rank in range(world):
        for number, batch in enumerate(penstock.Loader(dataset, global_batch=4, rank=rank, world=world)):
            flat = batch["x"].reshape(len(batch["x"]), 6)
            assert (flat == flat[:, :1]).all()
            steps.setdefault(number, []).extend(flat[:, 0].tolist())
    return [steps[number] for number in sorted(steps)]


@pytest.mark.parametrize("kind", FORMATS)
def test_every_codec_and_world_size_gives_the_one_sequence(tmp_path, kind):
    reference = None
    for codec in CODECS:
        folder, samples = write(tmp_path / codec, kind, codec)
        dataset = opened(folder, kind)
        for world in (1, 3):
            found = sequence(dataset, world)
            reference = found if reference is None else reference
            assert found == reference
        assert sorted(chain(*reference)) == list(range(samples))
        # An index may change only which bytes are read.
        dataset.index()
        assert dataset.counted().is_indexed == (kind != "parquet")
        assert sequence(dataset, 3) == reference
    assert opened(tmp_path / "none", kind).fingerprint == opened(tmp_path / "gzip", kind).fingerprint


def test_tar_gives_numbers_arrays_bytes_and_the_key(tmp_path):
    folder, _ = write(tmp_path / "d", "tar", "none")
    plain = penstock.open(folder)
    assert plain.format == "tar"
    schema = plain.schema()
    assert [name for name, _ in schema.specs] == ["__key__", "cls", "x.npy", "txt"]
    assert (schema["cls"], schema["x.npy"]) == (penstock.tensor("int64", ()), INT)
    batch = next(iter(penstock.Loader(plain, batch_size=6)))
    assert batch["cls"].tolist() == list(range(6))
    assert [bytes(text) for text in batch["txt"]] == [b"t" * sample for sample in range(6)]
    assert bytes(batch["__key__"][5]).endswith(b"/sample-0005")


@pytest.mark.parametrize("rank", [0, 2])
def test_ranks_read_only_the_records_they_want_of_an_indexed_shard(tmp_path, rank):
    folder = tmp_path / "d"
    folder.mkdir()
    rows = np.arange(64, dtype="<i4").repeat(64 << 10).reshape(64, -1)  # 256 KiB each
    (folder / "a.bin").write_bytes(rows.tobytes())
    dataset = penstock.open(folder, format=penstock.formats.fixed(x=penstock.tensor("int32", (64 << 10,))))
    loader = penstock.Loader(dataset, global_batch=64, rank=rank, world=8)
    (batch,) = loader
    assert batch["x"][:, 0].tolist() == list(range(8 * rank, 8 * rank + 8))
    assert loader.report()["bytes_in"] == 8 * (256 << 10)


def test_index_is_kept_used_again_and_made_anew_for_what_changed(tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    folder, samples = write(tmp_path / "d", "tar", "none")
    assert (opened(folder, "tar").counted().rung, opened(folder, "tar").counted().rung) == ("scan", "index")
    (kept,) = (tmp_path / "cache/records").iterdir()
    again = opened(folder, "tar")
    assert (again.counted().rung, again.samples) == ("index", samples)
    # The pickled loader includes the index, so a process without the index file still reads ranges.
    loader = pickle.loads(pickle.dumps(penstock.Loader(again, batch_size=4)))
    assert loader.dataset.counted().is_indexed
    (folder / "part-001.tar").write_bytes(tar_bytes([4, 5, 6]))
    changed = opened(folder, "tar")
    assert (changed.counted().rung, changed.samples) == ("scan", samples - 1)
    assert sorted(chain(*sequence(changed, 2))) == [sample for sample in range(samples) if sample != 7]
    kept.write_bytes(kept.read_bytes()[:-3])
    assert opened(folder, "tar").counted().rung == "scan"
    monkeypatch.setenv("PENSTOCK_CACHE", "")
    assert not opened(folder, "tar").counted().is_indexed


def test_index_finds_damage_that_a_tar_itself_does_not_show(tmp_path):
    folder, _ = write(tmp_path / "d", "tar", "none", objects=1)
    dataset = opened(folder, "tar")
    dataset.index()
    file = folder / "part-000.tar"
    stat, content = file.stat(), bytearray(file.read_bytes())
    at = content.index(np.full(6, 3, "<i2").tobytes())
    content[at] ^= 1
    with file.open("r+b") as handle:
        handle.write(content)
    import os

    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    with pytest.raises(Corrupt, match=r"part-000\.tar has a damaged record 3"):
        sequence(dataset, 1)


def test_tar_cut_short_is_named_with_its_numbers(tmp_path):
    folder, _ = write(tmp_path / "d", "tar", "none", objects=2)
    file = folder / "part-001.tar"
    file.write_bytes(file.read_bytes()[:2000])
    with pytest.raises(Corrupt, match=r"part-001\.tar ends inside"):
        penstock.open(folder).samples  # noqa: B018


def png(colour, side=12):
    """A PNG image of one colour."""
    row = b"\x00" + bytes(colour) * side
    chunks = [
        (b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(row * side)),
        (b"IEND", b""),
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body)) for name, body in chunks
    )


def gradient(side=64):
    rows = b"".join(b"\x00" + bytes(v for x in range(side) for v in (4 * x, 4 * y, 128)) for y in range(side))
    body = [
        (b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(rows)),
        (b"IEND", b""),
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(b)) + n + b + struct.pack(">I", zlib.crc32(n + b)) for n, b in body
    )


def test_images_in_class_folders_have_their_labels(tmp_path):
    for at, name in enumerate(["cat", "dog", "emu"]):
        (tmp_path / name).mkdir()
        for number in range(2):
            (tmp_path / name / f"{number}.png").write_bytes(png((at, 10 * number, 200)))
    dataset = penstock.open(tmp_path)
    assert (dataset.format, dataset.samples) == ("images", 6)
    fields = {"image": penstock.image(8, crop="none"), "label": penstock.tensor("int64", ())}
    (batch,) = penstock.Loader(dataset.fields(**fields), batch_size=6)
    assert batch["label"].tolist() == [0, 0, 1, 1, 2, 2]
    assert batch["image"].shape == (6, 8, 8, 3)
    assert batch["image"][:, 4, 4].tolist() == [[at, 10 * n, 200] for at in range(3) for n in range(2)]
    (tmp_path / "dog/0.png").write_bytes(b"not a picture")
    loader = penstock.Loader(penstock.open(tmp_path).fields(**fields), batch_size=6, on_error="skip")
    (batch,) = loader
    assert batch["label"].tolist() == [0, 0, 1, 2, 2]
    assert "is not an image" in loader.report()["bad_samples"][0]


LABELS = {
    "int": ("csv", "7", penstock.tensor("int64", ()), [3, 7, 11]),
    "float": ("csv", "7.5", penstock.tensor("float32", ()), [3.0, 7.5, 11.0]),
    "text": ("csv", '"a, b"', penstock.raw(), [b"3", b"a, b", b"11"]),
    "parquet": ("parquet", 7, penstock.tensor("int32", ()), [3, 7, 11]),
    "parquet-text": ("parquet", b"seven", penstock.raw(), [b"3", b"seven", b"11"]),
}


@pytest.mark.parametrize("kind", LABELS)
def test_labels_of_images_come_from_a_file_beside_them(tmp_path, kind):
    suffix, middle, spec, want = LABELS[kind]
    values = {"2.png": "11", "deep/1.png": middle, "0.png": "3", "none.png": "5"}
    file = tmp_path / f"labels.{suffix}"
    if suffix == "csv":
        rows = "".join(f"{value},x,{name}\r\n" for name, value in values.items())
        file.write_text("\ufeffkind,other,file\r\n" + rows)
    else:
        numbers = [
            type(middle)(v) if isinstance(middle, int) else str(v).encode() if isinstance(v, str) else v
            for v in values.values()
        ]
        file.write_bytes(parquet_bytes(kind=numbers, file=[name.encode() for name in values]))
    (tmp_path / "deep").mkdir()
    for name in ["0.png", "2.png", "deep/1.png"]:
        (tmp_path / name).write_bytes(png((1, 2, 3)))
    output = penstock.formats.images(labels=file.name, label="kind")
    dataset = penstock.open(tmp_path, format=output).fields(label=spec, key=penstock.raw().of("__key__"))
    (batch,) = penstock.Loader(pickle.loads(pickle.dumps(dataset)), batch_size=3)
    found = [bytes(one) for one in batch["label"]] if spec == penstock.raw() else batch["label"].tolist()
    keys = [bytes(key).decode() for key in batch["key"]]
    assert dict(zip(keys, found, strict=True)) == dict(zip(["0.png", "deep/1.png", "2.png"], want, strict=True))
    (tmp_path / "more.png").write_bytes(png((1, 2, 3)))
    with pytest.raises(ConfigError, match=r"has no label for 1 of 4 files: `more\.png`"):
        penstock.open(tmp_path, format=output)
    with pytest.raises(ConfigError, match=r"contains no column `label` \(columns: `kind`"):
        penstock.open(tmp_path, format=penstock.formats.images(labels=file.name))


def test_random_crops_are_those_of_the_seed_and_epoch_on_any_world(tmp_path):
    (tmp_path / "d").mkdir()
    for number in range(8):
        (tmp_path / "d" / f"{number}.png").write_bytes(gradient())
    spec = penstock.image(16, crop="random", flip=True, dtype="float32", layout="CHW", mean=(0.5,) * 3, std=(0.2,) * 3)
    dataset = penstock.open(tmp_path / "d").fields(image=spec)

    def epoch(seed, world, number=0):
        rows = {}
        for rank in range(world):
            loader = penstock.Loader(dataset.shuffle(seed), global_batch=4, rank=rank, world=world)
            loader.set_epoch(number)
            for step, batch in enumerate(loader):
                rows.setdefault(step, []).append(batch["image"])
        return np.concatenate([np.concatenate(rows[step]) for step in sorted(rows)])

    one = epoch(1, 1)
    assert one.shape == (8, 3, 16, 16)
    assert len({row.tobytes() for row in one}) == 8
    assert (epoch(1, 3) == one).all()
    assert not (epoch(2, 1) == one).all()
    assert not (epoch(1, 1, number=1) == one).all()


@pytest.mark.parametrize("size", [(0, None), (-1, None), (8, -8), (8, 2**40)])
def test_image_of_no_size_is_refused_at_once(size):
    with pytest.raises(ConfigError, match="is not a valid size"):
        penstock.image(*size)


def test_image_field_of_something_else_says_what_is_there(tmp_path):
    folder, _ = write(tmp_path / "d", "tar", "none", objects=1)
    dataset = penstock.open(folder).fields(image=penstock.image(8).of("jpg;png"))
    with pytest.raises(
        Mismatch, match=r"record 0.*`image` is read from `jpg`, `png`, but the record contains `__key__`"
    ):
        next(iter(penstock.Loader(dataset, batch_size=1)))


def test_sequence_examples_give_context_and_lists(tmp_path):
    def sequence(sample):
        return sequence_example(
            {"label": [float(sample)]}, steps=[[float(sample), float(step)] for step in range(sample + 1)]
        )

    (tmp_path / "a.tfrecord").write_bytes(b"".join(frame(sequence(sample)) for sample in range(3)))
    dataset = penstock.open(tmp_path).fields(
        label=penstock.tensor("float32", ()), steps=penstock.ragged("float32", (2,))
    )
    (batch,) = penstock.Loader(dataset, batch_size=3)
    assert batch["label"].tolist() == [0, 1, 2]
    assert batch["steps"].offsets.tolist() == [0, 1, 3, 6]
    assert batch["steps"].values.tolist() == [[s, t] for s in range(3) for t in range(s + 1)]
    assert "feature_list of 1 steps" in str(penstock.open(tmp_path).schema())


def test_shard_larger_than_the_budget_is_read_in_pieces(tmp_path):
    rows = np.arange(96, dtype="<i4").repeat(256 << 10).reshape(96, -1)  # 96 records of 1 MiB
    (tmp_path / "a.bin").write_bytes(rows.tobytes())
    opened = penstock.open(tmp_path, format=penstock.formats.fixed(x=penstock.tensor("int32", (256 << 10,))))
    loader = penstock.Loader(opened.shuffle(seed=1), batch_size=4, memory_bytes=80 << 20, threads=1)
    seen = [int(value) for batch in loader for value in batch["x"][:, 0]]
    assert sorted(seen) == list(range(96))
    whole = penstock.Loader(opened.shuffle(seed=1), batch_size=4)
    assert [int(value) for batch in whole for value in batch["x"][:, 0]] == seen

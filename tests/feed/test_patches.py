# SPDX-License-Identifier: Apache-2.0
"""Tests patches of Zarr and HDF5 arrays as samples: NumPy's slices, each once, with every chunk read once per window."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from itertools import product

import h5py
import numcodecs
import numpy as np
import pytest
import zarr

import penstock
from penstock.errors import BudgetExceeded, ConfigError, Corrupt, NotFound, PenstockError, Unsupported

SHAPE = (24, 20, 30)
VOLUME = np.random.default_rng(15).integers(-3000, 3000, SHAPE).astype("<i2")
LABEL = (VOLUME > 0).astype("u1")
ZARR = {
    "plain": {"chunks": (8, 8, 8), "compressors": None},
    "shards": {"chunks": (4, 4, 4), "shards": (8, 8, 8), "compressors": None},
    "blosc": {"chunks": (8, 20, 7), "zarr_format": 2, "compressors": numcodecs.Blosc()},
    "one-chunk": {"chunks": (40, 40, 40)},
}
HDF5 = {"contiguous": {}, "chunked": {"chunks": (7, 8, 9), "compression": "gzip", "shuffle": True}}
CUTS = [
    ((8, 8, 8), (8, 8, 8)),
    ((8, 10, 12), (4, 5, 9)),
    ((5, 3, 7), (9, 8, 10)),
    ((1, 12, 12), (1, 6, 9)),
    (SHAPE, SHAPE),
]


def write(folder, kind):
    """Writes the volume and its label as arrays of the kind. Returns the dataset."""
    folder.mkdir(exist_ok=True)
    if kind in HDF5:
        with h5py.File(folder / "volume.h5", "w") as file:
            file.create_dataset("x", data=VOLUME, **HDF5[kind])
            file.create_dataset("y", data=LABEL)
        return penstock.open(folder / "volume.h5", format=penstock.formats.hdf5("x", "y"))
    group = zarr.create_group(folder / "volume.zarr", zarr_format=ZARR[kind].get("zarr_format", 3))
    options = {name: value for name, value in ZARR[kind].items() if name != "zarr_format"}
    group.create_array("x", shape=SHAPE, dtype="<i2", **options)[:] = VOLUME
    group.create_array("y", shape=SHAPE, dtype="u1", chunks=(24, 5, 16))[:] = LABEL
    return penstock.open(folder / "volume.zarr", format=penstock.formats.zarr("x", "y"))


def starts(shape, stride, *, pads=False):
    def axis(side, patch, step):
        return [
            at for at in range(0, side, step) if at + patch <= side or (pads and (at == 0 or at - step + patch < side))
        ]

    return set(product(*map(axis, SHAPE, shape, stride)))


def box(array, origin, shape):
    part = array[tuple(slice(at, at + side) for at, side in zip(origin, shape, strict=True))]
    return np.pad(part, [(0, side - have) for side, have in zip(shape, part.shape, strict=True)])


def origins(loader, shape):
    """Origins of each batch. Every patch must equal NumPy's slice."""
    for batch in loader:
        found = [tuple(origin) for origin in batch["origin"].tolist()]
        for origin, x, y in zip(found, batch["x"], batch["y"], strict=True):
            assert np.array_equal(x, box(VOLUME, origin, shape))
            assert np.array_equal(y, box(LABEL, origin, shape))
        yield found


def flat(batches):
    return [origin for batch in batches for origin in batch]


@pytest.mark.parametrize("edges", ["drop", "pad"])
@pytest.mark.parametrize(("shape", "stride"), CUTS)
@pytest.mark.parametrize("kind", [*ZARR, *HDF5])
def test_patches_are_numpys_slices_once_per_epoch(tmp_path, kind, shape, stride, edges):
    dataset = write(tmp_path, kind).patches(shape, stride, edges=edges)
    want = starts(shape, stride, pads=edges == "pad")
    assert dataset.schema()["x"] == penstock.tensor("int16", shape)
    assert dataset.schema()["origin"] == penstock.tensor("int64", (3,))
    loader = penstock.Loader(dataset.shuffle(seed=5, window=3), batch_size=7)
    for _ in range(2):
        found = flat(origins(loader, shape))
        assert len(found) == len(want)
        assert set(found) == want


def test_patches_of_two_dimensions(tmp_path):
    lines = VOLUME[0]
    zarr.create_array(tmp_path / "line", shape=lines.shape, chunks=(8, 8), dtype="<i2")[:] = lines
    dataset = penstock.open(tmp_path / "line").patches((6, 8), stride=4)
    found = set()
    for batch in penstock.Loader(dataset.shuffle(seed=1), batch_size=5):
        for (i, j), patch in zip(batch["origin"].tolist(), batch["array"], strict=True):
            assert np.array_equal(patch, lines[i : i + 6, j : j + 8])
            found.add((i, j))
    assert found == set(product(range(0, 15, 4), range(0, 23, 4)))


def test_patches_of_several_files_name_their_file(tmp_path):
    parts = {"a.h5": VOLUME[:13], "b.h5": VOLUME[5:]}
    for name, part in parts.items():
        with h5py.File(tmp_path / name, "w") as file:
            file["x"] = part
    dataset = penstock.open(tmp_path / "*.h5", format=penstock.formats.hdf5("x")).patches((8, 8, 8), stride=5)
    found = set()
    for batch in penstock.Loader(dataset.shuffle(seed=2), batch_size=9):
        for file, origin, x in zip(batch["file"].tolist(), batch["origin"].tolist(), batch["x"], strict=True):
            assert np.array_equal(x, box(list(parts.values())[file], origin, (8, 8, 8)))
            found.add((file, *origin))
    assert len(found) == (2 + 3) * 3 * 5


def test_patches_of_several_urls_are_aligned(tmp_path):
    for name, array in {"amplitude.zarr": VOLUME, "label.zarr": LABEL}.items():
        zarr.create_array(tmp_path / name, shape=SHAPE, chunks=(8, 8, 8), dtype=array.dtype)[:] = array
    urls = [tmp_path / "amplitude.zarr", tmp_path / "label.zarr"]
    dataset = penstock.open(urls, format=penstock.formats.zarr("amplitude.zarr", "label.zarr")).patches((8, 8, 8))
    dataset = dataset.fields(
        x=penstock.tensor("int16", (1, 8, 8, 8)).of("amplitude.zarr"),
        y=penstock.tensor("int64", (8, 8, 8)).of("label.zarr"),
        origin=penstock.tensor("int64", (3,)),
    )
    (batch,) = penstock.Loader(dataset, batch_size=100)
    assert batch["x"].shape == (18, 1, 8, 8, 8)
    for origin, x, y in zip(batch["origin"].tolist(), batch["x"], batch["y"], strict=True):
        assert np.array_equal(x[0], box(VOLUME, origin, (8, 8, 8)))
        assert np.array_equal(y, box(LABEL, origin, (8, 8, 8)))


@pytest.mark.parametrize("kind", ["shards", "chunked"])
def test_patches_have_one_order_on_every_store_and_world(tmp_path, emulator, monkeypatch, kind):
    here = write(tmp_path / "data", kind)
    server = emulator(folder=tmp_path / "data")
    for name, value in server.env.items():
        monkeypatch.setenv(name, value)
    url = f"{server.url.rstrip('/')}/{here.url.rstrip('/').rsplit('/', 1)[1] if kind == 'shards' else 'volume.h5'}"
    output = penstock.formats.zarr("x", "y") if kind == "shards" else penstock.formats.hdf5("x", "y")
    shape = (8, 8, 8)
    sets = [
        dataset.patches(shape, stride=(4, 6, 8)).shuffle(seed=9, window=4)
        for dataset in (here, penstock.open(url, format=output).cache(False))
    ]
    want = list(origins(penstock.Loader(sets[0], global_batch=6), shape))
    assert sets[0].fingerprint == sets[1].fingerprint
    for dataset in (*sets, pickle.loads(pickle.dumps(sets[1]))):
        for world in (1, 2, 3):
            ranks = [penstock.Loader(dataset, global_batch=6, rank=rank, world=world) for rank in range(world)]
            parts = [origins(rank, shape) for rank in ranks]
            assert [flat(slices) for slices in zip(*parts, strict=True)] == want


def test_patches_resume_on_another_world(tmp_path):
    dataset = write(tmp_path / "one", "shards").patches((8, 8, 8), stride=6).shuffle(seed=4, window=3)
    want = flat(origins(penstock.Loader(dataset, global_batch=4), (8, 8, 8)))
    first = [penstock.Loader(dataset, global_batch=4, rank=rank, world=2) for rank in range(2)]
    walks = [origins(loader, (8, 8, 8)) for loader in first]
    done = [next(walk) for _ in range(3) for walk in walks]
    states = [json.dumps(loader.state_dict()) for loader in first]
    assert states[0] == states[1]
    rest = []
    for rank in range(3):
        loader = penstock.Loader(dataset, global_batch=6, rank=rank, world=3)
        loader.load_state_dict(json.loads(states[0]))
        rest.append(list(origins(loader, (8, 8, 8))))
    assert flat(done) + flat(flat(step) for step in zip(*rest, strict=True)) == want
    other = write(tmp_path / "other", "shards").patches((8, 8, 8), stride=4).shuffle(seed=4, window=3)
    with pytest.raises(ConfigError, match="fingerprint"):
        penstock.Loader(other, global_batch=4).load_state_dict(json.loads(states[0]))


def s3_volume(tmp_path, emulator, monkeypatch, **options):
    zarr.create_array(tmp_path / "v" / "volume.zarr", shape=(32, 32, 32), dtype="<i2", compressors=None, **options)[
        :
    ] = 7
    server = emulator(folder=tmp_path / "v")
    for name, value in server.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("PENSTOCK_SCRATCH", raising=False)
    return server, penstock.open(f"{server.url.rstrip('/')}/volume.zarr")


def test_each_shard_is_one_request_if_patches_stay_inside(tmp_path, emulator, monkeypatch):
    server, dataset = s3_volume(tmp_path, emulator, monkeypatch, chunks=(8, 8, 8), shards=(16, 16, 16))
    dataset = dataset.patches((8, 8, 8)).shuffle(seed=3, window=2)
    assert dataset.source.objects == 8
    before = server.stats()["gets"]
    loader = penstock.Loader(dataset, batch_size=4)
    assert sum(len(batch["array"]) for batch in loader) == 64
    report = loader.report()
    assert (server.stats()["gets"] - before, report["requests"]) == (8, 8)
    assert report["bytes_in"] == report["needed_bytes"] == 32**3 * 2
    assert "need 0.000 GB of chunks; this rank read 1.00 times that" in str(report)


@pytest.mark.parametrize("options", [{"chunks": (8, 8, 8)}, {"chunks": (4, 4, 4), "shards": (8, 8, 8)}])
def test_each_chunk_is_read_at_most_once_per_window(tmp_path, emulator, monkeypatch, options):
    """Patches of 8 with stride 4 cross the chunks, so that neighbouring blocks share chunks."""
    _, dataset = s3_volume(tmp_path, emulator, monkeypatch, **options)
    dataset = dataset.patches((8, 8, 8), stride=4).cache(False)
    side, chunk_bytes = options["chunks"][0], 2 * options["chunks"][0] ** 3
    for window in (1, 4, 27, 64):
        loader = penstock.Loader(dataset.shuffle(seed=8, window=window), batch_size=16, prefetch_next_epoch=False)
        windows: list[set[tuple[int, ...]]] = [set()]
        chunks: list[set[tuple[int, ...]]] = [set()]
        for origin in (origin for batch in loader for origin in batch["origin"].tolist()):
            block = tuple(at // 8 for at in origin)  # a block has the patches that start in one shard or chunk
            if block not in windows[-1] and len(windows[-1]) == window:
                windows.append(set())
                chunks.append(set())
            windows[-1].add(block)
            chunks[-1] |= set(product(*(range(at // side, (at + 7) // side + 1) for at in origin)))
        assert sum(map(len, windows)) == 64  # each block is in one window
        report = loader.report()
        assert report["needed_bytes"] == 32**3 * 2
        assert report["needed_bytes"] <= report["bytes_in"] <= sum(map(len, chunks)) * chunk_bytes
        assert report["requests"] <= sum(map(len, chunks))
    assert report["bytes_in"] == report["needed_bytes"]  # all blocks are in one window


def test_node_cache_reads_shared_chunks_once(tmp_path, emulator, monkeypatch):
    server, dataset = s3_volume(tmp_path, emulator, monkeypatch, chunks=(4, 4, 4), shards=(8, 8, 8))
    dataset = dataset.patches((8, 8, 8), stride=4).shuffle(seed=8, window=2).cache(tmp_path / "nvme")
    loader = penstock.Loader(dataset, batch_size=16)
    assert sum(len(batch["array"]) for batch in loader) == 7**3
    report = loader.report()
    assert report["bytes_in"] == report["needed_bytes"]
    before = server.stats()["gets"]
    assert sum(len(batch["array"]) for batch in loader) == 7**3
    assert server.stats()["gets"] == before


@pytest.mark.needs_torch
def test_patches_by_torch_and_by_index(tmp_path):
    import torch

    from penstock.torch import Loader, MapDataset

    dataset = write(tmp_path, "blosc").patches((8, 8, 8), stride=6).shuffle(seed=4)
    want = flat(origins(penstock.Loader(dataset, batch_size=5), (8, 8, 8)))
    found = []
    for batch in Loader(dataset, batch_size=5):
        assert batch["x"].dtype == torch.int16
        found += [tuple(origin) for origin in batch["origin"].tolist()]
    assert found == want
    row = MapDataset(dataset)[3]
    assert np.array_equal(row["x"].numpy(), box(VOLUME, row["origin"].tolist(), (8, 8, 8)))


MEASURED = """
import resource, sys
import numpy, penstock
def peak():
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
url, budget = sys.argv[1], int(sys.argv[2])
before, count = peak(), 0
dataset = penstock.open(url).patches((64, 64, 64), stride=16).shuffle(seed=1, window=2)
for batch in penstock.Loader(dataset, batch_size=4, memory_bytes=budget):
    count += len(batch["array"])
print(count, peak() - before)
"""


def test_patches_keep_to_the_budget(tmp_path):
    sides, budget = (192,) * 3, 200 << 20
    array = zarr.create_array(
        tmp_path / "z", shape=sides, chunks=(32,) * 3, shards=(96,) * 3, dtype="<f4", compressors=None
    )
    array[:] = np.broadcast_to(np.arange(192, dtype="<f4"), sides)
    # 729 patches of 1 MiB. The 216 patches of a whole shard would not fit the budget.
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, str(tmp_path / "z"), str(budget)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    count, grown = map(int, done.stdout.split())
    assert count == 9**3
    assert grown < budget + (100 << 20)
    with pytest.raises(BudgetExceeded, match="window"):
        list(
            penstock.Loader(penstock.open(tmp_path / "z").patches((128, 128, 128)), batch_size=1, memory_bytes=4 << 20)
        )


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (((25, 8, 8),), ConfigError, r"a patch of shape \[25, 8, 8\] is larger than array `x` of shape \[24, 20, 30\]"),
        (((8, 8),), ConfigError, "so the patch shape and stride must have 3 numbers"),
        (((8, 8, 8), (4, 4)), ConfigError, r"got 3 and 2"),
        (((8, 8, 8), 0), ConfigError, "stride: must be one integer of at least 1 per axis .got 0"),
        (((8, 0, 8),), ConfigError, r"shape: must be one integer of at least 1 per axis \(got \(8, 0, 8\)"),
        (((8, 8, 1.5),), ConfigError, "shape: "),
    ],
)
def test_patches_that_cannot_be_are_refused(tmp_path, arguments, error, text):
    dataset = write(tmp_path, "plain")
    with pytest.raises(error, match=text):
        dataset.patches(*arguments)
    with pytest.raises(ConfigError, match="edges: `wrap`"):
        dataset.patches((8, 8, 8), edges="wrap")
    with pytest.raises(ConfigError, match="must come before shuffle"):
        dataset.shuffle(seed=1).patches((8, 8, 8))


def test_patches_of_unequal_arrays_are_refused(tmp_path):
    group = zarr.create_group(tmp_path / "g")
    group.create_array("x", shape=(8, 8), chunks=(4, 4), dtype="<i2")[:] = 1
    group.create_array("y", shape=(8, 9), chunks=(4, 4), dtype="<i2")[:] = 1
    with pytest.raises(ConfigError, match=r"array `y` has shape \[8, 9\], but array `x` has shape \[8, 8\]"):
        penstock.open(tmp_path / "g").patches((4, 4))
    for name, dtype in {"a.h5": "<i2", "b.h5": "<f4"}.items():
        with h5py.File(tmp_path / name, "w") as file:
            file["x"] = np.ones((8, 8), dtype)
    with pytest.raises(ConfigError, match="differ from those of the first"):
        penstock.open(tmp_path / "*.h5", format=penstock.formats.hdf5("x"))
    floats = penstock.open(tmp_path / "b.h5", format=penstock.formats.hdf5("x")).patches((4, 4))
    with pytest.raises(PenstockError, match=r"expects int16 \[4, 4\].* contains float32 \[4, 4\]"):
        list(penstock.Loader(floats.fields(x=penstock.tensor("int16", (4, 4))), batch_size=2))


def test_patches_of_other_formats_are_refused(tmp_path):
    np.save(tmp_path / "a.npy", VOLUME)
    with pytest.raises(Unsupported, match="patches are supported only for Zarr and HDF5 arrays, not for npy"):
        penstock.open(tmp_path / "a.npy").patches((8, 8, 8))
    (tmp_path / "line.sgy").write_bytes(b"\xc3" * 3200 + bytes(1000))
    with pytest.raises(Unsupported, match="penstock array convert"):
        penstock.open(tmp_path / "line.sgy")
    with pytest.raises(ConfigError, match="the feed does not support SEG-Y"):
        penstock.open(tmp_path / "line.sgy", format="segy")


def test_patches_of_missing_chunks(tmp_path):
    array = zarr.create_array(
        tmp_path / "z", shape=(16, 16), chunks=(8, 8), dtype="<f4", fill_value=2.5, compressors=None
    )
    array[:8] = 1
    dataset = penstock.open(tmp_path / "z").patches((12, 6), stride=(4, 5), edges="pad")
    seen = 0
    for batch in penstock.Loader(dataset, batch_size=4):
        for (i, j), patch in zip(batch["origin"].tolist(), batch["array"], strict=True):
            want = np.zeros((12, 6), "<f4")
            part = np.asarray(array)[i : i + 12, j : j + 6]
            want[: part.shape[0], : part.shape[1]] = part
            assert np.array_equal(patch, want)
            seen += 1
    assert seen == 2 * 3
    chunk = tmp_path / "z" / "c" / "0" / "1"
    chunk.write_bytes(chunk.read_bytes()[:-4])
    short = penstock.open(tmp_path / "z").patches((12, 6), stride=(4, 5))
    with pytest.raises(Corrupt, match=r"c/0/1 chunk \[0, 1\] of `array` is a chunk of 252 bytes \(want 256\)"):
        list(penstock.Loader(short, batch_size=4))
    chunk.unlink()  # deleted after the listing
    with pytest.raises(NotFound, match="c/0/1"):
        list(penstock.Loader(dataset, batch_size=4))

# SPDX-License-Identifier: Apache-2.0
"""Writes array chunks with zarr-python 3, numcodecs and h5py to one archive, for tests/it/chunk.rs.

zarr/NAME/...: the files of an array with shape (7, 5) and chunks (4, 5). Its elements are 0, 1, 2, ... in the type that
its metadata states. blosc/NAME: the content of NAME.raw in a Blosc container. h5/NAME: one chunk of 8 x 6 int32 values
0, 1, 2, ..., as stored in the file. Needs zarr and h5py.
"""

import io
import tempfile
from pathlib import Path

import h5py
import numcodecs
import numpy as np
import zarr
from archive import write_archive
from numcodecs.blosc import Blosc
from zarr import codecs

members: dict[str, bytes] = {}


def store(name: str, **options: object) -> None:
    with tempfile.TemporaryDirectory() as folder:
        dtype = options.pop("dtype", "<i4")
        array = zarr.create_array(folder, shape=(7, 5), chunks=options.pop("chunks", (4, 5)), dtype=dtype, **options)
        array[:] = np.arange(35).reshape(7, 5).astype(dtype)
        for path in sorted(Path(folder).rglob("*")):
            if path.is_file():
                members[f"zarr/{name}/{path.relative_to(folder)}"] = path.read_bytes()


big = codecs.BytesCodec(endian="big")
store("v3_zstd")
store("v3_none", compressors=None)
store("v3_big", serializer=big, compressors=codecs.GzipCodec(level=5), dtype="<i2")
store("v3_crc", compressors=[codecs.ZstdCodec(level=1, checksum=True), codecs.Crc32cCodec()], dtype="<f8")
store("v3_crc_only", compressors=[codecs.Crc32cCodec()], dtype="u1")
for cname in ["lz4", "zstd", "zlib", "blosclz", "lz4hc"]:
    for shuffle in ["noshuffle", "shuffle", "bitshuffle"]:
        store(
            f"v3_blosc_{cname}_{shuffle}",
            compressors=codecs.BloscCodec(cname=cname, shuffle=shuffle, typesize=4),
            dtype="<f4",
        )
store("v3_transpose", filters=[codecs.TransposeCodec(order=(1, 0))])
store("v3_shard", chunks=(2, 5), shards=(4, 5))
store("v3_shard_start", chunks=(2, 5), shards={"shape": (4, 5), "index_location": "start"})
store("v3_fill", fill_value=9)
v2 = {"zarr_format": 2}
store("v2_blosc", compressors=Blosc(cname="lz4", clevel=5, shuffle=Blosc.SHUFFLE), **v2)
store("v2_zlib", compressors=numcodecs.Zlib(level=3), dtype=">f4", **v2)
store("v2_gzip", compressors=numcodecs.GZip(level=3), **v2)
store("v2_zstd", compressors=numcodecs.Zstd(level=3), **v2)
store("v2_lz4", compressors=numcodecs.LZ4(), **v2)
store("v2_bz2", compressors=numcodecs.BZ2(), **v2)
store("v2_none", compressors=None, dtype="|u1", **v2)
store("v2_shuffle", compressors=numcodecs.Zlib(level=3), filters=[numcodecs.Shuffle(elementsize=8)], dtype="<i8", **v2)
store("v2_delta", compressors=None, filters=[numcodecs.Delta(dtype="<i4")], **v2)
store("v2_fortran", compressors=None, order="F", **v2)
store("v2_dots", compressors=None, chunk_key_encoding={"name": "v2", "separator": "/"}, **v2)

# Larger Blosc containers: several blocks, split and unsplit streams, blocks that do not compress.
random = np.random.default_rng(3)
smooth = np.cumsum(random.integers(-3, 4, 30000)).astype("<i4")
noise = random.integers(0, 256, 40000).astype("u1")
for cname in ["lz4", "zstd", "zlib", "blosclz"]:
    for mode in [Blosc.NOSHUFFLE, Blosc.SHUFFLE, Blosc.BITSHUFFLE]:
        packed = Blosc(cname=cname, clevel=5, shuffle=mode, blocksize=1 << 14).encode(smooth[:20001])
        members[f"blosc/{cname}{mode}"] = packed
members["blosc.raw"] = smooth[:20001].tobytes()
members["noise/lz4"] = Blosc(cname="lz4", clevel=5, shuffle=Blosc.SHUFFLE).encode(noise[:3001])
members["noise/zstd"] = Blosc(cname="zstd", clevel=1, shuffle=Blosc.BITSHUFFLE, blocksize=1000).encode(noise[:3001])
members["noise.raw"] = noise[:3001].tobytes()

for name, options in {
    "none": {},
    "deflate": {"compression": "gzip"},
    "shuffle": {"compression": "gzip", "shuffle": True},
    "fletcher": {"fletcher32": True},
    "all": {"compression": "gzip", "shuffle": True, "fletcher32": True},
}.items():
    raw = io.BytesIO()
    with h5py.File(raw, "w") as file:
        data = file.create_dataset("x", data=np.arange(48, dtype="<i4").reshape(8, 6), chunks=(8, 6), **options)
        file.flush()
        members[f"h5/{name}"] = data.id.read_direct_chunk((0, 0))[1]
odd = np.arange(7, dtype="u1")
raw = io.BytesIO()
with h5py.File(raw, "w") as file:
    data = file.create_dataset("x", data=odd, chunks=(7,), fletcher32=True)
    file.flush()
    members["h5/odd"] = data.id.read_direct_chunk((0,))[1]

write_archive("chunk.tar.gz", members)

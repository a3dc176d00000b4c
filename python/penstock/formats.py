# SPDX-License-Identifier: Apache-2.0
"""Public alias of `penstock.feed.formats`, for `penstock.open(url, format=...)`."""

from penstock.feed.formats import (
    Format,
    arrow,
    csv,
    files,
    fixed,
    hdf5,
    images,
    jsonl,
    mds,
    megatron,
    npy,
    npz,
    parquet,
    tar,
    tfrecord,
    tokens,
    zarr,
)

__all__ = [
    "Format",
    "arrow",
    "csv",
    "files",
    "fixed",
    "hdf5",
    "images",
    "jsonl",
    "mds",
    "megatron",
    "npy",
    "npz",
    "parquet",
    "tar",
    "tfrecord",
    "tokens",
    "zarr",
]

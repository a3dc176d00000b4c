# SPDX-License-Identifier: Apache-2.0
"""The formats that `penstock.open(url, format=...)` takes; their home is `penstock.feed.formats`."""

from penstock.feed.formats import Format, fixed, hdf5, images, mds, npy, npz, parquet, tar, tfrecord, tokens, zarr

__all__ = ["Format", "fixed", "hdf5", "images", "mds", "npy", "npz", "parquet", "tar", "tfrecord", "tokens", "zarr"]

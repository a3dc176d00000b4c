# SPDX-License-Identifier: Apache-2.0
"""The formats that `penstock.open(url, format=...)` takes; their home is `penstock.feed.formats`."""

from penstock.feed.formats import Format, fixed, images, mds, npy, npz, tar, tfrecord, tokens

__all__ = ["Format", "fixed", "images", "mds", "npy", "npz", "tar", "tfrecord", "tokens"]

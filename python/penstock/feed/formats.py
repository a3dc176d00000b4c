# SPDX-License-Identifier: Apache-2.0
"""Formats for `penstock.open(url, format=...)`, for facts that names and contents do not show.

Each function returns a `Format`. A function's name as a string means the format without arguments.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError
from penstock.feed.fields import TensorSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "Format",
    "LabelFile",
    "fixed",
    "hdf5",
    "images",
    "mds",
    "named",
    "npy",
    "npz",
    "parquet",
    "tar",
    "tfrecord",
    "tokens",
    "zarr",
]


@dataclass(frozen=True, slots=True)
class LabelFile:
    """A file that contains the labels of other files, and its columns."""

    place: str
    key: str
    label: str


@dataclass(frozen=True, slots=True)
class Format:
    """A format and its facts."""

    name: str
    facts: dict[str, Any] = field(default_factory=dict)
    labels: LabelFile | None = None
    classes: tuple[str, ...] | None = None

    def to_json(self) -> str:
        """The format as the core reads it."""
        return json.dumps({"name": self.name, **self.facts})


def tfrecord(*, compression: str | None = None) -> Format:
    """TFRecords of tf.Example or tf.SequenceExample; parts are the features.

    Args:
        compression: `gzip`, `zstd` or `lz4`: compression of objects whose names have no such suffix, as
            `tf.io.TFRecordWriter(path, "GZIP")` writes them.
    Raises:
        ConfigError: The compression is not one of these.
    """
    if compression not in (None, "gzip", "zstd", "lz4"):
        raise ConfigError(f"format: `{compression}` is not one of gzip, zstd, lz4", where="format")
    return Format("tfrecord", {} if compression is None else {"compression": compression})


def fixed(*, header_bytes: int = 0, **columns: TensorSpec) -> Format:
    """Records of fixed size: these columns, one after another, after a header.

    CIFAR-10's binary version is `fixed(label=tensor("uint8", ()), image=tensor("uint8", (3, 32, 32)))`.

    Args:
        header_bytes: Bytes of each object before its first record.
    Raises:
        ConfigError: The columns are missing, or one is not a `penstock.tensor(dtype, shape)`.
    """
    if not columns:
        raise ConfigError("format: a fixed record needs at least one column", where="format")
    for name, spec in columns.items():
        if not isinstance(spec, TensorSpec):
            raise ConfigError(f"format: {name} is not a penstock.tensor(dtype, shape)", where="format")
        if spec.default is not None:
            raise ConfigError(f"format: {name} has a default, but every fixed record has all columns", where="format")
    described = [{"name": name, "dtype": spec.dtype, "shape": list(spec.shape)} for name, spec in columns.items()]
    return Format("fixed", {"header_bytes": _bytes(header_bytes), "columns": described})


def tokens(length: int, *, dtype: str = "uint16", stride: int | None = None, header_bytes: int = 0) -> Format:
    """A flat file of tokens (nanoGPT's and Megatron's `.bin`), read as windows; one part, `tokens`.

    Args:
        length: Tokens in a window. For targets that are the inputs shifted by one, set it to the context length plus
            one, and `stride` to the context length.
        dtype: Stored type of a token.
        stride: Tokens from one window's start to the next; by default `length`, so that windows do not overlap.
        header_bytes: Bytes before the first token.
    """
    step = length if stride is None else stride
    if length < 1 or step < 1:
        raise ConfigError(f"format: windows of {length} tokens, {step} apart, are not possible", where="format")
    return Format(
        "tokens", {"length": length, "stride": step, "dtype": str(dtype), "header_bytes": _bytes(header_bytes)}
    )


def tar() -> Format:
    """WebDataset: tar archives. Consecutive members with one key are a record; its parts are the members, by extension.

    `.cls`, `.index` and similar are numbers as text, `.npy` is an array, all others are bytes; `__key__` is the key.
    """
    return Format("tar")


def mds() -> Format:
    """MosaicML's MDS: shards described by an `index.json` beside them; parts are the columns."""
    return Format("mds")


def npy(*, rows: bool = False) -> Format:
    """NumPy arrays, one per object; one part, `array`.

    Args:
        rows: Make each row of an array (along its first axis) a record, instead of the whole array.
    """
    return Format("npy", {"rows": bool(rows)})


def npz() -> Format:
    """NumPy archives: each is one record, its parts are its arrays by name."""
    return Format("npz")


def parquet() -> Format:
    """Parquet: rows are the records, parts are the columns by their paths (`image.bytes`).

    Numbers are tensors. Lists are ragged, or tensors if all have the same length. Strings and binaries are raw bytes or
    images. Files are fetched whole, and only the columns of fields are decoded.
    """
    return Format("parquet")


def images(
    *,
    labels: str | os.PathLike[str] | None = None,
    key: str = "file",
    label: str = "label",
    classes: Sequence[str] | None = None,
) -> Format:
    """Image files (JPEG, PNG), one record each. Parts are `image`, `label` and `__key__`.

    If every file lies in a class folder, the label is the folder's number, in the order of names. Otherwise labels come
    from a file, which is read once when the dataset is opened. Every image must be in that file.

    Args:
        labels: A CSV file with a header, or a Parquet file: a path below the dataset's folder, an absolute path, or a
            URL.
        key: Column with the images' paths below the dataset's folder.
        label: Column with the labels: integers, floats, or text (which `penstock.raw()` reads).
        classes: Names of the class folders in the order of their labels, as `Dataset.classes` returns them: a validation
            folder that lacks some classes then has the labels of the training set.
    Raises:
        ConfigError: Labels and classes together, or classes that are not a list of different names. `open` raises it if a
            class folder is not among the classes.
    """
    if classes is None:
        return Format("images", labels=None if labels is None else LabelFile(os.fsdecode(labels), key, label))
    if labels is not None:
        raise ConfigError("format: labels= and classes= cannot be combined", where="format")
    given = tuple(classes)
    if isinstance(classes, str) or not all(isinstance(name, str) for name in given) or len(set(given)) < len(given):
        raise ConfigError(
            f"format: the {len(given):,} classes are not a list of distinct names",
            where="format",
            hint="give the `classes` of the dataset that a model was trained on",
        )
    return Format("images", classes=given)


def zarr(*arrays: str) -> Format:
    """Zarr, versions 2 and 3: sample i is index i along the first axis. Parts are the arrays by name; a single array's
    part is `array`.

    Args:
        arrays: Names of arrays in a group; by default all. They must have the same number of rows.
    """
    return Format("zarr", {"arrays": list(arrays)})


def hdf5(*datasets: str) -> Format:
    """Datasets of HDF5 files, chunked or not: sample i is index i along the first axis; parts are the datasets by name.

    h5py reads the chunk positions when the dataset is opened; it does not read the samples.

    Args:
        datasets: Their paths in each file (`"/images"`). They must have the same number of rows.
    Raises:
        ConfigError: No dataset is named.
    """
    if not datasets:
        raise ConfigError('format: name the datasets, such as penstock.formats.hdf5("/images")', where="format")
    return Format("hdf5", {"datasets": [name.strip("/") for name in datasets]})


def _bytes(count: int) -> int:
    if count < 0:
        raise ConfigError(f"format: a header of {count} bytes is not possible", where="format")
    return count


_PLAIN = {
    "tfrecord": tfrecord,
    "tar": tar,
    "npy": npy,
    "npz": npz,
    "images": images,
    "mds": mds,
    "parquet": parquet,
    "zarr": zarr,
}


def named(format: str | Format | None) -> Format | None:  # noqa: A002 - the argument's name is the API
    """The `Format` of an argument; None to detect it."""
    if format is None or isinstance(format, Format):
        return format
    made = _PLAIN.get(format)
    if made is None:
        known = ", ".join(sorted(name for name in __all__ if name not in ("Format", "LabelFile", "named")))
        raise ConfigError(
            f"format: `{format}` is not a format without settings ({', '.join(sorted(_PLAIN))})",
            where="format",
            hint=f"use a function of penstock.formats: {known}",
        )
    return made()

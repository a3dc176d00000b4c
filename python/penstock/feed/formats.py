# SPDX-License-Identifier: Apache-2.0
"""Formats for `penstock.open(url, format=...)`, for properties that cannot be detected from an object.

Each function returns a `Format`. A string with the name of a function selects its format without arguments.
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


@dataclass(frozen=True, slots=True)
class LabelFile:
    """A file that contains the labels of other files, and the columns to read from it."""

    place: str
    key: str
    label: str


@dataclass(frozen=True, slots=True)
class Format:
    """A format and its properties."""

    name: str
    facts: dict[str, Any] = field(default_factory=dict)
    labels: LabelFile | None = None
    classes: tuple[str, ...] | None = None

    def to_json(self) -> str:
        """Convert the format to JSON for the core."""
        return json.dumps({"name": self.name, **self.facts})


def tfrecord(*, compression: str | None = None) -> Format:
    """TFRecords. The parts of a record are the features of its tf.Example or tf.SequenceExample.

    Records of other protobuf messages have no parts. Their only field is the whole record, `penstock.raw(record=True)`,
    which is then the default.

    Args:
        compression: Compression (`gzip`, `zstd` or `lz4`) of objects whose names do not have the usual suffix. For
            example, `tf.io.TFRecordWriter(path, "GZIP")` writes such objects.
    Raises:
        ConfigError: The compression is not supported.
    """
    if compression not in (None, "gzip", "zstd", "lz4"):
        raise ConfigError(f"format: `{compression}` is not one of gzip, zstd, lz4", where="format")
    return Format("tfrecord", {} if compression is None else {"compression": compression})


def fixed(*, header_bytes: int = 0, **columns: TensorSpec) -> Format:
    """Records of fixed size, after a header. Each record consists of the given columns, one after another.

    CIFAR-10's binary version is `fixed(label=tensor("uint8", ()), image=tensor("uint8", (3, 32, 32)))`.

    Args:
        header_bytes: Number of bytes in each object before its first record.
    Raises:
        ConfigError: There are no columns, or a column is not a `penstock.tensor(dtype, shape)`.
    """
    if not columns:
        raise ConfigError("format: a fixed record requires at least one column", where="format")
    for name, spec in columns.items():
        if not isinstance(spec, TensorSpec):
            raise ConfigError(f"format: {name} must be a penstock.tensor(dtype, shape)", where="format")
        if spec.default is not None:
            raise ConfigError(
                f"format: {name} cannot have a default, because every fixed record contains all columns", where="format"
            )
    described = [{"name": name, "dtype": spec.dtype, "shape": list(spec.shape)} for name, spec in columns.items()]
    return Format("fixed", {"header_bytes": _bytes(header_bytes), "columns": described})


def tokens(
    length: int,
    *,
    dtype: str = "uint16",
    stride: int | None = None,
    header_bytes: int = 0,
    eos: int | None = None,
) -> Format:
    """A flat file of tokens (nanoGPT's `.bin`), read as windows. A record has the part `tokens`.

    Args:
        length: Number of tokens in a window. If the targets are the inputs shifted by one, set `length` to the context
            length plus one, and `stride` to the context length.
        dtype: Stored element type of a token.
        stride: Number of tokens from one window's start to the next; by default `length`, so that windows do not
            overlap.
        header_bytes: Number of bytes before the first token.
        eos: Last token of each document. If `eos` is set, a record also has two int32 parts. `segment_ids` is 1 for
            tokens of the window's first document, 2 for tokens of the second document, and so on. `position_ids` is the
            index of each token in its document or, for the window's first document, in the window.
    """
    facts = {"dtype": str(dtype), "header_bytes": _bytes(header_bytes), **_windows(length, stride, eos)}
    return Format("tokens", facts)


def megatron(*, length: int | None = None, stride: int | None = None, eos: int | None = None) -> Format:
    """Megatron-LM's `.bin` files of tokens, each with an `.idx` file beside it. A record is a document with one part,
    `tokens`.

    The element type is read from the index of the first file.

    Args:
        length: Read windows of this many tokens instead of documents. A window can contain tokens of several documents.
        stride, eos: As in `tokens`; only with `length`.
    Raises:
        ConfigError: `stride` or `eos` is given without `length`. `open` raises `NotFound` if an index is missing.
    """
    if length is None:
        if stride is not None or eos is not None:
            raise ConfigError("format: stride and eos require length", where="format")
        return Format("megatron")
    return Format("megatron", _windows(length, stride, eos))


def _windows(length: int, stride: int | None, eos: int | None) -> dict[str, Any]:
    step = length if stride is None else stride
    if length < 1 or step < 1:
        raise ConfigError(
            f"format: length and stride must be at least 1 (got length {length} and stride {step})", where="format"
        )
    return {"length": length, "stride": step, **({} if eos is None else {"eos": eos})}


def jsonl() -> Format:
    """JSON lines (`.jsonl`, `.ndjson`): a record is the JSON object of one line, and its parts are the object's entries.

    An entry of a nested object is named by its path (`meta.url`). Numbers become tensors, lists of numbers become
    ragged fields, and strings become text. Other lists and objects are read as JSON text.
    """
    return Format("jsonl")


def csv(*, delimiter: str | None = None, header: bool = True, columns: Sequence[str] = ()) -> Format:
    """Delimited text (CSV, TSV): a record is a row, and its parts are the cells by column.

    Cells can be quoted, and quoted cells can contain line ends. Columns whose first cells are all numbers become int64
    or float64 tensors; other columns become text. An empty cell counts as missing, so the field's `default` applies.

    Args:
        delimiter: One character; by default a tab for `.tsv` files and a comma for others.
        header: The first row of each file contains the names of the columns.
        columns: Names of the columns, which replace the names in the header.
    Raises:
        ConfigError: There is neither a header nor column names.
    """
    names = list(columns)
    if isinstance(columns, str) or len(set(names)) < len(names):
        raise ConfigError(f"format: columns must be distinct names (got {columns!r})", where="format")
    if not header and not names:
        raise ConfigError("format: without a header, columns must be named", where="format")
    facts: dict[str, Any] = {"header": bool(header), "columns": names}
    return Format("csv", facts if delimiter is None else {**facts, "delimiter": delimiter})


def arrow() -> Format:
    """Arrow IPC files and streams, Feather (version 2) files, and the folders that Hugging Face's
    `Dataset.save_to_disk` writes. A record is a row, and its parts are columns, which are named by their path
    (`image.bytes`).

    Fields are as for Parquet, but strings become text. Files are fetched whole.
    """
    return Format("arrow")


def tar() -> Format:
    """WebDataset (tar archives). Consecutive members with the same key form a record. Its parts are the members, by
    extension.

    Members such as `.cls` and `.index` are numbers as text, `.npy` members are arrays, and all other members are bytes.
    The part `__key__` is the key.
    """
    return Format("tar")


def mds() -> Format:
    """MosaicML's MDS: shards described by an `index.json` in the same folder. The parts of a record are the columns."""
    return Format("mds")


def npy(*, rows: bool = False) -> Format:
    """NumPy arrays, one per object. A record has one part, `array`.

    Args:
        rows: If True, each row of an array (along its first axis) is a record. If False, each array is a record.
    """
    return Format("npy", {"rows": bool(rows)})


def npz() -> Format:
    """NumPy archives. Each archive is one record, and its parts are its arrays by name."""
    return Format("npz")


def parquet() -> Format:
    """Parquet. A record is a row, and its parts are columns, which are named by their path (`image.bytes`).

    Numbers become tensors. Lists become ragged fields, or tensors if all lists of a column have the same length.
    Strings and binaries become raw bytes or images. Files are fetched whole, but only the columns that fields use are
    decoded.
    """
    return Format("parquet")


def images(
    *,
    labels: str | os.PathLike[str] | None = None,
    key: str = "file",
    label: str = "label",
    classes: Sequence[str] | None = None,
) -> Format:
    """Image files (JPEG, PNG, WebP, TIFF), each of which is one record. Its parts are `image`, `label` and `__key__`.

    If every file is in a class folder, the label is the index of the folder, in name order. Labels can also come from a
    label file, which is read once when the dataset is opened and must list every image.

    Args:
        labels: Label file: a CSV file with a header, or a Parquet file. Give an absolute path, a path relative to the
            dataset's folder, or a URL.
        key: Column with the images' paths, relative to the dataset's folder.
        label: Column with the labels: integers, floats, or text (which `penstock.raw()` reads).
        classes: Names of the class folders in the order of their labels, as `Dataset.classes` returns them. For a
            validation folder that lacks some classes, give the classes of the training set to get the same labels.
    Raises:
        ConfigError: Both labels and classes are given, or classes is not a list of different names. `open` raises
            ConfigError if a class folder is not in classes.
    """
    if classes is None:
        return Format("images", labels=None if labels is None else LabelFile(os.fsdecode(labels), key, label))
    if labels is not None:
        raise ConfigError("format: labels= and classes= cannot be combined", where="format")
    given = tuple(classes)
    if isinstance(classes, str) or not all(isinstance(name, str) for name in given) or len(set(given)) < len(given):
        raise ConfigError(
            f"format: classes must be a list of distinct names (got {len(given):,} items)",
            where="format",
            hint="give the `classes` of the dataset that a model was trained on",
        )
    return Format("images", classes=given)


def files() -> Format:
    """Files of any kind, each of which is one record. Its parts are `record` (the content) and `__key__` (the path). If
    every file is in a class folder, there is also the part `label` (the index of the folder, in name order).
    """
    return Format("files")


def zarr(*arrays: str) -> Format:
    """Zarr, versions 2 and 3. Sample i consists of the elements at index i of each array's first axis. Each array of a
    group is a part with the array's name; a single array is the part `array`.

    Args:
        arrays: Names of the arrays to read from a group; by default all. The arrays must have the same number of rows.
            For several groups or arrays in one folder or bucket, the names are paths below this folder or bucket
            (`"a.zarr/amplitude"`).
    """
    return Format("zarr", {"arrays": list(arrays)})


def hdf5(*datasets: str) -> Format:
    """HDF5 datasets, chunked or contiguous. Sample i consists of the elements at index i of each dataset's first axis.
    Each dataset is a part with the dataset's name.

    When a dataset is opened, h5py reads only the positions of the chunks in the files. The core reads the samples.

    Args:
        datasets: Paths of the datasets in each file, such as `"/images"`. The datasets must have the same number of
            rows.
    Raises:
        ConfigError: No dataset is named.
    """
    if not datasets:
        raise ConfigError(
            'format: at least one dataset is required, such as penstock.formats.hdf5("/images")', where="format"
        )
    return Format("hdf5", {"datasets": [name.strip("/") for name in datasets]})


def _bytes(count: int) -> int:
    if count < 0:
        raise ConfigError(f"header_bytes: must be at least 0 (got {count})", where="format")
    return count


_PLAIN = {
    "tfrecord": tfrecord,
    "tar": tar,
    "npy": npy,
    "npz": npz,
    "arrow": arrow,
    "csv": csv,
    "files": files,
    "images": images,
    "jsonl": jsonl,
    "mds": mds,
    "megatron": megatron,
    "parquet": parquet,
    "zarr": zarr,
}


def named(format: str | Format | None) -> Format | None:  # noqa: A002 - the argument's name is the API
    """Convert an argument to a `Format`; None means that the format must be detected."""
    if format is None or isinstance(format, Format):
        return format
    made = _PLAIN.get(format)
    if made is None:
        if format in ("segy", "sgy"):
            raise ConfigError(
                "format: the feed does not support SEG-Y",
                where="format",
                hint="convert it to Zarr: penstock array convert SOURCE.sgy TARGET.zarr",
            )
        known = ", ".join(sorted(name for name in __all__ if name != "Format"))
        raise ConfigError(
            f"format: `{format}` is not one of the formats that a string can name ({', '.join(sorted(_PLAIN))})",
            where="format",
            hint=f"call a function of penstock.formats for other formats: {known}",
        )
    return made()

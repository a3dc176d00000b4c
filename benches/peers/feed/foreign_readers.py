# SPDX-License-Identifier: Apache-2.0
"""Cases for foreign.py, and their columns by the library of their format.

A column is a list with one value per sample: a number, bytes, an array, or nested lists of these. Text is bytes, and
null is None. Values that are missing are equal to an empty list and to `b""`.
"""

from __future__ import annotations

import bz2
import contextlib
import csv
import gzip
import io
import itertools
import json
import os
import shutil
import struct
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROWS = 20_000
"""Number of samples that are compared."""
MAX_DATASETS = 100
"""Number of datasets of an HDF5 file that are compared."""

SUFFIXES = {
    "parquet": ("parquet", "parq"),
    "arrow": ("arrow", "feather", "ipc", "arrow_file", "stream"),
    "csv": ("csv", "tsv"),
    "jsonl": ("jsonl", "ndjson"),
    "json": ("json",),
    "tfrecord": ("tfrecord", "tfrecords", "tfrec"),
    "tar": ("tar", "tgz"),
    "image": ("jpg", "jpeg", "png", "webp", "tif", "tiff"),
    "other image": ("gif", "bmp"),
    "npy": ("npy",),
    "npz": ("npz",),
    "hdf5": ("h5", "hdf5", "he5", "nc"),
    "megatron": ("idx",),
    "audio": ("wav", "wave", "bwf", "rf64", "flac", "mp3", "ogg", "oga"),
    "other audio": ("aac", "aif", "aifc", "aiff", "ape", "au", "caf", "dsf", "m4a", "mp2", "opus", "snd", "spx", "w64"),
}
COMPRESSED = (".gz", ".zst", ".lz4", ".bz2", ".xz")


@dataclass(frozen=True)
class Case:
    """One file or array, and the format that its name states."""

    format: str
    path: Path


@dataclass(frozen=True)
class Failure:
    """An exception, or the reason for which a column is not read."""

    kind: str
    message: str
    hint: str | None
    is_penstock: bool = False

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}" + (f" / {self.hint}" if self.hint else "")


Columns = dict[str, Any]


def failure(error: BaseException) -> Failure:
    """Convert an exception to a failure."""
    from penstock.errors import PenstockError

    is_penstock = isinstance(error, PenstockError)
    hint = error.hint if isinstance(error, PenstockError) else None
    return Failure(type(error).__name__, str(error)[:600], hint, is_penstock)


def cases(folder: Path) -> Iterator[Case]:
    """All cases below the folder, in name order."""
    formats = {suffix: name for name, suffixes in SUFFIXES.items() for suffix in suffixes}
    for path in sorted(folder.rglob("*")):
        if path.name in (".zarray", "zarr.json"):
            if path.name == ".zarray" or b'"array"' in path.read_bytes():
                yield Case("zarr", path.parent)
        elif path.name == "index.json" and b'"mds"' in path.read_bytes():
            yield Case("mds", path.parent)
        elif path.suffix == ".mds" or ".mds." in path.name:
            continue
        elif path.is_file() and not any(part.endswith((".zarr", ".zr3")) for part in path.parts):
            name = path.name.lower()
            for suffix in COMPRESSED:
                name = name.removesuffix(suffix)
            found = formats.get(name.rpartition(".")[2], "tfrecord" if "tfrecord" in name else "other")
            if found == "megatron" and not path.with_suffix(".bin").exists():
                found = "other"
            if path.suffix == ".nc" and not path.read_bytes().startswith(b"\x89HDF"):
                found = "other"
            if found == "json" and b"\n" not in path.read_bytes().strip():
                yield Case("json value", path)
            yield Case(found, path)


def wrapped(path: Path) -> Path:
    """A line of JSON whose entry `v` is the content of the file."""
    target = Path(tempfile.gettempdir(), f"foreign-{os.getpid()}.jsonl")
    target.write_bytes(b'{"v": ' + content(path).strip() + b"}\n")
    return target


def content(path: Path) -> bytes:
    """The decompressed bytes of a file."""
    stored = path.read_bytes()
    match path.suffix.lower():
        case ".gz" | ".tgz":
            return gzip.decompress(stored)
        case ".bz2":
            return bz2.decompress(stored)
        case ".zst":
            import zstandard

            return zstandard.ZstdDecompressor().decompressobj().decompress(stored)
        case ".lz4":
            import lz4.frame

            return lz4.frame.decompress(stored)
        case ".xz":
            import lzma

            return lzma.decompress(stored)
    return stored


def theirs(case: Case) -> Columns | Failure:
    """The columns by the format's own library."""
    readers: dict[str, Callable[[Path], Columns]] = {
        "parquet": _parquet,
        "arrow": _arrow,
        "csv": _csv,
        "jsonl": _jsonl,
        "json": _jsonl,
        "json value": lambda path: _jsonl(wrapped(path)),
        "tfrecord": _tfrecord,
        "tar": _tar,
        "image": _image,
        "other image": _image,
        "npy": _npy,
        "npz": _npz,
        "hdf5": _hdf5,
        "zarr": _zarr,
        "mds": _mds,
        "megatron": _megatron,
        "audio": _audio,
        "other audio": _audio,
    }
    if case.format not in readers:
        return Failure("none", "no library for this suffix", None)
    return readers[case.format](case.path)


def _parquet(path: Path) -> Columns:
    import pyarrow.parquet as pq

    source = pq.ParquetFile(io.BytesIO(content(path)), page_checksum_verification=True)
    table = source.read()
    return _table_columns(table.to_batches(), table.schema, first="#1")


def _arrow(path: Path) -> Columns:
    import pyarrow as pa

    stored = content(path)
    kind = pa.ipc.open_file if stored.startswith(b"ARROW1") else pa.ipc.open_stream
    if stored.startswith(b"FEA1"):
        import pyarrow.feather

        table = pyarrow.feather.read_table(io.BytesIO(stored))
        return _table_columns(table.to_batches(), table.schema)
    reader = kind(pa.BufferReader(stored))
    batches = [reader.get_batch(at) for at in range(reader.num_record_batches)] if kind is pa.ipc.open_file else reader
    return _table_columns(list(batches), reader.schema)


def _table_columns(batches: list[Any], schema: Any, first: str = "") -> Columns:
    import pyarrow as pa

    table = pa.Table.from_batches(batches, schema)[:ROWS]
    found: Columns = {}
    names = Counter(schema.names)
    for number, kind in enumerate(schema):
        place = schema.names[: number + 1].count(kind.name)
        name = kind.name + ("" if names[kind.name] == 1 else f"#{place}" if place > 1 else first)
        column = table.column(number)
        with contextlib.suppress(pa.ArrowException):  # a type without a cast is compared as it is
            column = column.cast(_plain(kind.type))
        for path, steps in _leaves(kind.type, name, ()):
            try:
                found[path] = [_pluck(value, steps) for value in column.to_pylist()]
            except Exception as error:
                found[path] = failure(error)
    return found


def _plain(kind: Any) -> Any:
    """The type as Penstock delivers it: times as integers, dictionaries as their values."""
    import pyarrow as pa

    t = pa.types
    if t.is_timestamp(kind) or t.is_time64(kind) or t.is_date64(kind) or t.is_duration(kind):
        return pa.int64()
    if t.is_time32(kind) or t.is_date32(kind):
        return pa.int32()
    if t.is_dictionary(kind):
        return _plain(kind.value_type)
    if isinstance(kind, pa.BaseExtensionType):
        return _plain(kind.storage_type)
    if t.is_list(kind):
        return pa.list_(_plain(kind.value_type))
    if t.is_map(kind):
        return pa.map_(_plain(kind.key_type), _plain(kind.item_type))
    if t.is_struct(kind):
        return pa.struct([pa.field(each.name, _plain(each.type)) for each in kind])
    return kind


def _leaves(kind: Any, path: str, steps: tuple[Any, ...]) -> Iterator[tuple[str, tuple[Any, ...]]]:
    import pyarrow as pa

    t = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        yield from _leaves(kind.storage_type, path, steps)
    elif t.is_struct(kind):
        for each in kind:
            yield from _leaves(each.type, f"{path}.{each.name}", (*steps, each.name))
    elif t.is_map(kind):
        yield from _leaves(kind.key_type, f"{path}.key", (*steps, [], 0))
        yield from _leaves(kind.item_type, f"{path}.value", (*steps, [], 1))
    elif t.is_list(kind) or t.is_large_list(kind) or t.is_fixed_size_list(kind) or "list_view" in str(kind):
        yield from _leaves(kind.value_type, path, (*steps, []))
    else:
        yield path, steps


def _pluck(value: Any, steps: tuple[Any, ...]) -> Any:
    if value is None:
        return None
    if not steps:
        return value.encode() if isinstance(value, str) else value
    if steps[0] == []:
        return [_pluck(each, steps[1:]) for each in value]
    return _pluck(value[steps[0]], steps[1:])


def _csv(path: Path) -> Columns:
    csv.field_size_limit(1 << 30)
    text = content(path).decode("utf-8-sig")
    delimiter = "\t" if ".tsv" in path.name.lower() else ","
    rows = list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter))
    rows = [row for row in rows if row]
    names, body = rows[0], rows[1 : ROWS + 1]
    if any(len(row) != len(names) for row in body) or len(set(names)) < len(names):
        raise ValueError("rows of unlike length, or repeated names")
    return {name: [row[at].encode() for row in body] for at, name in enumerate(names)}


def _jsonl(path: Path) -> Columns:
    lines = [line for line in content(path).decode("utf-8-sig").split("\n") if line.strip()]
    found: Columns = {}
    for number, line in enumerate(lines[:ROWS]):
        value = json.loads(line, parse_constant=_no_constant)
        if not isinstance(value, dict):
            raise TypeError("not an object")
        for name, each in value.items():
            found.setdefault(name, {})[number] = each
    return {name: [by.get(at) for at in range(min(len(lines), ROWS))] for name, by in found.items()}


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _tfrecord(path: Path) -> Columns:
    import tensorflow as tf

    stored = path.read_bytes()
    compression = "GZIP" if stored.startswith(b"\x1f\x8b") else ""
    records = [each.numpy() for each in tf.data.TFRecordDataset(str(path), compression).take(ROWS)]
    found: Columns = {"record": records}
    values = lambda feature: list(getattr(feature, feature.WhichOneof("kind") or "int64_list").value)  # noqa: E731
    for number, record in enumerate(records):
        try:
            message = tf.train.SequenceExample.FromString(record)  # its context has the number of Example's features
        except Exception:
            return {"record": records}
        by_name = {name: values(each) for name, each in message.context.feature.items() if each.WhichOneof("kind")}
        for name, steps in message.feature_lists.feature_list.items():
            by_name[name] = [values(each) for each in steps.feature]
        for name, value in by_name.items():
            found.setdefault(name, [None] * len(records))[number] = value
    # Penstock looks at the first 100 records for the names.
    return {name: column for name, column in found.items() if any(each is not None for each in column[:100])}


def _tar(path: Path) -> Columns:
    import webdataset as wds

    samples = list(wds.WebDataset(str(path), shardshuffle=False, handler=wds.reraise_exception, empty_check=False))
    # WebDataset delivers the hidden file `a/.b` as a sample `a/`; Penstock does not read hidden files.
    samples = [sample for sample in samples if not sample["__key__"].endswith("/")]
    names = {name for sample in samples for name in sample} - {"__url__", "__local_path__"}
    encoded = lambda value: value.encode() if isinstance(value, str) else value  # noqa: E731
    return {name: [encoded(sample.get(name)) for sample in samples] for name in names}


def _image(path: Path) -> Columns:
    from PIL import Image

    with Image.open(path) as picture:
        if picture.mode.startswith(("I;16", "I")):
            grey = np.asarray(picture).astype(np.int64)
            return {"image": [np.repeat((grey >> 8).astype("uint8")[..., None], 3, 2)]}
        pixels = np.asarray(picture.convert("RGB")).astype(np.int16)
        if picture.mode == "RGBA":
            alpha, tags = np.asarray(picture)[..., 3], getattr(picture, "tag_v2", {})
            if getattr(picture, "n_frames", 1) > 1:
                pixels[alpha == 0] = -1  # invisible pixels of an animation may have any colour
            if 16 in tags.get(258, ()) and 1 in tags.get(338, ()):
                pixels[alpha < 200] = -1  # Pillow reduces these to 8 bits before it divides them by alpha
        return {"image": [pixels]}


def _npy(path: Path) -> Columns:
    array = np.load(io.BytesIO(content(path)), allow_pickle=False)
    rows = list(array[:ROWS]) if array.ndim else Failure("0-d", "no rows", None)
    return {"whole": [array], "rows": rows}


def _npz(path: Path) -> Columns:
    with np.load(path, allow_pickle=False) as archive:
        return {name: [archive[name]] for name in archive.files}


def _hdf5(path: Path) -> Columns:
    import h5py
    import hdf5plugin  # noqa: F401 - registers its filters

    found: Columns = {}
    with h5py.File(path) as file:
        names: list[str] = []
        file.visititems(lambda name, each: names.append(name) if isinstance(each, h5py.Dataset) else None)
        for name in names[:MAX_DATASETS]:
            try:
                if file[name].dtype.hasobject:
                    raise TypeError("texts or references")
                found[name] = list(file[name][:ROWS])
            except Exception as error:
                found[name] = failure(error)
    return found


def _zarr(path: Path) -> Columns:
    import zarr

    return {"array": list(zarr.open_array(path, mode="r")[...])}


def _mds(path: Path) -> Columns:
    from streaming import StreamingDataset

    with tempfile.TemporaryDirectory() as scratch:  # it decompresses shards beside themselves
        copy = shutil.copytree(path, Path(scratch, "copy"))
        dataset = StreamingDataset(local=str(copy), batch_size=1)
        samples = [dataset[number] for number in range(len(dataset))]
    pixels = lambda value: np.asarray(value) if hasattr(value, "getbands") else value  # noqa: E731
    return {name: [pixels(sample[name]) for sample in samples] for name in samples[0]}


def _megatron(path: Path) -> Columns:
    index = path.read_bytes()
    if index[:9] != b"MMIDIDX\0\0":
        raise ValueError("not an MMIDIDX index")
    _, code, sequences, documents = struct.unpack_from("<QBQQ", index, 9)
    kinds = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 6: "<f8", 7: "<f4", 8: "<u2"}
    kind = np.dtype(kinds[code])
    lengths = np.frombuffer(index, "<i4", sequences, 34)
    starts = np.frombuffer(index, "<i8", sequences, 34 + 4 * sequences)
    bounds = np.frombuffer(index, "<i8", documents, 34 + 12 * sequences)
    stored = path.with_suffix(".bin").read_bytes()
    parts = [np.frombuffer(stored, kind, n, at) for n, at in zip(lengths, starts, strict=True)]
    found = [np.concatenate([np.zeros(0, kind), *parts[a:b]]) for a, b in itertools.pairwise(bounds)]
    return {"tokens": found[:ROWS]}


def _audio(path: Path) -> Columns:
    import soundfile

    is_long = soundfile.info(path).frames > 1 << 40  # a FLAC file that does not state its length
    samples, rate = soundfile.read(path, 1 << 24 if is_long else -1, dtype="float32", always_2d=True)
    return {"audio": [samples] if len(samples) else [], "rate": [rate] if len(samples) else []}

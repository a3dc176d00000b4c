# SPDX-License-Identifier: Apache-2.0
"""Penstock's part of foreign.py: reads the columns of a case, and compares them with those of the library."""

from __future__ import annotations

import io
import json
import math
import pickle
import re
from typing import TYPE_CHECKING, Any

import numpy as np
from foreign_readers import MAX_DATASETS, ROWS, Case, Columns, Failure, failure, wrapped

if TYPE_CHECKING:
    from pathlib import Path

LOSSY = 2e-5
"""Tolerance for samples that different decoders of MP3 and Vorbis return."""


def ours(case: Case) -> Columns:
    """The columns by Penstock: all default fields together or, if that fails, each on its own."""
    import penstock

    formats = penstock.formats
    match case.format:
        case "hdf5":
            return _ours_hdf5(case.path)
        case "npy":
            whole, rows = formats.npy(), formats.npy(rows=True)
            return {"whole": _attempt(case.path, whole), "rows": _attempt(case.path, rows)}
        case "megatron":
            return _read(penstock.open(case.path.with_suffix(".bin"), format="megatron"), {})
        case "image" | "other image":
            return _ours_image(case.path)
        case "audio" | "other audio":
            return _ours_audio(case.path)
        case "json":
            dataset = penstock.open(case.path, format="jsonl")
        case "json value":
            dataset = penstock.open(wrapped(case.path))
        case _:
            dataset = penstock.open(case.path)
    schema = dataset.schema()
    specs: dict[str, Any] = dict(schema.specs)
    left_out = {name: Failure("left out", reason, "left out", is_penstock=True) for name, reason in schema.left_out}
    if getattr(specs.get("record"), "record", False) and case.format != "tfrecord":
        _batches(dataset)  # the default of texts without values
        del specs["record"]
    if case.format == "csv":
        specs = {name: penstock.text(default="") for name in specs}
    elif case.format == "tar":
        specs = {name: penstock.raw(default=b"").of(name) for name in [*specs, *left_out]}
        left_out = {}
    elif case.format == "tfrecord":
        specs["record"] = penstock.raw(record=True)
    return {**(_read(dataset, specs) if specs else {}), **left_out}


def _attempt(path: Path, kind: Any) -> Any:
    import penstock

    try:
        return next(iter(_read(penstock.open(path, format=kind), {}).values()))
    except Exception as error:
        return failure(error)


def _read(dataset: Any, specs: dict[str, Any]) -> Columns:
    try:
        return _batches(dataset.fields(**specs) if specs else dataset)
    except Exception as error:
        if len(specs) < 2:
            if not specs:
                raise
            return {name: failure(error) for name in specs}
    found: Columns = {}
    for name, spec in specs.items():
        try:
            found |= _batches(dataset.fields(**{name: spec}))
        except Exception as error:
            found[name] = failure(error)
    return found


def _batches(dataset: Any) -> Columns:
    import penstock

    found: Columns = {}
    count = 0
    loader = penstock.Loader(dataset, batch_size=256, rank=0, world=1, prefetch_next_epoch=False, memory_bytes=1 << 30)
    for batch in loader:
        for name, column in batch.items():
            found.setdefault(name, []).extend(column.to_list() if hasattr(column, "to_list") else list(column))
        count += 256
        if count >= ROWS:
            break
    return {name: column[:ROWS] for name, column in found.items()}


def _ours_image(path: Path) -> Columns:
    from PIL import Image

    import penstock

    dataset = penstock.open(path)
    try:
        with Image.open(path) as picture:
            width, height = picture.size
    except Exception:
        dataset.schema()
        width = height = 64
    spec = penstock.image(height, width, crop="none", exact=True, orient=path.suffix.lower() in (".tif", ".tiff"))
    (batch,) = penstock.Loader(dataset.fields(image=spec), batch_size=1, rank=0, world=1)
    return {"image": list(batch["image"])}


def _ours_audio(path: Path) -> Columns:
    import soundfile

    import penstock

    try:
        channels = soundfile.info(path).channels
    except Exception:
        channels = 1  # the mean of all channels
    dataset = penstock.open(path, format=penstock.formats.files())
    spec = penstock.audio(channels=channels, rate="rate").of("record")
    (batch,) = penstock.Loader(dataset.fields(audio=spec), batch_size=1, rank=0, world=1)
    return {"audio": [batch["audio"].row(0).reshape(-1, channels)], "rate": list(batch["rate"])}


def _ours_hdf5(path: Path) -> Columns:
    import h5py

    import penstock

    names: list[str] = []
    try:
        with h5py.File(path) as file:
            file.visititems(lambda name, each: names.append(name) if isinstance(each, h5py.Dataset) else None)
    except Exception:
        names = names or ["data"]
    found: Columns = {}
    for name in names[:MAX_DATASETS]:
        try:
            dataset = penstock.open(path, format=penstock.formats.hdf5(name))
            found[name] = next(iter(_read(dataset, {}).values()), [])
        except Exception as error:
            found[name] = failure(error)
    if names == ["data"] and isinstance(found["data"], Failure):
        return {"data": found["data"]}
    return found


def difference(case: Case, mine: list[Any], peer: list[Any]) -> str:
    """How two columns differ; empty if they are equal."""
    if len(mine) != len(peer):
        return f"{len(mine)} samples, and {len(peer)} by the library"
    if case.format == "mds" and mine and isinstance(mine[0], bytes) and not isinstance(peer[0], bytes | str):
        mine = [_decoded(value, type(peer[0])) for value in mine]
    equal = _same_picture if "image" in case.format else _same_json if "json" in case.format else _same
    if "audio" in case.format and case.path.suffix.lower() in (".mp3", ".ogg", ".oga"):
        equal = lambda a, b: _same_sound(a, b) or _same_sound(a, _by_ffmpeg(case.path))  # noqa: E731
    for number, (a, b) in enumerate(zip(mine, peer, strict=True)):
        try:
            is_equal = equal(a, b)
        except (TypeError, ValueError):
            is_equal = False
        if not is_equal:
            return f"sample {number}: {_short(a)}, and {_short(b)} by the library"
    return ""


def _decoded(value: bytes, kind: type) -> Any:
    """A stored value of MDS (an image, a pickle or JSON) that Penstock delivers as bytes, but Streaming decodes."""
    from PIL import Image

    if kind is np.ndarray:
        return np.asarray(Image.open(io.BytesIO(value)))
    return pickle.loads(value) if value.startswith(b"\x80") else json.loads(value)


def _short(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {value.shape} {np.array2string(value.ravel()[:6])}"
    return repr(value)[:120]


def _same(a: Any, b: Any) -> bool:
    if b is None:
        return a is None or (hasattr(a, "__len__") and len(a) == 0)
    a, b = (each.encode() if isinstance(each, str) else each for each in (a, b))
    if isinstance(b, list) and not isinstance(a, list | np.ndarray):
        return len(b) == 1 and _same(a, b[0])  # a feature of one value
    if isinstance(a, list):
        b = b if isinstance(b, list | np.ndarray) else [b]  # a number that is null in other samples
        return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, np.ndarray):
        b = np.asarray(b)
        if a.shape != b.shape or b.dtype == object:
            return bool(a.size == b.size == 0)
        return bool(np.array_equal(a, b, equal_nan=b.dtype.kind == "f"))
    if isinstance(a, bytes):
        return bool(a == b)
    if isinstance(b, int) and isinstance(a, float):
        b = float(b)  # Penstock reads integers beyond 64 bits as float64
    return bool(a == b) or (isinstance(b, float | np.floating) and math.isnan(a) and math.isnan(b))


def _same_json(a: Any, b: Any) -> bool:
    if isinstance(a, str) and not isinstance(b, str) and b is not None:
        return bool(json.loads(a) == b)
    if isinstance(b, str):
        return bool(a == b) or (isinstance(a, str) and json.loads(a) == b)
    return _same(a, b)


def _same_picture(a: Any, b: Any) -> bool:
    return bool(a.shape == b.shape and (np.abs(a.astype(int) - b)[b >= 0] <= 2).all())


def _same_sound(a: Any, b: Any) -> bool:
    return bool(np.shape(a) == np.shape(b) and np.abs(np.subtract(a, b)).max() <= LOSSY)


def _by_ffmpeg(path: Path) -> Any:
    """The samples by FFmpeg, which differs from libsndfile in lengths that are not stated and in cut MP3 files."""
    import av

    with av.open(str(path)) as file:
        return np.concatenate([frame.to_ndarray() for frame in file.decode(audio=0)], axis=1).T


def aligned(case: Case, mine: Columns, peer: Columns) -> Columns:
    """Our columns by the library's names: Parquet names the levels of maps and lists, and pyarrow does not."""
    if case.format != "parquet":
        return mine
    level = r"\.(?:key_value|map|entries|list|element|item|array|bag)(?=\.|$)"
    short = {}
    for name in mine:
        short[re.sub(level, "", name)] = short[re.sub(level, "", name).removesuffix(".key")] = name
    wanted = {short[name]: name for name in peer if name not in mine and name in short}
    return {wanted.get(name, name): values for name, values in mine.items()}


def generic(reason: str) -> str:
    """Return the text of a reason without its names and numbers."""
    reason = re.sub(r"(?:/\S+|\S*\.\w{2,9})(?=[\s:,;)]|$)", "FILE", reason)
    return re.sub(r"-?\d[\d,.]*", "N", reason)[:260]

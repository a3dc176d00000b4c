# SPDX-License-Identifier: Apache-2.0
"""Generator of files in DLIO's formats, with the sizes that a storage benchmark publishes for a workload.

The content is noise, because benchmarks do not interpret it. The compression ratio is a setting, because a store or
file system that compresses data would be too fast or too slow with an unrealistic ratio.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock import _native
from penstock.datasets.files import prepare_folder, write_atomically
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["Summary", "generate"]


@dataclass(frozen=True)
class Summary:
    """Result of `generate`.

    Attributes:
        files, records: Numbers of files and records written.
        bytes_stored: Total size of the files.
    """

    files: int
    records: int
    seed: int
    bytes_stored: int


def generate(
    out: Path,
    *,
    format: str,  # noqa: A002 - the field's own word, as in `penstock.open`
    files: int,
    records_per_file: int,
    record_bytes: int,
    record_deviation_bytes: int = 0,
    compresses: float = 1.0,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Summary:
    """Write a dataset. The same arguments produce the same bytes.

    Args:
        out: Folder; created if missing. The folder must contain only files of this dataset.
        format: "tfrecord" (features `image` and `size`), "npz" (`x` uint8 [n, n, records] and `y`), "jpeg" or
            "png".
        record_bytes, record_deviation_bytes: Mean and standard deviation of a record's size; for an image, of its
            pixel bytes.
        compresses: Approximate gzip ratio of the records; 1 means incompressible noise. Ignored for images.
        progress: Function that is called with (bytes stored, files done) after each file.

    Raises:
        ConfigError: An argument is invalid, or the folder contains other files.
        NoSpace, Denied, SystemFault: The folder cannot be written.
    """
    if min(files, records_per_file, record_bytes) < 1 or record_deviation_bytes < 0 or seed < 0:
        raise ConfigError(
            "files, records per file and record size must be at least 1; deviation and seed must not be negative"
        )
    if compresses < 1:
        raise ConfigError(f"compresses: must be at least 1 (got {compresses:g})")
    write = {"tfrecord": _tfrecord, "npz": _npz, "jpeg": _picture, "png": _picture}.get(format)
    if write is None:
        raise ConfigError(f"format `{format}` is not one of tfrecord, npz, jpeg, png")
    if records_per_file > 1 and write is _picture:
        raise ConfigError(f"records per file: must be 1 for {format} (got {records_per_file})")
    digits = len(str(files))
    names = [f"img_{i:0{digits}d}_of_{files}.{format}" for i in range(files)]
    prepare_folder(out, set(names))
    stored = 0
    for i, name in enumerate(names):
        rng = np.random.default_rng([seed, i])
        # Draw the side of a square record at random, not its size in bytes, because DLIO does this, too.
        side = record_bytes**0.5
        spread = record_deviation_bytes / (2 * side)
        sides = [max(1, int(n)) for n in (rng.normal(side, spread, 2) if spread else (side, side))]
        body = write(rng, (sides[0], sides[1]), records_per_file, compresses, format)
        write_atomically(out / name, body)
        stored += len(body)
        if progress is not None:
            progress(stored, i + 1)
    return Summary(files, files * records_per_file, seed, stored)


def _noise(rng: np.random.Generator, size: int, compresses: float) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return bytes of which a share of 1 / `compresses` is noise, and the rest is zeros. The runs of zeros are long
    enough for any codec.
    """
    block = np.zeros(size, np.uint8)
    run = 1024
    for start in range(0, size, run):
        stop = min(size, start + max(1, round(run / compresses)))
        block[start:stop] = rng.integers(0, 256, stop - start, np.uint8)
    return block


def _tfrecord(rng: np.random.Generator, sides: tuple[int, int], records: int, compresses: float, _: str) -> bytes:
    body = []
    for _record in range(records):
        image = _noise(rng, sides[0] * sides[1], compresses).tobytes()
        body.append(_native.encode_tfrecord({"image": image, "size": [sides[0]]}))
    return b"".join(body)


def _npz(rng: np.random.Generator, sides: tuple[int, int], records: int, compresses: float, _: str) -> bytes:
    x = _noise(rng, sides[0] * sides[1] * records, compresses).reshape(*sides, records)
    out = io.BytesIO()
    np.savez(out, x=x, y=np.zeros(records, np.int64))
    return out.getvalue()


def _picture(rng: np.random.Generator, sides: tuple[int, int], _records: int, _compresses: float, kind: str) -> bytes:
    try:
        from PIL import Image
    except ModuleNotFoundError:
        raise ConfigError("pictures require Pillow, which is not installed", hint="pip install pillow") from None
    out = io.BytesIO()
    # Images are greyscale, as in DLIO.
    Image.fromarray(rng.integers(0, 256, sides, np.uint8)).save(out, format=kind.upper())
    return out.getvalue()

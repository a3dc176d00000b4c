# SPDX-License-Identifier: Apache-2.0
"""Lossy compression with zfp, only on request: writes objects of a Zarr array with the codec `numcodecs.zfpy`.

zarr-python can read these objects if `zfpy` is installed. Each encoded chunk is decoded again to measure the
compression error. The marker of each object contains the error of the object, so that a resumed conversion reports the
error of the whole volume.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from math import inf, isfinite, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock import _native
from penstock.errors import ConfigError, Unsupported
from penstock.extras import require

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.arrays.convert.chunking import Chunking
    from penstock.arrays.convert.source import Source
    from penstock.arrays.indexing import Box
    from penstock.arrays.location import Location

__all__ = ["LOSSY", "ErrorSum", "ZfpSettings", "ZfpWriter", "lossy_of", "parse_zfp"]

LOSSY = "penstock_lossy"
"""Name of an attribute of lossy arrays. The attribute contains the codec, its setting, the largest error and the RMS
error.
"""

# Numbers of zfp's modes, from `zfp_mode` in zfp.h.
_MODES = {"rate": 2, "precision": 3, "tolerance": 4}
_MAX_DIMENSIONS = 4


@dataclass(frozen=True)
class ZfpSettings:
    """Setting of zfp: `tolerance` (largest absolute error), `precision` (bits per coefficient) or `rate` (bits per
    sample).
    """

    mode: str
    value: float

    def document(self) -> dict[str, Any]:
        """Return the codec as JSON for Zarr's metadata."""
        return {"name": "numcodecs.zfpy", "configuration": {"mode": _MODES[self.mode], self.mode: self.number}}

    @property
    def number(self) -> float | int:
        """Return the value of the setting, which is an int for `precision`."""
        return int(self.value) if self.mode == "precision" else self.value


@dataclass
class ErrorSum:
    """Compression error: the largest difference, the sum of squared differences, and the number of samples."""

    largest: float = 0.0
    squares: float = 0.0
    samples: int = 0

    def add(self, other: ErrorSum) -> None:
        """Add the error of another part of the volume."""
        self.largest = max(self.largest, other.largest)
        self.squares += other.squares
        self.samples += other.samples

    def count(self, samples: np.ndarray[Any, Any], stored: np.ndarray[Any, Any]) -> None:
        """Add the error of these samples."""
        gap = np.abs(samples.astype(np.float64) - stored.astype(np.float64))
        if gap.size:
            self.add(ErrorSum(float(gap.max()), float(np.square(gap).sum()), gap.size))

    def describe(self) -> dict[str, Any]:
        """Return `max_error` and `rms_error` (in the unit of the samples), and `samples`."""
        rms = sqrt(self.squares / self.samples) if self.samples else 0.0
        return {"max_error": self.largest, "rms_error": rms, "samples": self.samples}


def parse_zfp(text: str, dtype: np.dtype[Any], ndim: int) -> ZfpSettings | None:
    """Parse a codec such as `zfp:tolerance=0.01`, `zfp:precision=16` or `zfp:rate=8`. Returns None for codecs other
    than zfp.

    Raises:
        ConfigError: The setting is missing or unknown.
        Unsupported: zfp does not support this sample type or this number of dimensions.
        MissingPackage: zfpy is not installed.
    """
    name, _, setting = text.partition(":")
    if name != "zfp":
        return None
    mode, _, number = setting.partition("=")
    try:
        value = float(number)
    except ValueError:
        value = -inf
    most = {"tolerance": inf, "precision": 64, "rate": 64}.get(mode, 0)
    if not (isfinite(value) and 0 < value <= most) or (mode == "precision" and value != int(value)):
        raise ConfigError(
            f"codec: `{text}` is not a valid zfp setting", where="codec",
            hint="use zfp:tolerance=0.01 (largest error), zfp:precision=16 (bits, 1 to 64) or zfp:rate=8 "
            "(bits per sample)",
        )  # fmt: skip
    if dtype.name not in ("float32", "float64"):
        raise Unsupported(
            f"codec: zfp does not support {dtype.name} samples, only float32 and float64",
            hint="choose a lossless codec: zstd, blosc-zstd, lz4 or gzip",
        )
    if ndim > _MAX_DIMENSIONS:
        raise Unsupported(f"codec: zfp does not support {ndim} dimensions (at most {_MAX_DIMENSIONS})")
    require("zfp", "zfp")
    return ZfpSettings(mode, value)


def lossy_of(attrs: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return codec, setting and error from the attributes of a lossy array; None for a lossless array."""
    stated = attrs.get(LOSSY)
    found: dict[str, Any] | None = json.loads(stated) if isinstance(stated, str) else stated
    return found


class ZfpWriter:
    """Encodes and writes the objects of an array: chunks, or shards with an index at the end."""

    def __init__(self, location: Location, source: Source, chunking: Chunking, settings: ZfpSettings) -> None:
        self._location, self._source, self._chunking, self.settings = location, source, chunking, settings

    def write(self, cell: tuple[int, ...], box: Box, samples: np.ndarray[Any, Any]) -> tuple[int, dict[str, Any]]:
        """Write an object, with zeros for missing traces. Returns its stored size, and the error for its marker.

        Raises:
            Unsupported: A sample is not finite.
        """
        there = self._there(box)
        wrong = int((~np.isfinite(samples[there])).sum())
        if wrong:
            raise Unsupported(
                f"{self._location.url}: zfp supports only finite samples, but {wrong:,} samples are not finite",
                where=self._location.url, hint="choose a lossless codec: zstd, blosc-zstd, lz4 or gzip",
            )  # fmt: skip
        whole = np.zeros(self._chunking.objects, dtype=samples.dtype)
        within = tuple(slice(side) for side in samples.shape)
        whole[within] = np.where(there[..., None], samples, samples.dtype.type(0))
        decoded = np.empty_like(whole)
        parts = [self._chunk(whole, decoded, at) for at in np.ndindex(*self._inner_grid())]
        error = ErrorSum()
        error.count(samples[there], decoded[within][there])
        content = b"".join(parts)
        if self._chunking.shards is not None:
            ends = np.cumsum([len(part) for part in parts], dtype=np.uint64)
            sizes = np.asarray([len(part) for part in parts], dtype=np.uint64)
            index = np.stack([ends - sizes, sizes], axis=1).astype("<u8").tobytes()
            content += index + _native.crc32c(index).to_bytes(4, "little")
        self._location.write("/".join(["c", *map(str, cell)]), content)
        return len(content), {"error": asdict(error)}

    def _inner_grid(self) -> tuple[int, ...]:
        return tuple(a // b for a, b in zip(self._chunking.objects, self._chunking.chunks, strict=True))

    def _chunk(self, whole: np.ndarray[Any, Any], decoded: np.ndarray[Any, Any], at: tuple[int, ...]) -> bytes:
        import zfpy  # type: ignore[import-not-found]

        place = tuple(slice(n * side, (n + 1) * side) for n, side in zip(at, self._chunking.chunks, strict=True))
        setting = {self.settings.mode: self.settings.number}
        found: bytes = zfpy.compress_numpy(np.ascontiguousarray(whole[place]), write_header=True, **setting)
        decoded[place] = zfpy.decompress_numpy(found)
        return found

    def _there(self, box: Box) -> np.ndarray[Any, Any]:
        """Return, for each trace of a box, whether the trace exists."""
        spatial = box[:-1]
        if self._source.segy is None:
            return np.ones([end - start for start, end in spatial], dtype=np.bool_)
        found: np.ndarray[Any, Any] = self._source.segy.trace_index[tuple(slice(*side) for side in spatial)] >= 0
        return found

    def describe(self, error: ErrorSum) -> dict[str, Any]:
        """Return the value of the attribute `LOSSY`."""
        return {"codec": "zfp", self.settings.mode: self.settings.number, **error.describe(), "missing_traces_are": 0}

# SPDX-License-Identifier: Apache-2.0
"""Writes SEG-Y files for tests, byte by byte with NumPy and without code from Penstock."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

_TYPES = {1: "u4", 2: "i4", 3: "i2", 5: "f4", 6: "f8", 8: "i1", 9: "i8", 10: "u4", 11: "u2", 12: "u8", 16: "u1"}


def ibm_words(values: np.ndarray) -> np.ndarray:
    """Convert numbers to normalised IBM words: a slow reference, with logarithms and rounding in float64."""
    values = np.asarray(values, dtype=np.float64)
    magnitude = np.abs(values)
    exponent = np.zeros(values.shape, dtype=np.int64)
    there = magnitude > 0
    exponent[there] = np.floor(np.log2(magnitude[there]) / 4).astype(np.int64) + 1
    fraction = np.rint(magnitude / 16.0**exponent * 2**24).astype(np.int64)
    over = fraction >= 2**24
    fraction[over] //= 16
    exponent[over] += 1
    low = there & (fraction < 2**20)
    fraction[low] = np.rint(magnitude[low] / 16.0 ** (exponent[low] - 1) * 2**24).astype(np.int64)
    exponent[low] -= 1
    words = (np.signbit(values).astype(np.int64) << 31) | ((exponent + 64) << 24) | fraction
    return np.where(there, words, 0).astype(np.uint32)


def write_segy(
    path: Path,
    samples: np.ndarray,
    *,
    inlines: np.ndarray | None = None,
    crosslines: np.ndarray | None = None,
    format: int = 5,  # noqa: A002 - the standard's word
    order: str = ">",
    interval: int = 4000,
    fields: dict[int, tuple[str, Any]] | None = None,
    random_bytes: int | None = None,
    revision: int = 1,
    extended: int = 0,
    trailing: bytes = b"",
    binary: dict[int, tuple[str, int]] | None = None,
    words: np.ndarray | None = None,
) -> Path:
    """Write traces [n, samples] with their grid numbers.

    Args:
        fields: Additional trace header fields: a mapping from the first byte to (type, values).
        random_bytes: Seed of random bytes, which fill all header bytes that are not set otherwise.
        binary: Additional binary header fields: a mapping from the first byte (3201 or above) to (type, value).
        words: Words to store as samples, instead of encoded `samples`.
    """
    count, length = samples.shape
    rng = np.random.default_rng(random_bytes)
    headers = (
        rng.integers(0, 256, (count, 240), dtype=np.uint8)
        if random_bytes is not None
        else np.zeros((count, 240), np.uint8)
    )

    def put(rows: np.ndarray, byte: int, kind: str, values: Any) -> None:
        column = np.ascontiguousarray(np.broadcast_to(np.asarray(values).astype(order + kind), (len(rows),)))
        width = column.dtype.itemsize
        rows[:, byte - 1 : byte - 1 + width] = column.view(np.uint8).reshape(len(rows), width)

    known = {1: ("i4", np.arange(1, count + 1)), 5: ("i4", np.arange(1, count + 1)), 29: ("i2", 1), 71: ("i2", -10),
             89: ("i2", 1), 109: ("i2", 0), 115: ("u2", length), 117: ("u2", interval)}  # fmt: skip
    for byte, name in (
        (9, "field"),
        (13, "channel"),
        (17, "point"),
        (21, "cdp"),
        (25, "trace"),
        (37, "offset"),
        (189, "inline"),
        (193, "crossline"),
    ):
        known[byte] = ("i4", 0) if name != "cdp" else ("i4", 1)
    if inlines is not None and crosslines is not None:
        known |= {
            189: ("i4", inlines),
            193: ("i4", crosslines),
            181: ("i4", 5000 + 125 * crosslines),
            185: ("i4", 9000 + 125 * inlines),
        }
    for byte, (kind, values) in (known | (fields or {})).items():
        put(headers, byte, kind, values)
    if words is not None:
        stored = words.astype(order + "u4").view(np.uint8).reshape(count, -1)
    elif format == 1:
        stored = ibm_words(samples).astype(order + "u4").view(np.uint8).reshape(count, -1)
    elif format in (7, 15):
        wide = samples.astype("<i4").view(np.uint8).reshape(count, length, 4)[..., :3]
        stored = (wide[..., ::-1] if order == ">" else wide).reshape(count, -1)
    else:
        stored = samples.astype(order + _TYPES[format]).view(np.uint8).reshape(count, -1)
    text = "".join(f"C{line:2d} test volume".ljust(80) for line in range(1, 41)).encode("cp037")
    block = rng.integers(0, 256, (1, 400), dtype=np.uint8) if random_bytes is not None else np.zeros((1, 400), np.uint8)
    block[0, 60:] = 0 if random_bytes is None else block[0, 60:]
    fixed = {3217: ("u2", interval), 3221: ("u2", length), 3225: ("u2", format), 3255: ("i2", 1), 3297: ("u4", 0),
             3503: ("i2", 1), 3505: ("i2", extended), 3507: ("i4", 0), 3529: ("i4", 0)}  # fmt: skip
    for byte, (kind, value) in (fixed | (binary or {})).items():
        put(block, byte - 3200, kind, value)
    block[0, 300:302] = (revision, 0)
    if revision >= 2:
        put(block, 69, "u4", 0)
        put(block, 73, "u8", 0)
        put(block, 321, "u8", 0)
    stanzas = b"".join(f"((SEG: note {number}))".ljust(3200).encode() for number in range(extended))
    path.write_bytes(text + block.tobytes() + stanzas + np.concatenate([headers, stored], axis=1).tobytes() + trailing)
    return path


def grid_numbers(inlines: int, crosslines: int, first: tuple[int, int] = (100, 300)) -> tuple[np.ndarray, np.ndarray]:
    """Inline and crossline numbers of each trace, sorted by inline."""
    return (
        np.repeat(np.arange(first[0], first[0] + inlines), crosslines),
        np.tile(np.arange(first[1], first[1] + crosslines), inlines),
    )


def noise(shape: tuple[int, ...], seed: int = 1) -> np.ndarray:
    """Samples over several magnitudes, with some zeros."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(shape) * 10.0 ** rng.integers(-3, 4, shape)
    values[rng.random(shape) < 0.01] = 0
    return values.astype(np.float32)

# SPDX-License-Identifier: Apache-2.0
"""Parses TFRecord frames and tf.Example features in plain Python, for drivers whose libraries have no parser."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def frames(data: Any, crc32c: Callable[[Any], int] | None = None) -> Iterator[memoryview]:
    """Yields the payloads of TFRecord data. Verifies each payload if a CRC-32C function is given."""
    view, at = memoryview(data), 0
    while at < len(view):
        (length,) = struct.unpack_from("<Q", view, at)
        payload = view[at + 12 : at + 12 + length]
        if crc32c is not None:
            (want,) = struct.unpack_from("<I", view, at + 12 + length)
            crc = crc32c(payload)
            if ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF != want:
                raise ValueError(f"record at byte {at} is damaged")
        yield payload
        at += 16 + length


def _varint(view: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = view[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def _fields(view: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Yields the length-delimited fields of a protobuf message, with their numbers."""
    at = 0
    while at < len(view):
        tag, at = _varint(view, at)
        length, at = _varint(view, at)
        yield tag >> 3, view[at : at + length]
        at += length


def features(example: memoryview) -> dict[str, memoryview]:
    """Returns the features of a tf.Example by name, as bytes. Each feature must be one bytes value or packed floats."""
    found = {}
    for _, all_features in _fields(example):
        for _, entry in _fields(all_features):
            parts = dict(_fields(entry))
            ((_, kind),) = _fields(parts[2])
            ((_, value),) = _fields(kind)
            found[bytes(parts[1]).decode()] = value
    return found

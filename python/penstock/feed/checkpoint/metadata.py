# SPDX-License-Identifier: Apache-2.0
"""Metadata of a checkpoint as JSON. torch's own writer pickles it, and unpickling can run code.

Every value has one checksum for each block of 4 MiB, so that a reader can check a part of a value.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from penstock.errors import Corrupt, Unsupported

__all__ = ["BLOCK_BYTES", "Stored", "decode", "encode", "item_bytes"]

BLOCK_BYTES = 4 << 20
"""Number of bytes per checksum. A block is small enough to stay in the CPU's cache between the checksum and the
write.
"""

_FILE = re.compile(r"[0-9a-f]+-[0-9]+\.bin")
_MEMORY_FORMATS = {
    "contiguous": torch.contiguous_format,
    "channels_last": torch.channels_last,
    "preserve": torch.preserve_format,
}


@dataclass(frozen=True)
class Stored:
    """Location of a value: `length` bytes from `offset` of `file`, with the CRC-32C of each block."""

    file: str
    offset: int
    length: int
    crc32c: tuple[int, ...]


class _Tensor(msgspec.Struct, frozen=True):
    dtype: str
    size: list[int]
    chunks: list[tuple[list[int], list[int]]]  # offsets and sizes
    requires_grad: bool = False
    pin_memory: bool = False
    memory_format: str = "contiguous"
    strides: list[int] | None = None


class _Item(msgspec.Struct, frozen=True, array_like=True):
    name: str
    offsets: list[int] | None
    index: int | None
    file: str
    offset: int
    length: int
    crc32c: list[int]


class _Document(msgspec.Struct, frozen=True):
    values: dict[str, _Tensor | None]  # None stands for a value that is not a tensor
    paths: dict[str, list[str | int]] | None
    items: list[_Item]


def item_bytes(sizes: torch.Size | list[int], dtype: torch.dtype) -> int:
    """Return the number of bytes of a tensor of these sizes."""
    return math.prod(sizes) * int(dtype.itemsize)


def encode(metadata: Metadata, stored: Mapping[MetadataIndex, Stored]) -> bytes:
    """Encode torch's metadata and the locations of the values.

    Raises:
        Unsupported: The planner's data is not a mapping from flattened names to paths, or a tensor is not dense.
    """
    paths = metadata.planner_data
    if paths is not None and not isinstance(paths, Mapping):
        raise Unsupported(
            f"checkpoint: planner data must be a mapping from names to paths (got {type(paths).__name__})"
        )
    values = {name: _encoded(name, value) for name, value in metadata.state_dict_metadata.items()}
    items = [
        _Item(
            index.fqn, None if index.offset is None else list(index.offset), index.index, at.file, at.offset, at.length,
            list(at.crc32c),
        )
        for index, at in stored.items()
    ]  # fmt: skip
    plain = None if paths is None else {name: list(path) for name, path in paths.items()}
    return msgspec.json.encode(_Document(values, plain, items))


def _encoded(name: str, value: Any) -> _Tensor | None:
    if isinstance(value, BytesStorageMetadata):
        return None
    properties = value.properties
    formats = {form: text for text, form in _MEMORY_FORMATS.items()}
    if properties.layout != torch.strided or properties.memory_format not in formats:
        raise Unsupported(
            f"checkpoint: `{name}`: layout {properties.layout} with {properties.memory_format} is not supported",
            hint="convert it to a dense tensor before saving",
        )
    strides = getattr(properties, "strides", None)
    return _Tensor(
        str(properties.dtype).removeprefix("torch."),
        list(value.size),
        [(list(chunk.offsets), list(chunk.sizes)) for chunk in value.chunks],
        properties.requires_grad,
        properties.pin_memory,
        formats[properties.memory_format],
        None if strides is None else list(strides),
    )


def decode(raw: bytes, place: str) -> tuple[Metadata, dict[MetadataIndex, Stored]]:
    """Decode the metadata of a checkpoint, and check that it is consistent.

    Raises:
        Corrupt: The bytes are not the metadata of a checkpoint.
    """
    try:
        document = msgspec.json.decode(raw, type=_Document)
        values = {name: _decoded(value) for name, value in document.values.items()}
        stored = {
            MetadataIndex(item.name, item.offsets, item.index): _location(item, document.values[item.name])
            for item in document.items
        }
        for name, value in values.items():
            _check_covered(name, value, stored)
    except (msgspec.MsgspecError, UnicodeDecodeError, KeyError, TypeError, ValueError) as error:
        raise Corrupt(
            f"{place}: the metadata is not valid for a checkpoint: {type(error).__name__}: {error}", where=place
        ) from None
    paths = None if document.paths is None else {name: tuple(path) for name, path in document.paths.items()}
    return Metadata(state_dict_metadata=values, planner_data=paths, storage_data=stored), stored


def _decoded(value: _Tensor | None) -> Any:
    if value is None:
        return BytesStorageMetadata()
    dtype = getattr(torch, value.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"unknown dtype {value.dtype!r}")  # noqa: TRY004 - the text is wrong, not its type
    properties = TensorProperties(
        dtype=dtype,
        requires_grad=value.requires_grad,
        memory_format=_MEMORY_FORMATS[value.memory_format],
        pin_memory=value.pin_memory,
    )
    if hasattr(properties, "strides"):
        properties.strides = None if value.strides is None else tuple(value.strides)
    chunks = [ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes)) for offsets, sizes in value.chunks]
    for chunk in chunks:
        inside = all(
            at >= 0 and at + count <= size
            for at, count, size in zip(chunk.offsets, chunk.sizes, value.size, strict=True)
        )
        if not inside:
            raise ValueError(f"a chunk is not within its tensor, whose size is {value.size}")
    return TensorStorageMetadata(properties, torch.Size(value.size), chunks)


def _check_covered(name: str, value: Any, stored: Mapping[MetadataIndex, Stored]) -> None:
    """Raise ValueError if a part of a value is not stored, because a reader would return uninitialised memory for it."""
    if isinstance(value, BytesStorageMetadata):
        if MetadataIndex(name) not in stored:
            raise ValueError(f"{name} is not stored")
        return
    if sum(math.prod(chunk.sizes) for chunk in value.chunks) != math.prod(value.size):
        raise ValueError(f"the chunks of {name} do not cover its size {list(value.size)}")
    for chunk in value.chunks:
        if MetadataIndex(name, chunk.offsets) not in stored:
            raise ValueError(f"the chunk of {name} at {list(chunk.offsets)} is not stored")


def _location(item: _Item, value: _Tensor | None) -> Stored:
    if not _FILE.fullmatch(item.file):
        raise ValueError(f"{item.name} is in the file {item.file!r}, which does not belong to this checkpoint")
    if min(item.offset, item.length) < 0 or len(item.crc32c) != -(-item.length // BLOCK_BYTES):
        raise ValueError(f"{item.name} has {len(item.crc32c)} checksums for {item.length} bytes at {item.offset}")
    if value is not None:
        sizes = next((sizes for offsets, sizes in value.chunks if offsets == item.offsets), None)
        dtype = getattr(torch, value.dtype)
        if sizes is None or item_bytes(sizes, dtype) != item.length:
            raise ValueError(f"{item.name} has {item.length} bytes, which do not match its chunk (size: {sizes})")
    return Stored(item.file, item.offset, item.length, tuple(item.crc32c))

# SPDX-License-Identifier: Apache-2.0
"""Chooses shapes of chunks and shards for an access pattern, and computes the cost of a slice in each direction."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, prod
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["SHARD_BYTES", "Chunking", "choose", "parse_shape", "whole_traces"]

CHUNK_BYTES = 1 << 20
"""Target size of a chunk in bytes. A chunk is small enough for slices, and large enough for efficient requests at a
latency of 20 ms and a rate of 90 MB/s.
"""

SHARD_BYTES = 64 << 20
"""Target size of a shard in bytes. A shard is one object, and has one writer."""


@dataclass(frozen=True)
class Chunking:
    """Shapes of chunks and shards. `shards` is None if each chunk is a separate object."""

    dims: tuple[str, ...]
    shape: tuple[int, ...]
    itemsize: int
    chunks: tuple[int, ...]
    shards: tuple[int, ...] | None

    @property
    def objects(self) -> tuple[int, ...]:
        """Shape of an object: a shard or, without shards, a chunk."""
        return self.shards or self.chunks

    @property
    def grid(self) -> tuple[int, ...]:
        """Number of objects along each dimension."""
        return tuple(ceil(side / part) for side, part in zip(self.shape, self.objects, strict=True))

    def slices(self) -> list[dict[str, Any]]:
        """Return the cost of a slice across each dimension: size of the slice, size of the chunks that it needs, and
        number of objects.
        """
        rows = []
        for axis, dim in enumerate(self.dims):
            rest = [side for at, side in enumerate(self.shape) if at != axis]
            needed = prod(rest) * self.itemsize
            spans = [
                ceil(side / chunk) * chunk
                for at, (side, chunk) in enumerate(zip(self.shape, self.chunks, strict=True))
                if at != axis
            ]
            read = (
                min(self.chunks[axis], self.shape[axis])
                * prod(min(a, b) for a, b in zip(spans, rest, strict=True))
                * self.itemsize
            )
            objects = prod(side for at, side in enumerate(self.grid) if at != axis)
            rows.append(
                {
                    "across": dim,
                    "bytes": needed,
                    "read_bytes": read,
                    "amplification": read / max(needed, 1),
                    "objects": objects,
                }
            )
        return rows

    def explain(self) -> list[str]:
        """Explain the chosen shapes in sentences."""
        spell = " × ".join
        size = prod(self.chunks) * self.itemsize
        lines = [f"chunks of {spell(map(str, self.chunks))} ({', '.join(self.dims)}), {size / 2**20:.2g} MiB"]
        if self.shards is not None:
            lines.append(
                f"shards of {spell(map(str, self.shards))}, {prod(self.shards) * self.itemsize / 2**20:.3g} MiB: "
                f"{prod(self.grid):,} objects, each written whole by one writer"
            )
        else:
            lines.append(f"one object for each chunk: {prod(self.grid):,} objects")
        lines += [
            f"a slice across {row['across']} reads {row['amplification']:.3g} × its bytes, from {row['objects']:,} objects"
            for row in self.slices()
        ]
        return lines


def parse_shape(text: str, ndim: int, what: str) -> tuple[int, ...]:
    """Parse a shape such as `64,64,64` or `64x64x64`.

    Raises:
        ConfigError: The text does not have one whole number above 0 for each dimension.
    """
    parts = text.replace("x", ",").split(",")
    if len(parts) != ndim or not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise ConfigError(
            f"{what}: must be {ndim} whole numbers above 0 (got `{text}`)", where=what, hint="write it as 64,64,64"
        )
    return tuple(int(part) for part in parts)


def whole_traces(
    dims: Sequence[str], shape: Sequence[int], itemsize: int, chunks: Sequence[int] | None = None
) -> Chunking:
    """Return the shape of blocks of about 64 MiB, for a file that is not chunked. Blocks contain whole traces.

    Args:
        chunks: Chunk shape of the source. A block consists of whole chunks, unless such a block would exceed 256 MiB.
    """
    block = [*map(min, chunks[:-1], shape), shape[-1]] if chunks else []
    if not block or prod(block) * itemsize > 4 * SHARD_BYTES:
        block = [1] * (len(shape) - 1) + [shape[-1]]
    block = [max(1, side) for side in block]
    for axis in reversed(range(len(shape) - 1)):
        block[axis] = max(1, min(shape[axis], block[axis] * max(1, SHARD_BYTES // (prod(block) * itemsize))))
    return Chunking(tuple(dims), tuple(max(1, side) for side in shape), itemsize, tuple(block), None)


def choose(
    dims: Sequence[str],
    shape: Sequence[int],
    itemsize: int,
    access: Sequence[str] = ("balanced",),
    *,
    chunks: Sequence[int] | None = None,
    shards: Sequence[int] | None = None,
    is_sharded: bool = True,
) -> Chunking:
    """Choose chunks and shards.

    Args:
        access: Dimensions across which slices are read, such as `inline`; or `balanced` (all dimensions), `shots`
            (whole gathers: the last two dimensions), or `train` (boxes).
        chunks, shards: Shapes to use; by default, they are chosen.
        is_sharded: False stores each chunk as an object.

    Raises:
        ConfigError: A dimension does not exist, or a shard does not consist of whole chunks.
    """
    known = {"balanced", "shots", "train", *dims}
    for name in access:
        if name not in known:
            raise ConfigError(f"access: `{name}` is not one of {', '.join(sorted(known))}", where="access")
    sides = tuple(max(1, side) for side in shape)
    fitting = (min(each, side) for each, side in zip(_chunks(dims, sides, itemsize, access), sides, strict=True))
    chosen = tuple(chunks) if chunks is not None else tuple(fitting)
    if shards is not None:
        for shard, chunk in zip(shards, chosen, strict=True):
            if shard % chunk:
                raise ConfigError(
                    f"shards: {shard} is not a multiple of the chunk size {chunk} along the same dimension",
                    where="shards",
                )
    found = None
    if shards is not None:
        found = tuple(shards)
    elif is_sharded and "shots" not in access:
        found = _shards(sides, chosen, itemsize)
        found = None if found == chosen else found
    return Chunking(tuple(dims), sides, itemsize, chosen, found)


def _chunks(dims: Sequence[str], shape: Sequence[int], itemsize: int, access: Sequence[str]) -> tuple[int, ...]:
    elements = CHUNK_BYTES // itemsize
    if "shots" in access:
        return tuple([1] * (len(shape) - 2) + list(shape[-2:])) if len(shape) > 1 else (elements,)
    across = [axis for axis, dim in enumerate(dims) if dim in access]
    if not across or "train" in access or "balanced" in access:
        across = list(range(len(shape)))
    # Slices are read across the dimensions in `access`, so a chunk is thin along these dimensions. It is thinnest if
    # there is only one such dimension.
    sides = [1] * len(shape)
    thin = (
        3
        if len(across) == 1 and len(shape) > 1
        else round(elements.bit_length() / len(shape)) - (len(across) < len(shape))
    )
    for axis in across:
        sides[axis] = min(1 << thin, shape[axis])
    grows = [axis for axis in range(len(shape)) if axis not in across] or across
    # If several dimensions have the same size, the last one grows first, because its samples are contiguous in every
    # format.
    while prod(sides) * 2 <= elements:
        open_axes = [axis for axis in grows if sides[axis] < shape[axis]] or [
            a for a in range(len(shape)) if sides[a] < shape[a]
        ]
        if not open_axes:
            break
        axis = min(open_axes, key=lambda each: (sides[each], -each))
        sides[axis] *= 2
    return tuple(sides)


def _shards(shape: Sequence[int], chunks: Sequence[int], itemsize: int) -> tuple[int, ...]:
    shard = list(chunks)
    whole = [ceil(side / chunk) * chunk for side, chunk in zip(shape, chunks, strict=True)]
    # A shard grows along the last dimension first, up to whole traces, and then about equally along all other
    # dimensions.
    order = [len(shape) - 1]
    while prod(shard) * itemsize < SHARD_BYTES:
        axes = [axis for axis in order if shard[axis] < whole[axis]] or [
            a for a in range(len(shape)) if shard[a] < whole[a]
        ]
        if not axes:
            break
        axis = min(axes, key=lambda each: shard[each])
        shard[axis] = min(2 * shard[axis], whole[axis])
    return tuple(shard)

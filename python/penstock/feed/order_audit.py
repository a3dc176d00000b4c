# SPDX-License-Identifier: Apache-2.0
"""Audit of the sample order: hashes the delivered records step by step, for any number of ranks and threads.

Each step has two hashes. `order` covers the logical names and record numbers of the step's records, and is computed
without reading any object. `content` covers the delivered bytes, row by row. Neither hash depends on ranks, threads,
codecs or paths.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock import _native, env
from penstock.errors import ConfigError, Unsupported
from penstock.feed.batch_columns import Ragged
from penstock.feed.fields import tensor
from penstock.feed.loader import Loader

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.feed.dataset import Dataset
    from penstock.feed.dataset_base import DatasetBase
    from penstock.feed.fields import TensorSpec

__all__ = ["SCHEMA_VERSION", "Audit", "audit", "first_difference", "guess_fields"]

SCHEMA_VERSION = 1

_LARGEST = 1 << 30
"""Maximum size in bytes of an object that is read whole to guess fields."""


@dataclass(frozen=True, slots=True)
class Audit:
    """Hashes of the steps of an epoch that was read with a given number of ranks and threads."""

    ranks: int
    threads: int | None
    steps: tuple[tuple[str, str], ...]
    """(order hash, content hash) of each step."""

    @property
    def digest(self) -> str:
        """Hash of all steps."""
        return _hash("".join(order + content for order, content in self.steps).encode())


def _hash(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def guess_fields(dataset: Dataset) -> dict[str, TensorSpec]:
    """Derive fields from the first record. Byte features become uint8 fields, because an audit only compares bytes.

    Raises:
        Unsupported: The first object is too large to read, or a feature is not a single value.
    """
    files, key = _native.Files(dataset.url, dict(env.read())), dataset.source.key(0).encode()
    name, size, _, _ = files.head(key)
    if size > _LARGEST:
        raise Unsupported(
            f"{dataset.url}{name.decode()} is too large to infer its fields ({size:,} bytes)",
            hint="give --field NAME=DTYPE:SHAPE",
        )
    (stored,) = files.read(key, [(0, max(size, 1))])
    example = _native.decode_tfrecord(stored)[0]
    found = {}
    for feature, value in example.items():
        items = [value] if isinstance(value, bytes) else value
        first = items[0] if items else None
        if isinstance(first, bytes):
            if len(items) > 1:
                raise Unsupported(
                    f"feature {feature}: contains {len(items)} byte strings, but a type can be inferred only for 1",
                    hint="give --field NAME=DTYPE:SHAPE",
                )
            found[feature] = tensor("uint8", (len(first),))
        elif first is not None:
            found[feature] = tensor("float32" if isinstance(first, float) else "int64", (len(items),))
    return found


def audit(
    dataset: DatasetBase,
    *,
    global_batch: int,
    ranks: int = 1,
    threads: int | None = None,
    epoch: int = 0,
    max_steps: int | None = None,
) -> Audit:
    """Read an epoch (or its first steps) once for each of `ranks` ranks, one after another, and hash each step.

    Raises:
        ConfigError: The ranks made different numbers of steps.
    """
    rows: list[list[bytes]] = []
    for rank in range(ranks):
        loader = Loader(dataset, global_batch=global_batch, rank=rank, world=ranks, threads=threads)
        loader.set_epoch(epoch)
        made = 0
        for step, batch in enumerate(loader):
            if step == max_steps:
                break
            if rank == 0:
                rows.append([])
            if step >= len(rows):
                raise ConfigError(
                    f"ranks: rank {rank} has more steps than rank 0, which has {len(rows)}", where="ranks"
                )
            rows[step] += _digests(batch)
            made += 1
        if made != len(rows):
            raise ConfigError(f"ranks: rank {rank} has {made} steps, but rank 0 has {len(rows)}", where="ranks")
    course, steps = dataset.course(), []
    sources, samples = course.sources, course.samples
    for step, digests in enumerate(rows):
        start = step * global_batch
        places = course.places(epoch, range(start, min(start + global_batch, samples)))
        names = [f"{leaf}:{sources[leaf].logical_name(number)}#{record}" for leaf, number, record in places]
        steps.append((_hash("\n".join(names).encode()), _hash(b"".join(digests))))
    return Audit(ranks, threads, tuple(steps))


def _digests(batch: Mapping[str, Any]) -> list[bytes]:
    """Return a digest of each row, computed from the bytes of its fields in the order of their names."""
    rows: list[Any] = []
    for name in sorted(batch):
        column = batch[name]
        if isinstance(column, Ragged):
            cells = [_bytes(column.row(row)) for row in range(len(column.offsets) - 1)]
        else:
            cells = [_bytes(cell) for cell in column]
        if not rows:
            rows = [hashlib.blake2b(digest_size=16) for _ in cells]
        for digest, cell in zip(rows, cells, strict=True):
            digest.update(f"{name}:{len(cell)}:".encode())
            digest.update(cell)
    return [digest.digest() for digest in rows]


def _bytes(cell: Any) -> bytes:
    """Return the bytes of one sample's value. For a list, they include the length of each item."""
    if isinstance(cell, Ragged):
        return bytes(cell.offsets.tobytes()) + _bytes(cell.values)
    if isinstance(cell, list):
        return b"".join(b"%d:%b" % (len(item), item) for item in map(_bytes, cell))
    if isinstance(cell, str):
        return cell.encode()
    return cell if isinstance(cell, bytes) else bytes(cell.tobytes())


def first_difference(a: Sequence[Sequence[str]], b: Sequence[Sequence[str]]) -> int | None:
    """Return the first step in which two audits differ, or None."""
    for step, (mine, theirs) in enumerate(zip(a, b, strict=False)):
        if tuple(mine) != tuple(theirs):
            return step
    return None if len(a) == len(b) else min(len(a), len(b))

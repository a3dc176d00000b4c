# SPDX-License-Identifier: Apache-2.0
"""Scan of all samples: one value per sample, which is computed once and stored beside the record indexes.

Filters, class balance and batches by length use such scans. This module decides how a result is stored and whether it
is still valid; the caller computes the values. A stored result can be deleted at any time.
"""

from __future__ import annotations

import hashlib
import json
import logging
import zipfile
import zlib
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from penstock import env
from penstock.atomic_file import atomic_file
from penstock.errors import Corrupt
from penstock.extras import require
from penstock.feed import scan_lock
from penstock.feed.record_index_dir import record_index_dir

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from penstock.feed.dataset import Dataset
    from penstock.feed.dataset_base import DatasetBase

__all__ = ["NewLoader", "advice_about_damage", "batch_size", "in_batches", "leaves", "scanned"]

NewLoader: TypeAlias = "Callable[..., Iterable[dict[str, Any]]]"

_LOG = logging.getLogger("penstock.feed")

_BATCH_BYTES = 16 << 20
"""Target size of a batch of a scan, in stored bytes."""

_MAX_BATCH = 4096
"""Maximum number of samples per batch of a scan in which no Python function runs per sample."""


def leaves(dataset: DatasetBase) -> list[Dataset]:
    """Return the datasets of a mixture, or the dataset itself."""
    parts = getattr(dataset, "parts", None)
    return [dataset] if parts is None else [leaf for part, _ in parts for leaf in leaves(part)]  # type: ignore[list-item]


@contextmanager
def advice_about_damage(what: str, how: str) -> Iterator[None]:
    """Add a hint to the error of a damaged sample: how to leave such samples out of a scan for `what`."""
    try:
        yield
    except Corrupt as error:
        error.add_note(
            f"a loader's on_error does not apply to {what}; to leave out samples that cannot be read, use {how}"
        )
        raise


def scanned(dataset: Dataset, what: str, key: str | None, compute: Callable[[], Any], hint: str = "") -> Any:
    """Return an array with one value per sample of `dataset`. This is a stored result for the same objects and `key`,
    if one exists, otherwise the result of `compute()`.

    Args:
        dataset: Dataset in stored order.
        what: Name of the operation, for messages.
        key: Text that identifies the operation and everything that the operation depends on, except for the data. If
            None, the result is not stored.
        compute: Function that reads all samples and returns the array.
        hint: Sentence to add to the log message that all samples are read.
    """
    require(what, "numpy")
    variables = dict(env.read())
    folder = record_index_dir(variables) if key is not None else None
    name = f"{_version(dataset, key)}.samples"
    path = None if folder is None else Path(folder) / name
    with scan_lock.held(folder, name, dataset.url, f"running {what} over all samples") as is_shared:
        kept = _read(path, dataset.samples) if path is not None else None
        if kept is not None:
            return kept
        _LOG.warning(
            "%s: %s reads all %s samples once (%s stored bytes)%s%s",
            dataset.url,
            what,
            f"{dataset.samples:,}",
            f"{dataset.source.size_bytes:,}",
            "" if is_shared else "; the result is not stored, so each process reads them",
            hint and f". {hint}",
        )
        values = compute()
        if path is not None and is_shared:
            _write(path, values)
        return values


def _version(dataset: Dataset, key: str | None) -> str:
    """Return a digest of the objects with their versions, the steps of the dataset and `key`."""
    digest = hashlib.blake2b(digest_size=16)
    steps = dataset.identity().get("steps", "")
    # Hash only the objects of the manifest, because its other entries contain the time of the listing.
    objects = json.dumps(json.loads(dataset.source.manifest())["objects"]).encode()
    for part in (objects, dataset.fingerprint.encode(), steps.encode(), (key or "").encode()):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()


def _read(path: Path, samples: int) -> Any:
    """Return a stored result; None if it is missing, damaged or of another length."""
    import numpy as np

    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            values = stored["values"]
    except (OSError, ValueError, KeyError, EOFError, TypeError, zipfile.BadZipFile, zlib.error):
        return None
    return values if values.shape == (samples,) else None


def _write(path: Path, values: Any) -> None:
    import numpy as np

    # Do not compress numbers: compression would save little space, and each process reads the file. Both formats
    # contain a CRC.
    save = np.savez if values.dtype.kind in "iuf" else np.savez_compressed
    try:
        with atomic_file(path, durable=False) as out:
            save(out, values=values)
    except OSError as error:
        _LOG.warning("%s: the result cannot be stored: %s", path, error.strerror)


def batch_size(dataset: Dataset, most: int) -> int:
    """Return the number of samples (at most `most`) that a scan of the dataset reads at a time."""
    stored = max(dataset.source.size_bytes // max(dataset.counted().samples, 1), 1)
    return max(1, min(_BATCH_BYTES // stored, most, dataset.samples))


def in_batches(dataset: Dataset, numbers: Callable[[dict[str, Any]], Any], on_error: str, new_loader: NewLoader) -> Any:
    """Return `numbers(batch)`, one uint32 per sample, for all samples in the order of the dataset.

    If `on_error` is not `raise`, a sample that cannot be read has the number of the sample that a loader with
    `on_error="substitute"` delivers instead.
    """
    import numpy as np

    found, end = np.empty(dataset.samples, np.uint32), 0
    for batch in new_loader(
        dataset,
        batch_size=batch_size(dataset, _MAX_BATCH),
        rank=0,
        world=1,
        on_error="raise" if on_error == "raise" else "substitute",
        prefetch_next_epoch=False,
    ):
        made = numbers(batch)
        found[end : end + len(made)] = made
        end += len(made)
    return found

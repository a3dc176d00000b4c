# SPDX-License-Identifier: Apache-2.0
"""Arguments of loaders: checks each argument, and rejects combinations that a dataset does not support."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError
from penstock.feed.number_arguments import as_float, as_int

if TYPE_CHECKING:
    from penstock.feed.batch_by import BatchBy
    from penstock.feed.dataset_base import DatasetBase

__all__ = [
    "check_batch_by",
    "check_collate",
    "check_combinations",
    "check_limits",
    "check_policies",
    "epoch_number",
    "global_size",
]

_TAILS = ("ragged", "drop", "pad")

_ON_ERROR = ("raise", "skip", "substitute")


def epoch_number(epoch: int) -> int:
    """Convert an epoch number to a plain int.

    Raises:
        ConfigError: The epoch is not an integer, is negative, or does not fit into 63 bits.
    """
    epoch = as_int("epoch", epoch)
    if not 0 <= epoch < 2**63:
        raise ConfigError(f"epoch: {epoch} is not within 0 to 2^63 - 1", where="epoch")
    return epoch


def global_size(batch_size: int | None, global_batch: int | None, world: int) -> int:
    """Return the number of samples in a batch over all ranks.

    Raises:
        ConfigError: Both sizes or neither is given, or the size is invalid.
    """
    if (batch_size is None) == (global_batch is None):
        raise ConfigError(
            "batch_size: give exactly one of batch_size (per rank), global_batch and batch_by", where="batch_size"
        )
    size = global_batch if batch_size is None else batch_size * world
    if size is None or not 1 <= size < 2**63:
        name = "global_batch" if batch_size is None else "batch_size"
        raise ConfigError(f"{name}: {size} is not a valid batch size", where=name)
    return size


def check_batch_by(batch_by: Any, *sizes: int | None) -> BatchBy | None:
    """Check `batch_by`, and return it. `sizes` are the arguments for batches of a constant size.

    Raises:
        ConfigError: `batch_by` has another type, or is combined with a size.
    """
    if batch_by is None:
        return None
    if not hasattr(batch_by, "plan"):
        raise ConfigError(
            f"batch_by: must be a penstock.buckets(...) or penstock.budget(...) (got {batch_by!r})",
            where="batch_by",
            hint='write batch_by=penstock.budget(8192, length="tokens"); for batches of a constant size, give batch_size',
        )
    if sizes != (None, None):
        raise ConfigError(
            "batch_by: cannot be combined with batch_size or global_batch",
            where="batch_by",
            hint="leave out batch_size and global_batch: buckets() and budget() set the sizes",
        )
    found: BatchBy = batch_by
    return found


def check_collate(collate: Any) -> Any:
    """Check `collate`, and return it.

    Raises:
        ConfigError: `collate` is not callable.
    """
    if collate is not None and not callable(collate):
        raise ConfigError(f"collate: {collate!r} is not callable", where="collate")
    return collate


def check_policies(dataset: DatasetBase, tail: str | None, on_error: str) -> None:
    """Check the handling of the epoch's last batch and of damaged samples.

    Raises:
        ConfigError: A value is unknown, or `tail` and `on_error` cannot be combined with each other or with the
            dataset's functions.
    """
    if tail is not None and tail not in _TAILS:
        raise ConfigError(f"tail: `{tail}` is not one of {', '.join(_TAILS)}", where="tail")
    if on_error not in _ON_ERROR:
        raise ConfigError(f"on_error: `{on_error}` is not one of {', '.join(_ON_ERROR)}", where="on_error")
    if on_error == "skip" and tail == "drop":
        raise ConfigError(
            'on_error: "skip" cannot be combined with tail="drop", because skipped samples make batches smaller',
            where="on_error",
            hint='use on_error="substitute", or tail="pad"',
        )
    if on_error == "skip" and dataset.map_steps and not dataset.decodes:
        raise ConfigError(
            'on_error: "skip" cannot be combined with map(), because the seeds of map functions depend on row '
            "positions, which skipped samples would change",
            where="on_error",
            hint='use on_error="substitute", or decode() instead of map()',
        )
    if on_error == "skip" and tail == "pad" and dataset.decodes:
        raise ConfigError(
            'on_error: "skip" cannot be combined with tail="pad" and decode(), because decode() then leaves rows out',
            where="on_error",
            hint='use tail="ragged"',
        )


def check_combinations(dataset: DatasetBase, batch_by: BatchBy | None, on_error: str) -> None:
    """Check that the dataset's steps can be combined with `batch_by`, and with each other.

    Raises:
        ConfigError: A combination is not supported.
    """
    if batch_by is not None and (not dataset.indexed or dataset.packing is not None):
        what = "opened with indexed=False" if not dataset.indexed else "packed"
        raise ConfigError(
            f"batch_by: requires counted records, but the dataset was {what}",
            where="batch_by",
            hint="open it without indexed=False"
            if not dataset.indexed
            else "windows of pack() have one length: give batch_size in place of batch_by",
        )
    if dataset.rebatches:
        uneven = "decode(rebatch=True)"
    elif dataset.decodes and on_error == "skip":
        uneven = 'decode() and on_error="skip"'
    else:
        return
    name = "batch_by" if batch_by is not None else "pack" if dataset.packing is not None else None
    if name is not None:
        raise ConfigError(f"{name}: cannot be combined with {uneven}", where=name)


def check_limits(object_timeout_s: float, read_ahead: int | None, **positive: int | None) -> None:
    """Check numbers that are settings of the core.

    Raises:
        ConfigError: A number is too small or too large.
    """
    for name, value in positive.items():
        if value is not None and value < 1:
            raise ConfigError(f"{name}: must be at least 1 (got {value})", where=name)
    if read_ahead is not None and read_ahead < 0:
        raise ConfigError(f"read_ahead: must be at least 0 (got {read_ahead})", where="read_ahead")
    if not 0 <= as_float("object_timeout_s", object_timeout_s) < 2**63:
        raise ConfigError(f"object_timeout_s: {object_timeout_s} is not within 0 to 2^63 s", where="object_timeout_s")

# SPDX-License-Identifier: Apache-2.0
"""Lengths of a dataset's samples, as uint32 arrays in stored order. The caller gives them, or they are read once and
cached by `sample_scan`.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError
from penstock.extras import require
from penstock.feed import sample_value_cache
from penstock.feed.fields import RaggedSpec, RawListSpec, RawSpec, TensorSpec, TextSpec
from penstock.feed.image_fields import BoxesSpec, KeypointsSpec

if TYPE_CHECKING:
    import numpy as np

    from penstock.feed.dataset import Dataset
    from penstock.feed.dataset_base import DatasetBase
    from penstock.feed.fields import FieldSpec

    Lengths = np.ndarray[Any, Any]

__all__ = ["of", "of_field"]


def of(dataset: DatasetBase, length: Any, on_error: str = "raise") -> list[Lengths]:
    """Return the lengths of all samples of each dataset in `dataset`, in stored order.

    Args:
        length: Name of a field, or an array with one length per sample; for a mixture, a list of arrays.
    Raises:
        ConfigError: The field has no length, the array has another size, or a length is not a whole number from 0 to
            2^32 - 2.
    """
    require("batch_by", "numpy")
    parts = sample_value_cache.leaves(dataset)
    if isinstance(length, str):
        return [of_field(part, length, on_error) for part in parts]
    is_single = not hasattr(length, "__iter__") or (len(parts) == 1 and not _is_list_of_arrays(length))
    arrays = [length] if is_single else list(length)
    if len(arrays) != len(parts):
        raise ConfigError(
            f"length: {len(arrays)} arrays were given for {len(parts)} datasets",
            where="batch_by",
            hint="give a list with one array for each dataset of the mixture, or the name of a field",
        )
    return [_checked(array, part.counted().samples) for array, part in zip(arrays, parts, strict=True)]


def _is_list_of_arrays(length: Any) -> bool:
    return (
        isinstance(length, (list, tuple))
        and len(length) > 0
        and hasattr(length[0], "__len__")
        and not isinstance(length[0], str)
    )


def _checked(given: Any, samples: int) -> Lengths:
    import numpy as np

    array = np.asarray(given)
    if array.ndim != 1 or array.dtype.kind not in "iuf":
        text = f"{array.dtype} {list(array.shape)}" if array.dtype != object else type(given).__name__
        raise ConfigError(
            f"length: must be an array of one number per sample (got {text})",
            where="batch_by",
            hint="give the name of a field, or an array of whole numbers in stored order",
        )
    if len(array) != samples:
        raise ConfigError(
            f"length: {len(array):,} lengths were given, but the dataset has {samples:,} samples",
            where="batch_by",
            hint="give one length for each sample in stored order, as before shuffle, take, shard, …",
        )
    # Every comparison with NaN is false, so this condition also rejects NaN.
    good = (array >= 0) & (array < 2**32 - 1)
    if array.dtype.kind == "f":
        good &= np.floor(array) == array
    if not good.all():
        at = int(np.argmin(good))
        raise ConfigError(
            f"length: the length of sample {at:,} is {array[at]}, not a whole number from 0 to 2^32 - 2",
            where="batch_by",
        )
    return np.ascontiguousarray(array, dtype=np.uint32)


def of_field(dataset: Dataset, name: str, on_error: str = "raise") -> Lengths:
    """Return the length of a field in each sample of the dataset, in stored order, as uint32.

    The first call logs a message and reads all samples. One process of each node reads, and the other processes wait.
    """
    spec = _measured(dataset, name)
    whole = replace(dataset, seed=None, steps=(), map_steps=(), tokenizing=None, packing=None, specs=((name, spec),))
    key = f"lengths:{json.dumps([name, spec.to_dict(), on_error])}"
    hint = "To avoid this, give an array of lengths."
    if dataset.map_steps:
        hint = f"These are the lengths of the stored field, before {_functions(dataset)}. {hint}"
    compute = partial(_scan, whole, name, on_error)
    return sample_value_cache.scanned(whole, f"batch_by `{name}`", key, compute, hint)  # type: ignore[no-any-return]


def _measured(dataset: Dataset, name: str) -> FieldSpec:
    """Return the field to read for the lengths of a field."""
    if any(step.is_source for step in dataset.map_steps):
        raise ConfigError(
            f"length: `{name}` is made by decoding the dataset's files, so its length is not known beforehand",
            where="batch_by",
            hint="give an array of one length per sample",
        )
    specs = dataset.batch_fields()
    if name not in specs:
        specs = {**dict(dataset.schema().specs), **specs}
    spec = specs[name].unpadded if name in specs else None
    if isinstance(spec, RaggedSpec) and spec.audio is not None:
        return TensorSpec("int64", (), spec.parts or (name,), audio=replace(spec.audio, measures=True))
    if isinstance(spec, RaggedSpec) and spec.follows:  # count the stored items, because a crop can remove some
        is_split = isinstance(spec, BoxesSpec) and spec.is_split
        parts, shape = (spec.parts[:1], ()) if is_split else (spec.parts, spec.shape)
        dtype = "float64" if isinstance(spec, (BoxesSpec, KeypointsSpec)) else spec.dtype
        return RaggedSpec(dtype, shape, parts, default=spec.default, presence=spec.presence)
    if isinstance(spec, TextSpec):  # read bytes: a text that is not UTF-8 raises an error in its batch
        default = None if spec.default is None else spec.default.encode()
        return RawSpec(presence=spec.presence, parts=spec.parts, default=default)
    if isinstance(spec, RawListSpec):
        return replace(spec, errors=None)
    if isinstance(spec, (RaggedSpec, RawSpec)):
        return spec
    if isinstance(spec, TensorSpec) and spec.shape == () and "int" in spec.dtype:
        return spec
    made = dataset.tokenizing
    if made is not None and name == made.into:
        text = ", ".join(made.fields)
        found = f"is made from {text} by tokenize()"
        hint = f'give length="{made.fields[0]}" (the length of a text is its bytes), or an array of numbers of tokens'
    else:
        found = f"is {spec}" if spec is not None else f"does not exist (fields: {', '.join(specs)})"
        hint = None
        if dataset.map_steps:
            hint = f"for a field that {_functions(dataset)} makes, give an array of one length per sample"
    raise ConfigError(
        f"length: `{name}` {found}; it must be a ragged, padded, raw, text or raw_list field, or an integer field of "
        "shape ()",
        where="batch_by",
        hint=hint,
    )


def _functions(dataset: Dataset) -> str:
    return " and ".join(sorted({"decode()" if step.decodes else "map()" for step in dataset.map_steps}))


def _scan(dataset: Dataset, name: str, on_error: str) -> Lengths:
    import numpy as np

    from penstock.feed.loader import Loader

    def lengths(batch: dict[str, Any]) -> Lengths:
        column = batch[name]
        if hasattr(column, "offsets"):
            found = np.diff(column.offsets)
        elif isinstance(column, list):
            found = np.array([len(value) for value in column], dtype=np.int64)
        else:
            found = column
        return _checked(found, len(found))

    return sample_value_cache.in_batches(dataset, lengths, on_error, Loader)  # type: ignore[no-any-return]

# SPDX-License-Identifier: Apache-2.0
"""Adapter that provides a dataset as a `tf.data.Dataset`. The only module of the feed that imports TensorFlow.

The feed's own threads read and decode. `tf.data` receives whole batches, and runs only the steps that the user adds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from penstock.errors import ConfigError, Unsupported
from penstock.feed.batch_columns import Ragged
from penstock.feed.fields import NestedSpec, PaddedSpec, PresentSpec, RaggedSpec, RawListSpec, TensorSpec
from penstock.feed.image_fields import ImageSpec
from penstock.feed.loader import Loader

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.feed.dataset_base import DatasetBase
    from penstock.feed.fields import FieldSpec

__all__ = ["dataset"]


def dataset(ds: DatasetBase, *, batch: int | None = None, epoch: int = 0, **arguments: Any) -> Any:
    """Return a batched `tf.data.Dataset` of dicts of tensors: `penstock.tf.dataset(ds, batch=32)`.

    Tensors and images are `tf.Tensor`s, `ragged` fields are `tf.RaggedTensor`s with one ragged dimension, raw fields
    are strings, and `raw_list` fields are `tf.RaggedTensor`s of strings. Lists of lists are `tf.RaggedTensor`s with one
    ragged dimension for each level. The tokens of `tokenize` are `tf.RaggedTensor`s, and the windows of `pack` are
    `tf.Tensor`s.

    Each pass over the `tf.data.Dataset` reads the next epoch, beginning with `epoch`. To save a state and resume from
    it, iterate a `penstock.Loader` instead, because `tf.data` prefetches and does not report which batches were
    consumed.

    Args:
        ds: Dataset from `penstock.open(url)`, with or without `.fields(...)`.
        batch: Number of samples in this rank's batch. Alternatively, give `global_batch=`, the number over all ranks.
            Other arguments are those of `penstock.Loader`.
    Raises:
        ConfigError: The dataset uses `map` without `decode`, or `collate` was given. Use the `map` of `tf.data`
            instead.
        Unsupported: A column that `decode` returned is neither an array nor a list of texts.
    """
    if ds.map_steps and not ds.decodes:
        raise ConfigError(
            "map: not supported for tf.data, which has its own map",
            where="map",
            hint="use dataset(ds, batch=...).map(fn)",
        )
    if arguments.get("collate") is not None:
        raise ConfigError(
            "collate: not supported for tf.data, which must know the batch's types beforehand",
            where="collate",
            hint="use dataset(ds, batch=...).map(fn)",
        )
    if batch is not None:
        arguments["batch_size"] = batch
    loader = Loader(ds, **arguments)
    loader.set_epoch(epoch)
    fields = {} if ds.is_mapped else ds.batch_fields()
    if ds.is_mapped:
        # Read the first batch twice, to find the types that the functions or the tokenizer return.
        signature = {name: _type_of(name, column) for name, column in next(iter(loader), {}).items()}
        loader.set_epoch(epoch)
    else:
        signature = {name: _type_spec(spec) for name, spec in fields.items()}
        for spec in fields.values():
            if isinstance(spec, PaddedSpec) and spec.mask is not None:
                signature[spec.mask] = tf.TensorSpec((None, spec.width), tf.bool)
        if loader.tail == "pad":
            signature["weight"] = tf.TensorSpec((None,), tf.float32)

    def batches() -> Iterator[dict[str, Any]]:
        # With a ragged tail, a rank's last slice can be empty. An empty slice is still delivered as a batch, so that
        # all ranks make the same number of steps.
        for made in loader:
            yield {name: _column(fields.get(name), column) for name, column in made.items()}

    made = tf.data.Dataset.from_generator(batches, output_signature=signature)
    # In these cases, the number of batches is unknown or differs from epoch to epoch.
    if not loader.has_fixed_positions or arguments.get("batch_by") is not None or ds.packing is not None:
        return made
    return made.apply(tf.data.experimental.assert_cardinality(len(loader)))


def _type_spec(spec: FieldSpec) -> Any:
    """Return the `tf.data` type of a field in a batch."""
    if isinstance(spec, RaggedSpec):
        return tf.RaggedTensorSpec((None, None, *spec.shape), tf.as_dtype(spec.dtype), ragged_rank=1)
    if isinstance(spec, PaddedSpec):
        return tf.TensorSpec((None, spec.width, *spec.shape), tf.as_dtype(spec.dtype))
    if isinstance(spec, RawListSpec):
        return tf.RaggedTensorSpec((None, None), tf.string, ragged_rank=1)
    if isinstance(spec, NestedSpec):
        dtype = tf.string if spec.dtype is None else tf.as_dtype(spec.dtype)
        return tf.RaggedTensorSpec((None,) * (spec.depth + 1) + spec.shape, dtype, ragged_rank=spec.depth)
    if isinstance(spec, (TensorSpec, ImageSpec, PresentSpec)):
        return tf.TensorSpec((None, *spec.shape), tf.as_dtype(spec.dtype))
    return tf.TensorSpec((None,), tf.string)


def _type_of(name: str, column: Any) -> Any:
    """Return the `tf.data` type of a column that a function returned."""
    if isinstance(column, Ragged):
        values, depth = column.flat_values, len(column.nested_offsets)
        shape = (None,) * (depth + 1) + values.shape[1:]
        return tf.RaggedTensorSpec(shape, tf.as_dtype(values.dtype), ragged_rank=depth)
    if not isinstance(column, list):
        return tf.TensorSpec((None, *column.shape[1:]), tf.as_dtype(column.dtype))
    others = [value for value in column if not isinstance(value, (str, bytes))]
    if not others:
        return tf.TensorSpec((None,), tf.string)
    raise Unsupported(
        f"decode: `{name}` is a list of {type(others[0]).__name__} values, but tf.data supports only arrays of equal "
        "shape, str and bytes",
        hint="pad the arrays in the function",
    )


def _column(spec: FieldSpec | None, column: Any) -> Any:
    if isinstance(column, Ragged):
        return tf.RaggedTensor.from_nested_row_splits(column.flat_values, column.nested_offsets, validate=False)
    if isinstance(spec, RawListSpec):
        return _strings(column, 1)
    if isinstance(spec, NestedSpec):
        return _strings(column, spec.depth)
    return column


def _strings(lists: list[Any], depth: int) -> Any:
    """Convert lists of byte strings to a `tf.RaggedTensor`."""
    if depth == 0:
        return tf.constant(lists, tf.string)
    items = _strings([item for each in lists for item in each], depth - 1)
    return tf.RaggedTensor.from_row_lengths(items, [len(each) for each in lists], validate=False)

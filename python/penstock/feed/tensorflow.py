# SPDX-License-Identifier: Apache-2.0
"""A dataset as a `tf.data.Dataset`. The only module of the feed that imports TensorFlow.

The feed's own threads read and decode; `tf.data` gets whole batches, and what is chained behind them is its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from penstock.errors import ConfigError
from penstock.feed.loader import Loader

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.feed.shape import Shaped

__all__ = ["dataset"]


def dataset(ds: Shaped, *, batch: int | None = None, epoch: int = 0, **arguments: Any) -> Any:
    """A `tf.data.Dataset` of dicts of tensors, batched: `penstock.tf.dataset(ds, batch=32)`.

    Each pass over it is the next epoch, from `epoch` on. For a state that outlives the process, iterate a
    `penstock.Loader` instead: `tf.data` asks ahead, and cannot say what was consumed.

    Args:
        ds: From `penstock.open(url).fields(...)`.
        batch: Samples in a batch of this rank; or `global_batch=`, over all ranks. More arguments are `penstock.Loader`'s.
    Raises:
        ConfigError: A dataset with `map` (chain `tf.data`'s own), or fields that are not of one shape.
    """
    if ds.mappings:
        raise ConfigError("map: in tf.data it is tf.data's own", where="map", hint="dataset(ds, batch=...).map(fn)")
    if batch is not None:
        arguments["batch_size"] = batch
    loader = Loader(ds, **arguments)
    loader.set_epoch(epoch)
    signature = {}
    for name, spec in ds.specs:
        if not hasattr(spec, "shape") or not hasattr(spec, "dtype"):
            raise ConfigError(f"fields: {name} is of no one shape, which tf.data asks for", where="fields")
        signature[name] = tf.TensorSpec((None, *spec.shape), tf.as_dtype(spec.dtype))
    if loader.tail == "pad":
        signature["weight"] = tf.TensorSpec((None,), tf.float32)

    def batches() -> Iterator[dict[str, Any]]:
        # Empty slices of a ragged tail have no rows, and are batches still: ranks make equal steps.
        yield from loader

    made = tf.data.Dataset.from_generator(batches, output_signature=signature)
    return made.apply(tf.data.experimental.assert_cardinality(len(loader)))

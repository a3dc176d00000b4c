# SPDX-License-Identifier: Apache-2.0
"""Loader that yields global JAX arrays, sharded by a `NamedSharding`. The only module of the feed that imports jax.

Each process reads only the rows of its own devices. A JAX process therefore corresponds to a rank in torch.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from penstock.errors import ConfigError
from penstock.feed.fields import PaddedSpec, PresentSpec, TensorSpec
from penstock.feed.image_fields import ImageSpec
from penstock.feed.loader import BaseLoader
from penstock.feed.numpy import array

if TYPE_CHECKING:
    from penstock.feed.dataset_base import DatasetBase

__all__ = ["Loader"]


class Loader(BaseLoader[dict[str, Any]]):
    """Loader that yields dicts of `jax.Array`. Fields must have a fixed shape or be padded. Without a sharding, arrays
    are on the default device. With a sharding, each array is a global array of `global_batch` rows, split along the
    first axis. Each process reads only its own rows.

    If JAX's x64 mode is off, 64-bit fields become 32-bit fields. float64 is rounded to float32. A value that is out of
    range of the 32-bit type is a `ConfigError`.
    """

    def __init__(self, dataset: DatasetBase, *, sharding: Any = None, **arguments: Any) -> None:
        """Like `penstock.Loader`, with one more argument:

        Args:
            sharding: A `jax.sharding.NamedSharding` that splits the first axis (`P("data")`). `tail` must be `drop`
                (the default) or `pad`, so that all batches are full. The rows of each process must be contiguous, equal
                in number, and in the order of the process numbers, as with a mesh of `jax.make_mesh`.
        """
        if sharding is not None:
            arguments.setdefault("tail", "drop")
            if arguments["tail"] == "ragged":
                raise ConfigError(
                    "tail: a sharded array cannot be ragged", where="tail", hint='use tail="drop" or tail="pad"'
                )
        super().__init__(dataset, **arguments)
        self.sharding = sharding
        if sharding is not None:
            self._check()

    def _place(self) -> tuple[int, int]:
        return int(jax.process_index()), int(jax.process_count())

    def _default_tail(self, on_error: str) -> str:
        return self._group_tail(on_error)

    def get_state(self) -> bytes:
        """Return `state_dict()` as JSON. Iterators of Grain have the same method, so `grain.checkpoint.CheckpointSave`
        can save a loader with Orbax.
        """
        return json.dumps(self.state_dict()).encode()

    def set_state(self, state: bytes) -> None:
        """Make the next iterator continue at a state from `get_state`, like `load_state_dict`."""
        self.load_state_dict(json.loads(state))

    def start_prefetch(self) -> None:
        """Do nothing. Grain calls this method after a restore, but a loader starts to read when it is iterated."""

    def _check(self) -> None:
        """Check that this process's devices need exactly the rows that this rank reads."""
        if self._batch_by is not None and not self._batch_by.is_even(self.world):
            raise ConfigError(
                f"batch_by: all {self.world} processes must have the same number of rows of a sharded array",
                where="batch_by",
                hint="give sizes per rank: batch_sizes, or tokens",
            )
        # Batches by length have varying numbers of rows, so check with a number that all devices divide evenly.
        size = self.global_batch if self._batch_by is None else self.sharding.mesh.size * self.world
        rows = self._cut(1).devices_indices_map((size,))
        mine = [rows[device][0].indices(size)[:2] for device in self.sharding.addressable_devices]
        have = min(start for start, _ in mine), max(stop for _, stop in mine)
        want = size * self.rank // self.world, size * (self.rank + 1) // self.world
        if have != want:
            raise ConfigError(
                f"sharding: the devices of process {self.rank} of {self.world} hold rows {have[0]} to {have[1]} of a batch"
                f" of {size}, but its feed reads {want[0]} to {want[1]}",
                where="sharding",
                hint="build the mesh so that its first axis follows the order of the processes",
            )

    def _prepare(self) -> None:
        # The types of the outputs of functions are known only after the first batch.
        if self.dataset.is_mapped or self._collate is not None:
            return
        for name, spec in self.dataset.batch_fields().items():
            if not isinstance(spec, (TensorSpec, ImageSpec, PaddedSpec, PresentSpec)):
                raise _no_array(name, str(spec))
            if self.sharding is not None and isinstance(spec, PaddedSpec) and spec.to == "longest":
                raise ConfigError(
                    f"fields: {name} is padded to the longest sample of each process, but a sharded array has one shape",
                    where="fields",
                    hint='pad the field: .padded(512), or .padded("bucket") with batch_by',
                )

    def _adapt(self, tensors: dict[str, Any]) -> tuple[dict[str, Any], float]:
        began = time.perf_counter()
        for name, value in tensors.items():
            if hasattr(value, "offsets"):  # a field of texts or of `tokenize`, which `_prepare` does not see
                raise _no_array(name, "of varying length")
        batch = {
            name: value if isinstance(value, list) else self._put(_in_range(name, array(value)))
            for name, value in tensors.items()
        }
        return batch, time.perf_counter() - began

    def _put(self, rows: np.ndarray[Any, Any]) -> Any:
        if self.sharding is None:
            return jax.device_put(rows)
        size = self.global_batch if self._batch_by is None else len(rows) * self.world
        shape = (size, *rows.shape[1:])
        first = size * self.rank // self.world
        want = size * (self.rank + 1) // self.world - first
        if len(rows) != want:
            raise ConfigError(
                f"sharding: a batch of {len(rows):,} rows cannot be divided, because the sharding needs {want:,}",
                where="sharding",
                hint="if decode() drops or adds samples, use decode(fn, rebatch=True)",
            )

        def part(index: tuple[slice, ...]) -> np.ndarray[Any, Any]:
            start, stop, _ = index[0].indices(size)
            return np.asarray(rows[(slice(start - first, stop - first), *index[1:])])

        return jax.make_array_from_callback(shape, self._cut(len(shape)), part)

    def _cut(self, sides: int) -> Any:
        """Return the sharding for an array with this number of dimensions. Dimensions that the user's sharding does not
        mention are not split.
        """
        spec = tuple(self.sharding.spec)[:sides]
        return jax.sharding.NamedSharding(self.sharding.mesh, jax.sharding.PartitionSpec(*spec))


def _no_array(name: str, kind: str) -> ConfigError:
    return ConfigError(
        f"fields: {name} is {kind}, but JAX supports only arrays of numbers with a fixed shape",
        where="fields",
        hint=f"leave {name} out of .fields(...), make it a tensor, an image or a padded field, or use penstock.Loader",
    )


def _in_range(name: str, rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the rows if every value fits the type to which JAX converts them.

    Raises:
        ConfigError: A value is out of range; the message contains the value.
    """
    kept = np.dtype(jax.dtypes.canonicalize_dtype(rows.dtype))
    if kept == rows.dtype or rows.size == 0:
        return rows
    limits: Any = np.finfo(kept) if rows.dtype.kind == "f" else np.iinfo(kept)
    # NaN passes, because its comparisons are false. Infinities pass, because they stay infinite in float32.
    bad = ((rows < limits.min) | (rows > limits.max)) & np.isfinite(rows)
    if bad.any():
        raise ConfigError(
            f"fields: {name} contains {rows[bad][0]}, which does not fit {kept}; JAX converts {rows.dtype} to {kept} "
            "while x64 is off",
            where="fields",
            hint="set JAX_ENABLE_X64=1, or jax.config.update('jax_enable_x64', True) before the first array",
        )
    return rows

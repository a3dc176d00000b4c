# SPDX-License-Identifier: Apache-2.0
"""Unindexed mode: the loader's behaviour when records are not counted.

Manages the state of one rank, which is (object, record), and rejects a state that was saved with a different world
size. With W ranks, a rank reads every W-th object of the epoch's order. The number of records before an object is
unknown, so a state cannot be converted to another world size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock import _native
from penstock.errors import ConfigError
from penstock.feed.states import VERSIONS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.feed.dataset import Dataset

__all__ = ["NOTICE", "Unindexed"]

VERSION = 1
"""Version of the rule by which ranks share the objects."""

NOTICE = "unindexed: a position in this rank's own objects, valid only for the same world size"

_RECORDS = 1 << 40
"""Factor in the cursor of native passes, which is object x 2^40 + record."""


class Unindexed:
    """State and feed of a loader whose dataset is unindexed."""

    def __init__(self, dataset: Dataset, *, global_batch: int, rank: int, world: int, tail: str) -> None:
        if dataset.steps or dataset.map_steps:
            step = "decode" if dataset.decodes else "map"
            what = dataset.steps[0][0] if dataset.steps else step
            raise ConfigError(
                f"{what}: requires sample positions, which an unindexed dataset does not have",
                where=what,
                hint="open the dataset without indexed=False",
            )
        dataset.caches()  # raises an error if a cache was requested
        if tail == "pad":
            raise ConfigError(
                'tail: "pad" is not supported for an unindexed dataset, because its ranks end after different numbers of '
                "batches",
                where="tail",
                hint='use "drop" or "ragged"',
            )
        if global_batch % world:
            raise ConfigError(
                f"global_batch: must be a multiple of the number of ranks for an unindexed dataset (got {global_batch} "
                f"for {world} ranks)",
                where="global_batch",
            )
        self.dataset, self.rank, self.world, self.tail = dataset, rank, world, tail
        self.batch = global_batch // world

    def feed(self, fields: str, settings: str, env: dict[str, str]) -> _native.UnindexedFeed:
        """Create a native feed in this process."""
        return _native.UnindexedFeed(
            self.dataset.source,
            fields,
            settings,
            env,
            seed=self.dataset.seed,
            batch=self.batch,
            rank=self.rank,
            world=self.world,
            drops_tail=self.tail == "drop",
        )

    def is_spent(self, cursor: int) -> bool:
        """True if this rank has read all its objects at this cursor."""
        objects = self.dataset.source.objects
        return cursor >= -(-max(objects - self.rank, 0) // self.world) * _RECORDS > 0

    def identity(self) -> dict[str, Any]:
        """Return the values that must be equal in a state and in this loader."""
        return {
            **VERSIONS,
            "unindexed": VERSION,
            "fingerprint": self.dataset.source.fingerprint,
            "seed": self.dataset.seed,
            "world": self.world,
            "rank": self.rank,
        }

    def state(self, epoch: int, cursor: int) -> dict[str, Any]:
        """Return the state of this rank, as JSON under 1 KB. States of other ranks are different."""
        place = {"epoch": epoch, "object": cursor // _RECORDS, "record": cursor % _RECORDS}
        return {**self.identity(), **place, "promise": NOTICE}

    def cursor(self, state: Mapping[str, Any]) -> tuple[int, int]:
        """Return the epoch and cursor of a state.

        Raises:
            ConfigError: The state belongs to another rank, world size or dataset. The message contains the values of
                the state and of this loader.
        """
        if "unindexed" not in state:
            raise ConfigError(
                "state: saved from an indexed dataset, but this dataset is unindexed",
                where="state",
                hint="open the dataset without indexed=False to continue from this state",
            )
        mine = self.identity()
        for name, value in mine.items():
            if state.get(name, 1 if name == "order" else None) != value:
                raise ConfigError(
                    f"state: {name} is {state.get(name)!r}, but this loader's {name} is {value!r}"
                    + (
                        "; unindexed ranks can continue only with the same rank and world"
                        if name in ("rank", "world")
                        else ""
                    ),
                    where="state",
                    hint="count the records (penstock index --records) to continue with any number of ranks"
                    if name in ("rank", "world")
                    else None,
                )
        epoch, place, record = (
            _number(state, name, most) for name, most in (("epoch", 2**63), ("object", 1 << 24), ("record", _RECORDS))
        )
        return epoch, place * _RECORDS + record


def _number(state: Mapping[str, Any], name: str, most: int) -> int:
    number = state.get(name)
    if not isinstance(number, int) or not 0 <= number < most:
        raise ConfigError(f"state: {name} {number!r} is not valid", where="state")
    return number

# SPDX-License-Identifier: Apache-2.0
"""Saved states of a loader over counted records. Checks that a state and a dataset agree. Reads no samples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock import _native
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.feed.dataset_base import DatasetBase

__all__ = ["STATE_VERSION", "check", "make"]

STATE_VERSION = 1

_ADVICE = {
    "version": "load the state with the version of Penstock that saved it",
    "order": "load the state with the version of Penstock that saved it",
    "seed": "give shuffle() the seed of the state",
    "window": "give shuffle() the window of the state",
    "samples": "give the dataset the same steps (take, shard, repeat) as before",
    "steps": "give the dataset the same steps (take, shard, repeat) as before",
}


def make(dataset: DatasetBase, epoch: int, cursor: int) -> dict[str, Any]:
    """Return the state after `cursor` samples of `epoch`, as JSON under 1 KB."""
    return {
        "version": STATE_VERSION,
        "order": _native.ORDER_VERSION,
        **dataset.identity(),
        "epoch": epoch,
        "cursor": cursor,
    }


def check(state: Mapping[str, Any], dataset: DatasetBase) -> tuple[int, int]:
    """Return the epoch and cursor of a state.

    Raises:
        ConfigError: The state belongs to another dataset or order, or its numbers are invalid. The message contains
            both values.
    """
    if "unindexed" in state:
        raise ConfigError(
            "state: saved from an unindexed dataset, but this dataset is indexed",
            where="state",
            hint="use penstock.open(url, indexed=False) to continue from this state",
        )
    mine = make(dataset, 0, 0)
    for name in ("version", "order", "fingerprint", "seed", "window", "samples", "steps"):
        if state.get(name) == mine.get(name):
            continue
        if name == "fingerprint":
            raise _changed(state, mine)
        raise ConfigError(
            f"state: {name} is {state.get(name)!r}, but this loader's {name} is {mine.get(name)!r}",
            where="state",
            hint=_ADVICE[name],
        )
    epoch, cursor = state.get("epoch"), state.get("cursor")
    if not isinstance(epoch, int) or not 0 <= epoch < 2**63:
        raise ConfigError(f"state: epoch {epoch!r} is not a whole number from 0 to 2^63 - 1", where="state")
    if not isinstance(cursor, int) or not 0 <= cursor <= mine["samples"]:
        raise ConfigError(f"state: cursor {cursor!r} is not within 0 to {mine['samples']}", where="state")
    return epoch, cursor


def _changed(state: Mapping[str, Any], mine: Mapping[str, Any]) -> ConfigError:
    was, now = state.get("samples"), mine["samples"]
    if not isinstance(was, int):
        change = f"{now:,} samples now"
    elif was == now:
        change = f"{now:,} samples then and now, but different objects, or different parts or weights of a mixture"
    else:
        change = f"{was:,} samples then and {now:,} now ({now - was:+,})"
    return ConfigError(
        f"state: saved from a different dataset: {change}; the state's fingerprint is "
        f"{state.get('fingerprint')!r}, but this loader's is {mine['fingerprint']!r}",
        where="state",
        hint="open the dataset as it was with its manifest (penstock index URL -o FILE; penstock.open(url, FILE)), "
        "or start a new run without the state",
    )

# SPDX-License-Identifier: Apache-2.0
"""Saved states of a loader over counted records. Checks that a state belongs to a dataset, and finds the old part of a
dataset that has grown. Reads no samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, get_args

from penstock import _native
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock.feed.dataset_base import DatasetBase

__all__ = ["VERSIONS", "Grown", "advice", "check", "for_rank", "make", "of_one_rank", "old_part"]

VERSIONS = {"version": 1, "order": _native.ORDER_VERSION}
"""Versions of the state format and of the sample order, which every state contains. States of packed and unindexed
datasets from before version 0.1 do not have `order`; the order is then 1.
"""

Grown = Literal["refuse", "finish-old-then-new"]
"""Rule for a state that was saved when the dataset had fewer objects; see `BaseLoader.load_state_dict`."""

_OF_ONE_RANK = ("rank", "epoch", "cursor", "document", "token", "object", "record", "row", "outputs")
"""Values that differ between ranks in a state of a packed, unindexed or rebatched dataset."""

_ADVICE = {
    "version": "load the state with the version of Penstock that saved it",
    "order": "load the state with the version of Penstock that saved it",
    "seed": "give shuffle() the seed of the state",
    "window": "give shuffle() the window of the state",
    "samples": "give the dataset the same steps (take, shard, select, filter, resample, repeat) as before",
    "steps": "give the dataset the same steps (take, shard, select, filter, resample, repeat) as before",
    "batches": "give batch_by the lengths and the sizes of the state. Sizes per rank are those of its number of ranks; "
    "to resume on another number, give sizes over all ranks (global_batch_sizes or global_tokens)",
    "tokenizer": "give tokenize() the tokenizer (or the key) that the state was saved with",
}


def make(dataset: DatasetBase, epoch: int, cursor: int, batches: str | None = None) -> dict[str, Any]:
    """Return the state after `cursor` samples of `epoch`, as JSON under 1 KB. `batches` is the text that identifies the
    plan of the batches.
    """
    return {
        **VERSIONS,
        **dataset.identity(),
        **({} if batches is None else {"batches": batches}),
        "epoch": epoch,
        "cursor": cursor,
    }


def of_one_rank(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state with the position of one rank under `ranks`, by the number of the rank.

    `torch.distributed.checkpoint` stores one value for each name, so the positions of different ranks need different
    names. A state without a rank is valid for all ranks, and is returned unchanged.
    """
    if "rank" not in state:
        return dict(state)
    mine = {name: state[name] for name in _OF_ONE_RANK if name in state}
    return {name: state[name] for name in state if name not in mine} | {"ranks": {str(state["rank"]): mine}}


def for_rank(state: Mapping[str, Any], rank: int) -> Mapping[str, Any]:
    """Return a state with the position of `rank`. If the state does not contain this position, return the position of
    another rank, so that an error can name both ranks.

    Raises:
        ConfigError: The state is not a dict.
    """
    if not isinstance(state, Mapping):
        raise ConfigError(
            f"state: must be a dict that state_dict() returned (got a {type(state).__name__})",
            where="state",
            hint="json.loads() converts a text to a dict",
        )
    ranks = state.get("ranks")
    if not isinstance(ranks, Mapping) or not ranks:
        return state
    part = ranks.get(str(rank), next(iter(ranks.values())))
    return {name: value for name, value in state.items() if name != "ranks"} | dict(part)


def advice(name: str) -> str | None:
    """Return a hint for a state in which the value of `name` differs from the dataset's value."""
    return _ADVICE.get(name)


def check(state: Mapping[str, Any], dataset: DatasetBase, batches: str | None = None) -> tuple[int, int]:
    """Return the epoch and cursor of a state.

    Raises:
        ConfigError: The state belongs to another dataset or order, or its numbers are invalid. The message contains the
            values of the state and of the dataset.
    """
    if "unindexed" in state:
        raise ConfigError(
            "state: saved from an unindexed dataset, but this dataset is indexed",
            where="state",
            hint="use penstock.open(url, indexed=False) to continue from this state",
        )
    if "outputs" in state and not dataset.rebatches:
        raise ConfigError(
            "state: saved with decode(rebatch=True), but this loader's dataset does not use rebatch=True",
            where="state",
            hint="set rebatch=True in decode() to continue from this state",
        )
    if "packed" in state:
        raise ConfigError(
            "state: saved from a packed dataset, but this dataset is not packed",
            where="state",
            hint="call pack() with the same arguments as before",
        )
    mine = make(dataset, 0, 0, batches)
    for name in ("version", "order", "fingerprint", "seed", "window", "samples", "steps", "tokenizer", "batches"):
        if state.get(name) == mine.get(name):
            continue
        if name == "fingerprint":
            raise _changed(state, mine, has_old_part=dataset.part_with(state) is not None)
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


def old_part(state: Mapping[str, Any], dataset: DatasetBase, grown: Grown) -> DatasetBase | None:
    """Return the part of a grown dataset from which the state was saved. None if the dataset did not change, or if the
    state must be rejected.

    Raises:
        ConfigError: `grown` is not a known rule.
    """
    if grown not in get_args(Grown):
        raise ConfigError(f"grown: {grown!r} is not one of {', '.join(get_args(Grown))}", where="grown")
    if grown == "refuse" or "unindexed" in state or state.get("fingerprint") == dataset.fingerprint:
        return None
    return dataset.part_with(state)


def _changed(state: Mapping[str, Any], mine: Mapping[str, Any], *, has_old_part: bool) -> ConfigError:
    parts = [_difference(name, state.get(name), mine.get(name)) for name in ("objects", "samples")]
    change = ", ".join(part for part in parts if part)
    if state.get("samples") == mine.get("samples"):
        change += "; the objects differ, or the parts or weights of a mixture differ"
    if has_old_part:
        hint = (
            'all objects of the state still exist: load_state_dict(state, grown="finish-old-then-new") finishes its epoch '
            "with them, and later epochs use all objects"
        )
    else:
        hint = (
            "open the dataset as it was with its manifest (penstock index URL -o FILE; penstock.open(url, FILE)), "
            "or start a new run without the state"
        )
        if "objects" not in mine:
            hint = f"a mixture cannot be resumed after its parts grew; {hint}"
    return ConfigError(
        f"state: saved from a different dataset: {change}; the state's fingerprint is "
        f"{state.get('fingerprint')!r}, but this loader's is {mine['fingerprint']!r}",
        where="state",
        hint=hint,
    )


def _difference(name: str, was: object, now: object) -> str:
    if not isinstance(now, int):
        return ""
    if not isinstance(was, int):
        return f"{now:,} {name} now"
    return f"{now:,} {name} then and now" if was == now else f"{was:,} {name} then and {now:,} now ({now - was:+,})"

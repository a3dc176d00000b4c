# SPDX-License-Identifier: Apache-2.0
"""States of loaders with `decode(rebatch=True)`. A state belongs to one rank, because other ranks do not know the
number of outputs before a batch of this rank.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.feed.loader import BaseLoader

__all__ = ["FUNCTION_HINT", "NOTICE", "Place", "check_loader", "place_of_state", "state_of_place"]

NOTICE = "rebatched: a position of this rank, valid only for the same rank, world size and global batch"

FUNCTION_HINT = (
    "give decode() the function of the state; or set `outputs` of each rank in the state to 0, which delivers this "
    "sample's outputs again"
)

_BITS = 32


class Place(NamedTuple):
    """Position of a rank: first position of the source batch, row in the rank's slice of this batch, and number of
    delivered outputs of this row.
    """

    start: int
    row: int = 0
    outputs: int = 0

    def cursor(self) -> int:
        """Return the position as the cursor of a pass."""
        return self.start << 2 * _BITS | self.row << _BITS | self.outputs

    @classmethod
    def of(cls, cursor: int) -> Place:
        """Convert the cursor of a pass to a position."""
        mask = (1 << _BITS) - 1
        return cls(cursor >> 2 * _BITS, cursor >> _BITS & mask, cursor & mask)


def check_loader(loader: BaseLoader[Any]) -> None:
    """Check that a loader's settings allow rebatching.

    Raises:
        ConfigError: The tail is padded, or the ranks' batches would differ in size.
    """
    if loader.tail == "pad":
        raise ConfigError(
            'tail: "pad" is not supported with decode(rebatch=True), because ranks end after different numbers of batches',
            where="tail",
            hint='use "drop" or "ragged"',
        )
    if loader.global_batch % loader.world:
        raise ConfigError(
            f"global_batch: must be a multiple of the number of ranks with decode(rebatch=True) (got "
            f"{loader.global_batch} for {loader.world} ranks)",
            where="global_batch",
        )


def _function(loader: BaseLoader[Any]) -> str | None:
    """Return the digest of the function that makes the outputs; None if the digest cannot be computed."""
    return next(step.digest for step in loader.dataset.map_steps if step.rebatch)


def _mine(loader: BaseLoader[Any]) -> dict[str, int]:
    return {"world": loader.world, "rank": loader.rank, "global_batch": loader.global_batch}


def state_of_place(loader: BaseLoader[Any], place: Place) -> dict[str, Any]:
    """Return the part of a state that is specific to rebatching."""
    digest = _function(loader)
    known = {} if digest is None else {"function": digest}
    return {"row": place.row, "outputs": place.outputs, **known, **_mine(loader), "promise": NOTICE}


def place_of_state(state: Mapping[str, Any], loader: BaseLoader[Any], start: int) -> Place:
    """Return the position in a state. `start` is the first position of the state's source batch.

    Raises:
        ConfigError: The state belongs to another rank, number of ranks or batch size, or to a loader that does not
            rebatch. Or the state's position is between two outputs of one sample, but the function has changed.
    """
    if "outputs" not in state:
        raise ConfigError(
            "state: saved without decode(rebatch=True), but this loader's dataset uses rebatch=True",
            where="state",
            hint="remove rebatch=True to continue from this state",
        )
    for name, value in _mine(loader).items():
        if state.get(name) != value:
            raise ConfigError(
                f"state: {name} is {state.get(name)!r}, but this loader's {name} is {value!r}; with "
                "decode(rebatch=True), a state is valid only for the same rank, world size and global batch",
                where="state",
                hint="load each rank's own state; without rebatch=True, any rank can load it",
            )
    row, outputs = state.get("row"), state["outputs"]
    for name, number, end in (("row", row, loader.global_batch // loader.world), ("outputs", outputs, 1 << _BITS)):
        if not isinstance(number, int) or not 0 <= number < end:
            raise ConfigError(f"state: {name} {number!r} is not valid", where="state")
    saved, mine = state.get("function"), _function(loader)
    if outputs and None not in (saved, mine) and saved != mine:
        raise ConfigError(
            f"state: {outputs:,} outputs of a sample were delivered by function {saved}, but this loader's function is "
            f"{mine}",
            where="state",
            hint=FUNCTION_HINT,
        )
    return Place(start, row, outputs)  # type: ignore[arg-type]  # checked above

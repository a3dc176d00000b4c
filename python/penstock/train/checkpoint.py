# SPDX-License-Identifier: Apache-2.0
"""State of a training as a checkpoint: model, optimiser, loader position and loss curve.

A checkpoint has one value `structure` with all plain values, and one value per tensor. At the place of each tensor, the
structure contains the tensor's name. This preserves the nesting and the keys of the state, which torch's flattened
names lose.
"""

from __future__ import annotations

import pickle
import warnings
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError, Corrupt
from penstock.train.spec import SCHEDULE, flat_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from torch import Tensor

    from penstock.feed.checkpoint.folder import CheckpointFolder

__all__ = ["NAME", "check_unused", "described", "joined", "read", "split"]

NAME = "last.pt"
"""File in which earlier versions stored their only checkpoint. This version can still read it."""

_VERSION = 1
_STRUCTURE = "structure"
_MARK = "penstock tensor"


def split(state: Mapping[str, Any]) -> tuple[Any, dict[str, Tensor]]:
    """Separate a state into its structure and its tensors by name. The containers are copied, the tensors are not."""
    import torch

    tensors: dict[str, Tensor] = {}

    def of(value: Any, path: str) -> Any:
        if isinstance(value, torch.Tensor):
            name = path
            while name in tensors or name == _STRUCTURE:
                name += "~"
            tensors[name] = value.detach()
            return {_MARK: name}
        if isinstance(value, dict):
            return {key: of(one, f"{path}/{key}" if path else str(key)) for key, one in value.items()}
        if type(value) in {list, tuple}:
            return type(value)(of(one, f"{path}/{at}") for at, one in enumerate(value))
        return value

    return of({"version": _VERSION, **state}, ""), tensors


def joined(structure: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Put the tensors back into a structure; inverse of `split`."""
    if isinstance(structure, dict):
        if structure.keys() == {_MARK}:
            return tensors[structure[_MARK]]
        return {key: joined(one, tensors) for key, one in structure.items()}
    if type(structure) in {list, tuple}:
        return type(structure)(joined(one, tensors) for one in structure)
    return structure


def described(state: Mapping[str, Any] | None) -> str:
    """Text that identifies a checkpoint. Ranks compare it to check that they read the same checkpoint."""
    if state is None:
        return "none"
    return f"step {state['steps']:,} of epoch {state['epoch'] + 1} (written as {state.get('id', 'unnamed')})"


def check_unused(folder: CheckpointFolder) -> None:
    """Check that a training that starts from step 0 does not mix its checkpoints with those of another training.

    Raises:
        ConfigError: The folder contains a complete checkpoint.
    """
    if (found := folder.latest()) is not None:
        raise ConfigError(
            f"{folder.url} has checkpoints of another training run, up to step {found.step:,}",
            hint="add --resume to continue that run, or choose an empty folder",
        )


def read(
    folder: CheckpointFolder, learnt: Mapping[str, Any], gather: Callable[[Any], list[Any]] = lambda mine: [mine]
) -> dict[str, Any] | None:
    """Read the latest complete and undamaged checkpoint, with tensors on the CPU; return None if no checkpoint exists.

    Only tensors and plain values are unpickled, so a checkpoint from an untrusted source cannot run code.

    Args:
        gather: Exchanges a value with all ranks. All ranks skip a checkpoint that one rank finds damaged.
    Returns:
        The state, with two more entries: `damaged` has the errors of the skipped checkpoints, by step, and `changed`
        describes the settings in `SCHEDULE` that differ.
    Raises:
        Corrupt: All complete checkpoints are damaged, or the latest is not a checkpoint of a training.
        ConfigError: The checkpoint is from another training; the error describes the difference.
    """
    damaged: dict[int, str] = {}
    found = folder.latest()
    while True:
        values, problem = {}, None
        if found is not None:
            from penstock.feed.checkpoint.reader import read_values

            try:
                values = read_values(folder.url, found.step)
            except Corrupt as error:
                problem = (found.step, str(error))
        problems = [one for one in gather(problem) if one is not None]
        if not problems:
            break
        step, text = min(problems)
        damaged[step] = text
        found = max((one for one in folder.whole() if one.step < step), key=lambda one: one.step, default=None)
    if found is None:
        state = None if folder.path is None else _read_last(folder.path / NAME, learnt)
        if state is None and damaged:
            raise Corrupt(
                max(damaged.items())[1],
                where=folder.url,
                hint="train without --resume, in another folder: no undamaged checkpoint is left",
            )
        return state
    try:
        state = joined(values.pop(_STRUCTURE), values)
    except (KeyError, TypeError, RecursionError):
        state = None
    return {**_checked(state, folder.place(found.step), learnt), "id": found.attempt, "damaged": damaged}


def _read_last(file: Path, learnt: Mapping[str, Any]) -> dict[str, Any] | None:
    """Read the file of earlier versions."""
    if not file.exists():
        return None
    import torch

    try:
        with warnings.catch_warnings(action="ignore"):  # torch warns about pickles before it rejects them
            state = torch.load(file, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, ValueError, EOFError, KeyError, pickle.UnpicklingError) as error:
        first = str(error).splitlines()[0][:160] if str(error) else type(error).__name__
        raise Corrupt(
            f"{file} is not a readable checkpoint: {first}",
            hint="delete it, or train without --resume",
            where=str(file),
        ) from None
    return _checked(state, str(file), learnt)


def _checked(state: Any, place: str, learnt: Mapping[str, Any]) -> dict[str, Any]:
    saved = state.get("learnt") if isinstance(state, dict) and state.get("version") == _VERSION else None
    if not isinstance(saved, dict) or not isinstance(saved.get("settings", {}), dict):
        raise Corrupt(
            f"{place} is not a checkpoint of `penstock train` that this version supports",
            where=place,
            hint="choose another folder, or train without --resume",
        )
    have, want = flat_settings({name: saved[name] for name in learnt if name in saved}), flat_settings(learnt)
    names = [name for name in {**have, **want} if have.get(name) != want.get(name)]
    free = [name for name in names if name.removeprefix("setting ") in SCHEDULE]
    if differs := [name for name in names if name not in free]:
        differences = ", ".join(f"{name} was {_text(have, name)}, but is {_text(want, name)} now" for name in differs)
        raise ConfigError(
            f"{place} was saved by a training with different settings: {differences}",
            hint=f"start in another folder, or resume with the same settings; only {', '.join(SCHEDULE)} may change",
        )
    changed = [f"{name}: {_text(have, name)} -> {_text(want, name)}" for name in free]
    return {**state, "damaged": {}, "changed": changed}


def _text(settings: Mapping[str, Any], name: str) -> str:
    return repr(settings[name]) if name in settings else "unset"

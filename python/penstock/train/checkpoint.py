# SPDX-License-Identifier: Apache-2.0
"""Reads and writes the last checkpoint of a run: model, optimiser, loader position and loss curve in one file."""

from __future__ import annotations

import pickle
import uuid
import warnings
from typing import IO, TYPE_CHECKING, Any

from penstock.bench.results import whole_file
from penstock.errors import ConfigError, Corrupt

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["NAME", "described", "read", "write"]

NAME = "last.pt"
_VERSION = 1


def write(folder: Path, state: Mapping[str, Any]) -> Path:
    """Write `state` to a temporary file, sync it to disk, and rename it to its final name. Called only on rank 0.

    Raises:
        Denied, NoSpace, SystemFault: The folder cannot be written; the previous checkpoint is still intact.
    """
    import torch

    with whole_file(folder / NAME) as out:
        kept = _SavedState(out)
        try:
            torch.save({"version": _VERSION, "id": uuid.uuid4().hex, **state}, kept)
        except RuntimeError as error:  # torch raises this for a failed write, without the file and the reason
            raise kept.refused or error from None
    return folder / NAME


class _SavedState:
    """File wrapper that stores the OSError of a failed write, because torch replaces it with its own error."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.refused: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            return self._file.write(data)
        except OSError as error:
            self.refused = error
            raise

    def flush(self) -> None:
        self._file.flush()


def described(state: Mapping[str, Any] | None) -> str:
    """Text that identifies a checkpoint. Ranks compare it to check that they read the same checkpoint."""
    if state is None:
        return "none"
    return f"step {state['steps']:,} of epoch {state['epoch'] + 1} (written as {state.get('id', 'unnamed')})"


def read(folder: Path, learnt: Mapping[str, Any]) -> dict[str, Any] | None:
    """Read the checkpoint in a folder, with tensors on the CPU; return None if it does not exist.

    Only tensors and plain values are unpickled, so a checkpoint from an untrusted source cannot run code.

    Raises:
        Corrupt: The file is not a Penstock checkpoint, or is damaged.
        ConfigError: The checkpoint is from another training; the error describes the difference.
    """
    file = folder / NAME
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
    if not isinstance(state, dict) or state.get("version") != _VERSION:
        raise Corrupt(f"{file} is not a checkpoint that this version supports", where=str(file))
    differs = {k: (state["learnt"].get(k), v) for k, v in learnt.items() if state["learnt"].get(k) != v}
    if differs:
        differences = ", ".join(f"{name} was {have!r}, but is {want!r} now" for name, (have, want) in differs.items())
        raise ConfigError(
            f"{file} was saved by a training with different settings: {differences}",
            hint="resume with the same settings, or start in another folder",
        )
    return dict(state)

# SPDX-License-Identifier: Apache-2.0
"""Copy a run's outputs to a store at its end: a stage like any other, so that `penstock verify` can check it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = ["archive"]


def archive(folder: Path, url: str, *, extra: Iterable[Path] = ()) -> str:
    """Stages the run's folder, and `extra` folders below it under their own names, to `url/<run>/`.

    Returns:
        The URL that now holds the run.
    Raises:
        PenstockError: The first of what could not be copied; a stage's own errors.
    """
    from penstock import stage

    base = f"{url.rstrip('/')}/{folder.name}/"
    for source, below in ((folder, ""), *((other, f"{other.name}/") for other in extra)):
        if any(file.is_file() for file in source.rglob("*")):
            stage.raise_for_failures(stage.run(str(source), base + below))
    return base

# SPDX-License-Identifier: Apache-2.0
"""Archive: stages a run's outputs to a store at its end, so that `penstock verify` can check the copy."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = ["archive"]


def archive(folder: Path, url: str, *, extra: Iterable[Path] = ()) -> str:
    """Stage the run's folder to `url/<run>/`, with the `extra` folders below it under their own names.

    Returns:
        URL of the archived run.
    Raises:
        PenstockError: The first file that could not be copied, or another error of the stage.
    """
    from penstock import stage

    base = f"{url.rstrip('/')}/{folder.name}/"
    for source, below in ((folder, ""), *((other, f"{other.name}/") for other in extra)):
        if any(file.is_file() for file in source.rglob("*")):
            stage.raise_for_failures(stage.run(str(source), base + below))
    return base

# SPDX-License-Identifier: Apache-2.0
"""Archive: stages a run's outputs to a store at the end of the run. `penstock verify` can check the copy."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = ["archive"]


def archive(folder: Path, url: str, *, extra: Iterable[Path] = ()) -> str:
    """Stage the run's folder to `url/<run>/`, and each of the `extra` folders to `url/<run>/<its name>/`.

    Returns:
        URL of the archived run.
    Raises:
        PenstockError: A file could not be copied (the first such error), or staging failed.
    """
    from penstock import stage

    base = f"{url.rstrip('/')}/{folder.name}/"
    for source, below in ((folder, ""), *((other, f"{other.name}/") for other in extra)):
        if any(file.is_file() for file in source.rglob("*")):
            stage.raise_for_failures(stage.run(str(source), base + below))
    return base

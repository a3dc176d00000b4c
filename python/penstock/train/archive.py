# SPDX-License-Identifier: Apache-2.0
"""Outputs of a run copied to a store at its end, each under its own name, whole or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.errors import NotFound

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = ["archive"]


def archive(folder: Path, url: str, *, extra: Iterable[Path] = ()) -> str:
    """Copies the run's folder, and the files of `extra` folders beside it, to `url/<run>/`.

    Returns:
        The URL that now holds the run.
    """
    from penstock import _native, env

    base = f"{url.rstrip('/')}/{folder.name}/"
    sources = [(file, file.relative_to(folder).as_posix()) for file in _files(folder)]
    for other in extra:
        sources += [(file, f"{other.name}/{file.relative_to(other).as_posix()}") for file in _files(other)]
    for file, name in sources:
        try:
            data = file.read_bytes()
        except FileNotFoundError:
            raise NotFound(f"{file} went away while it was archived", where=str(file)) from None
        _native.put_object(base, name, data, dict(env.read()))
    return base


def _files(folder: Path) -> list[Path]:
    return sorted(f for f in folder.rglob("*") if f.is_file() and not f.name.startswith(".penstock"))

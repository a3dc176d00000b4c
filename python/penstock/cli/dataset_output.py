# SPDX-License-Identifier: Apache-2.0
"""Shared by the verbs of `penstock dataset`: the progress bar, and the error for destinations in a store."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["progress_bar", "refuse_store"]


def refuse_store(out: str) -> None:
    """Raise Unsupported if the destination is a store's URL."""
    from penstock.errors import Unsupported

    if "://" in out:
        raise Unsupported(f"{out} is in a store, but datasets can be generated only in a local folder", where=out)


@contextmanager
def progress_bar(what: str, total: int) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar on a terminal. Yields a function of (bytes stored, number done)."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda _stored, done: bar.update(task, completed=done)

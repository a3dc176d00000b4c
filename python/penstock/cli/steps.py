# SPDX-License-Identifier: Apache-2.0
"""Prints the steps of a long command on stderr."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["steps"]


@contextlib.contextmanager
def steps() -> Iterator[Callable[[str], None]]:
    """Prints each step with its seconds on stderr: one live line on a terminal, otherwise plain lines."""
    from rich.console import Console
    from rich.markup import escape

    console = Console(stderr=True, highlight=False)
    began = now = time.perf_counter()
    current: str | None = None
    live = console.status("") if sys.stderr.isatty() else None

    def close() -> None:
        if current is not None:
            console.print(
                f"[dim]{time.perf_counter() - began:6.1f} s[/dim]  {escape(current)} [dim]({time.perf_counter() - now:.1f} s)[/dim]",
                soft_wrap=True,
            )

    def progress(what: str) -> None:
        nonlocal current, now
        close()
        current, now = what, time.perf_counter()
        if live is not None:
            live.update(f"{escape(what)} …")

    if live is not None:
        live.start()
    try:
        yield progress
        close()
    finally:
        if live is not None:
            live.stop()

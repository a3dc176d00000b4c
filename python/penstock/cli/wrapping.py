# SPDX-License-Identifier: Apache-2.0
"""Wraps printed lines at the width of the terminal."""

from __future__ import annotations

import shutil
import textwrap

import click

__all__ = ["echo_wrapped", "line_width", "wrap_line"]

# Width without a terminal: lines stay whole, so that programs such as grep see them.
_UNLIMITED = 10_000


def line_width() -> int:
    """Number of columns of the terminal or of COLUMNS; practically unlimited without both."""
    return shutil.get_terminal_size((_UNLIMITED, 24)).columns


def wrap_line(line: str, width: int, indent: int) -> list[str]:
    """Split a line at spaces, but not before `%`. Continuation lines start with `indent` spaces; longer words stay whole."""
    parts = textwrap.wrap(
        line.replace(" %", "\N{NO-BREAK SPACE}%"), width, subsequent_indent=" " * indent, break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip
    return [part.replace("\N{NO-BREAK SPACE}%", " %") for part in parts]


def echo_wrapped(line: str, *, indent: int = 2) -> None:
    """Print a line on stdout, wrapped at the terminal's width."""
    for part in wrap_line(line, max(line_width(), 40), indent):
        click.echo(part)

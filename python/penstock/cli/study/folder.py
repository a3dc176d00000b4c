# SPDX-License-Identifier: Apache-2.0
"""Adds the flag --studies."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["studies_option"]


def studies_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --studies."""
    return click.option(
        "--studies",
        type=click.Path(path_type=Path, file_okay=False),
        metavar="DIR",
        help="Folder of the studies. Installed wheels do not contain them: clone the repository.  [default: the checkout that Penstock was installed from]",
    )(command)

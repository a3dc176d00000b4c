# SPDX-License-Identifier: Apache-2.0
"""Access to the environment: only this module reads it (ruff forbids others), so that a run's inputs can be listed."""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["override", "read", "state_home"]


def read() -> Mapping[str, str]:
    """The environment as it is now."""
    return os.environ  # noqa: TID251 - this is the one door


def state_home(environment: Mapping[str, str]) -> Path | None:
    """The user's state folder: `XDG_STATE_HOME`, else `~/.local/state`; None without either (a relative path does not count)."""
    named, home = environment.get("XDG_STATE_HOME", ""), environment.get("HOME", "")
    if named.startswith("/"):
        return Path(named)
    return Path(home) / ".local/state" if home.startswith("/") else None


@contextmanager
def override(values: Mapping[str, str]) -> Iterator[None]:
    """Override variables for the duration of the block: for a process that acts for several users, one at a time."""
    before = {name: os.environ.get(name) for name in values}  # noqa: TID251
    os.environ.update(values)  # noqa: TID251
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)  # noqa: TID251
            else:
                os.environ[name] = value  # noqa: TID251

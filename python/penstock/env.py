# SPDX-License-Identifier: Apache-2.0
"""Access to the environment variables. Only this module reads them (ruff forbids it elsewhere), so that all inputs of a
run can be listed.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["override", "read", "state_home"]


def read() -> Mapping[str, str]:
    """Return the current environment variables."""
    return os.environ  # noqa: TID251 - this is the one door


def state_home(environment: Mapping[str, str]) -> Path | None:
    """Return the user's state folder: `XDG_STATE_HOME`, otherwise `~/.local/state`. None if neither is set; relative
    paths are ignored.
    """
    named, home = environment.get("XDG_STATE_HOME", ""), environment.get("HOME", "")
    if named.startswith("/"):
        return Path(named)
    return Path(home) / ".local/state" if home.startswith("/") else None


@contextmanager
def override(values: Mapping[str, str]) -> Iterator[None]:
    """Override variables for the duration of the block. This is for processes that act for several users, one at a
    time.
    """
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

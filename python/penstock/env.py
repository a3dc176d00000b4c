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

__all__ = ["for_nodes", "for_stores", "override", "read", "state_home"]

_OF_THIS_USER = ("HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME")


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


def for_stores() -> dict[str, str]:
    """Return the environment variables that the core's stores need."""
    # Pass on only variables that stores use. Values that are not valid text are left out, because they cannot be
    # credentials.
    wanted = ("AWS_", "PENSTOCK_", "AZURE_", "GOOGLE_", "HADOOP_", "IDENTITY_", "CLOUDSDK_", "HF_")
    exact = (*_OF_THIS_USER, "STORAGE_EMULATOR_HOST", "GCE_METADATA_HOST", "HUGGING_FACE_HUB_TOKEN")
    found = {name: value for name, value in read().items() if name.startswith(wanted) or name in exact}
    return {name: value for name, value in found.items() if value.isascii() or value.isprintable()}


def for_nodes() -> dict[str, str]:
    """Return the store variables for other machines: with credentials, but without paths in this user's folders."""
    return {name: value for name, value in for_stores().items() if name not in _OF_THIS_USER}


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

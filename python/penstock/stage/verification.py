# SPDX-License-Identifier: Apache-2.0
"""Checks of a finished stage: `verify` reads files again, `diff` compares metadata."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError
from penstock.stage.job import absolute, is_local, local_path, state_folder, variables, wait

if TYPE_CHECKING:
    from penstock._native import StageJob

__all__ = ["diff", "start_verify", "verify"]


def start_verify(
    destination: str,
    *,
    repair: bool = False,
    concurrency: int = 64,
    memory_bytes: int = 1 << 30,
    deadline_s: float | None = None,
    give_up_after_s: float | None = None,
    quick: bool = False,
    journal: str | None = None,
    select: tuple[str, ...] = (),
    exclude: tuple[str, ...] = (),
) -> StageJob:
    """Start to read a staged copy again and return at once; `stage.wait` returns the same summary as `verify`.

    A copy in a store is read from there; `quick` only compares the store's size, digest and version. `select` and
    `exclude` are patterns over paths below the destination; other files are ignored.

    Raises:
        ConfigError: `quick` was given for a folder, which keeps no digests.
        NotFound: Raised by the job: nothing was staged there, or no file matches.
    """
    from penstock import _native

    is_folder = is_local(destination)
    if quick and is_folder:
        raise ConfigError("--quick: a folder keeps no digests; its files must be read", where="--quick")
    return _native.verify(
        local_path(destination) if is_folder else state_folder("verify", destination, journal),
        variables(),
        remote=None if is_folder else destination,
        quick=quick,
        repair=repair,
        concurrency=concurrency,
        memory_bytes=memory_bytes,
        deadline_s=deadline_s,
        give_up_after_s=give_up_after_s,
        cores=len(os.sched_getaffinity(0)),
        select=list(select),
        exclude=list(exclude),
    )


def verify(destination: str, **options: Any) -> dict[str, Any]:
    """Read a staged folder again; `failed` lists the files that differ from the stage's record. Options are those of
    `start_verify`.

    Raises:
        NotFound: Nothing was staged there.
    """
    return wait(start_verify(destination, **options))


def diff(
    a: str,
    b: str,
    *,
    deadline_s: float | None = None,
    give_up_after_s: float | None = None,
    select: tuple[str, ...] = (),
    exclude: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Compare two datasets by logical name: added, removed, changed, same. Each is a manifest, a staged folder or a URL.

    `select` and `exclude` are patterns over the keys of both.

    Raises:
        NotFound, Denied, Unreachable, Throttled: One of them cannot be listed.
        Corrupt: A manifest is invalid.
    """
    from penstock import _native

    found: dict[str, Any] = json.loads(
        _native.diff(
            absolute(a),
            absolute(b),
            variables(),
            deadline_s=deadline_s,
            give_up_after_s=give_up_after_s,
            select=list(select),
            exclude=list(exclude),
        )
    )
    return found

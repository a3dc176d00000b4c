# SPDX-License-Identifier: Apache-2.0
"""Checks a completed stage: reads the copy again, and compares it with the record of the stage."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from penstock import env
from penstock.deprecation import renamed_parameters
from penstock.errors import ConfigError
from penstock.local_paths import is_local, local_path
from penstock.stage.run_stage import wait
from penstock.stage.spec import RENAMED_REQUEST, state_folder, to_json

if TYPE_CHECKING:
    from penstock._native import StageJob

__all__ = ["VerifySpec", "start_verify", "verify"]


@dataclass(frozen=True, slots=True)
class VerifySpec:
    """Specification of a verification. A copy in a store is read from the store. With `quick`, only the store's size,
    digest and version are compared. `select` and `exclude` are patterns for paths below the destination; other files
    are ignored.
    """

    destination: str
    repair: bool = False
    quick: bool = False
    concurrency: int = 64
    memory_bytes: int = 1 << 30
    timeout_s: float | None = None
    retry_timeout_s: float | None = None
    journal: str | None = None
    select: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()


@renamed_parameters(RENAMED_REQUEST)
def start_verify(destination: str, **options: Any) -> StageJob:
    """Start to verify a staged copy, and return immediately. `stage.wait` then returns the same summary as `verify`.
    Options are fields of `VerifySpec`.

    Raises:
        ConfigError: `quick` was given for a folder, which stores no digests.
        NotFound: Nothing was staged there, or no file matches. The job raises this error, not this function.
    """
    from penstock import _native

    spec = VerifySpec(destination, **options)
    is_folder = is_local(destination)
    if spec.quick and is_folder:
        raise ConfigError("--quick: not supported for a folder, which has no digests and must be read", where="--quick")
    settings = asdict(spec)
    journal = settings.pop("journal")
    settings["remote"] = None if is_folder else destination
    del settings["destination"]
    folder = local_path(destination) if is_folder else state_folder("verify", destination, journal)
    return _native.verify(to_json(settings), folder, env.for_stores())


def verify(destination: str, **options: Any) -> dict[str, Any]:
    """Read a staged copy again and return a summary. `failed` in the summary lists the files that differ from the
    stage's record. Options are fields of `VerifySpec`.

    Raises:
        NotFound: Nothing was staged there.
    """
    return wait(start_verify(destination, **options))

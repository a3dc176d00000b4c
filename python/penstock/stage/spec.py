# SPDX-License-Identifier: Apache-2.0
"""Specification of a stage, and its translation into the core's request."""

from __future__ import annotations

import hashlib
import json
import math
import operator
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock import env
from penstock.errors import ConfigError, Unsupported
from penstock.local_paths import is_local, local_path
from penstock.ranks import Rank

if TYPE_CHECKING:
    from penstock._native import StageRequest

__all__ = ["StageSpec", "absolute", "state_folder", "to_json"]

# Old parameter names -> new names. (`inflate` is not deprecated.)
RENAMED_REQUEST = {"deadline_s": "timeout_s", "give_up_after_s": "retry_timeout_s"}
RENAMED = {
    **RENAMED_REQUEST,
    "deflate": "compress",
    "object_deadline_s": "object_timeout_s",
    "stall_after_s": "idle_timeout_s",
    "wait_limit_s": "wait_timeout_s",
}
ALIASES = {"inflate": "decompress"}


@dataclass(frozen=True, slots=True)
class StageSpec:
    """Specification of a stage. Field names contain their units. `None` means the core's default limit."""

    source: str
    destination: str
    decompress: bool = False
    rank: Rank = field(default_factory=Rank)
    concurrency: int = 64
    memory_bytes: int = 1 << 30
    max_inflated_bytes: int | None = None
    allow_case_collisions: bool = False
    overwrite: bool = False
    manifest: str | None = None
    dry_run: bool = False
    timeout_s: float | None = None
    retry_timeout_s: float | None = None
    wait_timeout_s: float | None = None
    select: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    share_by: str | None = None
    weights: str | None = None
    max_requests_per_s: float | None = None
    max_bytes_per_s: float | None = None
    object_timeout_s: float | None = None
    idle_timeout_s: float | None = None
    mirrors: tuple[str, ...] = ()
    compress: str | None = None
    level: int | None = None
    journal: str | None = None

    def request(self) -> StageRequest:
        """Build the core's request, with the credentials from the environment.

        Raises:
            ConfigError: A value is invalid.
            Unsupported: The destination does not support writes.
        """
        from penstock import _native

        if self.level is not None and self.compress is None:
            raise ConfigError("--level: requires --compress", where="--level")
        if self.concurrency < 1:
            raise ConfigError(f"--concurrency: must be at least 1 (got {self.concurrency})", where="--concurrency")
        if self.memory_bytes < 32 << 20:
            raise ConfigError(f"--memory: must be at least 32 MiB (got {self.memory_bytes:,} bytes)", where="--memory")
        settings = asdict(self)
        journal, manifest, destination = (settings.pop(name) for name in ("journal", "manifest", "destination"))
        del settings["wait_timeout_s"]
        source = settings["source"] = absolute(self.source)
        settings["mirrors"] = [absolute(url) for url in self.mirrors]
        settings["remote"] = None if is_local(destination) else destination
        return _native.StageRequest(
            to_json(settings),
            local_path(destination) if is_local(destination) else state_folder(source, destination, journal),
            env.for_stores(),
            manifest=manifest,
        )


def to_json(settings: dict[str, Any]) -> str:
    """Convert settings to the JSON document that the core reads.

    Raises:
        ConfigError: A number is infinite or NaN.
    """
    for name, value in settings.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{name}: {value} is not a finite number", where=name)
    return json.dumps(settings, default=_number)


def _number(value: Any) -> int | float:
    """Convert a number of another type, such as a NumPy scalar, to a Python number."""
    try:
        return operator.index(value)
    except TypeError:
        return float(value)


def state_folder(source: str, destination: str, journal: str | None = None) -> str:
    """Return the folder on this machine that stores the progress of a stage to a store. Each pair of source and
    destination has its own folder.

    Raises:
        ConfigError: The folder cannot be used.
        Unsupported: The destination does not support writes.
    """
    scheme = destination.partition("://")[0]
    if scheme in ("http", "https"):
        raise Unsupported(f"{scheme}:// is not supported as a destination, because web servers do not accept uploads")
    home = env.state_home(env.read())
    if journal:
        base = Path(journal)
    elif home is not None:
        base = home / "penstock/stage"
    else:
        raise ConfigError(
            "HOME and XDG_STATE_HOME are not set, so the stage's journal cannot be stored",
            where="--journal",
            hint="give a folder with --journal DIR",
        )
    standing = next((path for path in (base, *base.absolute().parents) if path.exists()), None)
    if standing is not None and not standing.is_dir():
        raise ConfigError(f"--journal: {base} cannot be a folder, since {standing} is a file", where="--journal")
    names = f"{source}\n{destination.rstrip('/')}"
    return os.path.abspath(base / hashlib.sha256(names.encode(errors="surrogateescape")).hexdigest()[:24])  # noqa: PTH100 - links are not resolved


def absolute(url: str) -> str:
    """Return a path as an absolute path without `~` and `..`, because the core has no working directory. A URL is
    returned unchanged.
    """
    if "://" in url:
        return url
    if not url:
        raise ConfigError("url: must not be empty", where="url", hint="write `.` for the working directory")
    return os.path.abspath(os.path.expanduser(url)) + ("/" if url.endswith("/") else "")  # noqa: PTH100, PTH111 - links are not resolved

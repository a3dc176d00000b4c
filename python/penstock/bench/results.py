# SPDX-License-Identifier: Apache-2.0
"""The result schema of a run, with its writer and reader. `price`, `plan` and `report` use only this schema.

Each run has one folder, `runs/<id>/`, with its figures in `result.json`. Fields are only ever added. A reader ignores
unknown fields and rejects a `schema_version` above its own. docs/reference/results.md describes each field.
"""

from __future__ import annotations

import errno
import hashlib
import math
import os
import secrets
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import msgspec

from penstock.atomic_file import atomic_file
from penstock.bench.machine_card import MachineCard
from penstock.bench.machine_card import read as read_machine_card
from penstock.errors import ConfigError, Corrupt, Denied, NoSpace, NotFound, PenstockError, SystemFault

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "SCHEMA_VERSION",
    "CacheState",
    "Provenance",
    "RunRecord",
    "load",
    "load_all",
    "provenance",
    "save",
    "spec_hash",
    "whole_file",
]

SCHEMA_VERSION = 2


class CacheState(msgspec.Struct, frozen=True):
    """State of the caches at the start of the run, and how it was determined."""

    state: str = "unknown"
    how: str = "not controlled"


class Provenance(msgspec.Struct, frozen=True):
    """Source and build of the program that ran.

    Attributes:
        commit: Commit of the source tree; None for an installed package.
        dirty: Whether tracked files differed from the commit.
        build_profile: Profile of the native module, `release` or `debug`.
    """

    version: str
    build_profile: str
    machine: MachineCard
    commit: str | None = None
    dirty: bool | None = None


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One measured run. Times are in seconds, sizes in bytes. docs/reference/results.md describes each field."""

    schema_version: int = SCHEMA_VERSION
    id: str
    kind: str
    label: str = ""
    created: str
    spec: dict[str, Any]
    spec_hash: str
    provenance: Provenance
    seed: int
    world: int = 1
    cache: CacheState = CacheState()
    warm_up_steps: int = 0
    repeats: int = 1
    invalid: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    # Quality reached
    losses: tuple[float, ...] = ()
    mae: float | None = None
    mae_constant: float | None = None
    metrics: tuple[dict[str, Any], ...] = ()
    epochs: int = 0
    steps: int = 0
    samples: int = 0
    complete: bool = True
    # Speed and waiting time
    samples_per_s: float = 0.0
    steady_samples_per_s: float | None = None
    wait_s: float = 0.0
    wait_share: float = 0.0
    wait_share_worst: float = 0.0
    compute_s: float = 0.0
    sync_s: float = 0.0
    utilisation: float = 0.0
    first_batch_s: float = 0.0
    train_s: float = 0.0
    validation_s: float = 0.0
    stage_s: float = 0.0
    time_to_train_s: float = 0.0
    wall_s: float = 0.0
    cpu_s: float = 0.0
    # Load on the store
    bytes: int = 0
    bytes_delivered: int = 0
    requests: int = 0
    retries: int = 0
    throttles: int = 0
    # Reports of the components
    workload: dict[str, Any] = {}
    loader: dict[str, Any] = {}
    epoch_times: tuple[dict[str, Any], ...] = ()
    step_breakdown: dict[str, Any] = {}
    data_path: dict[str, Any] = {}
    step_times: tuple[tuple[int, float], ...] = ()
    checkpoints: dict[str, Any] = {}
    archive: str | None = None


def spec_hash(spec: dict[str, Any]) -> str:
    """Hash of a spec: 16 hexadecimal digits computed from its canonical JSON. Only rows with equal hashes are
    comparable.
    """
    canonical = msgspec.json.encode(spec, order="deterministic")
    return hashlib.sha256(canonical).hexdigest()[:16]


def new_id(kind: str, created_s: float) -> str:
    """Generate a name for a run's folder. Names sort by time, and are unique even for two runs in the same second."""
    return f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(created_s))}-{kind}-{secrets.token_hex(3)}"


def _git(*argv: str) -> str | None:
    here = Path(__file__)
    try:
        done = subprocess.run(
            ["git", "-C", str(here.parent), *argv], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def provenance() -> Provenance:
    """Return the origin of this process's code. The commit is set only if git tracks this file. If Penstock is
    installed inside another repository, that repository's commit would be wrong.
    """
    from penstock import _native

    tracked = _git("ls-files", "--error-unmatch", Path(__file__).name) is not None
    changed = _git("status", "--porcelain", "--untracked-files=no") if tracked else None
    return Provenance(
        version=_native.__version__,
        build_profile=_native.__profile__,
        machine=read_machine_card(),
        commit=_git("rev-parse", "HEAD") if tracked else None,
        dirty=bool(changed) if changed is not None else None,
    )


def refuse_debug(build_profile: str, *, allow_debug: bool) -> None:
    """Raise ConfigError for a debug build, because its rates are not representative."""
    if build_profile != "release" and not allow_debug:
        raise ConfigError(
            f"a {build_profile} build cannot save results: its rates are not representative",
            hint="build with `make build` (release), or pass --allow-debug to save rows marked INVALID",
        )


def finite(value: Any, path: str) -> None:
    """Raise Corrupt for NaN and infinity, which JSON does not have. Callers omit such a figure or mark the run invalid,
    and never write null.
    """
    if isinstance(value, float) and not math.isfinite(value):
        raise Corrupt(f"result field {path} is {value}, not a finite number")
    if isinstance(value, dict):
        for name, inner in value.items():
            finite(inner, f"{path}.{name}" if path else str(name))
    elif isinstance(value, list | tuple):
        for i, inner in enumerate(value):
            finite(inner, f"{path}[{i}]")


def save(record: RunRecord, runs: Path, *, allow_debug: bool = False) -> Path:
    """Write `runs/<id>/result.json` atomically.

    Returns:
        Path of the file.

    Raises:
        ConfigError: The build is a debug build. With `allow_debug`, the row is saved and marked INVALID.
        Corrupt: A figure is not finite.
        Denied, NoSpace, SystemFault: The folder cannot be written.
    """
    refuse_debug(record.provenance.build_profile, allow_debug=allow_debug)
    profile = record.provenance.build_profile
    reason = f"{profile} build"
    if profile != "release" and reason not in record.invalid:
        record = msgspec.structs.replace(record, invalid=(*record.invalid, reason))
    plain = msgspec.to_builtins(record)
    finite(plain, "")
    text = msgspec.json.format(msgspec.json.encode(plain), indent=1)
    final = runs / record.id / "result.json"
    with whole_file(final) as out:
        out.write(text + b"\n")
    return final


@contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for an atomic write: it appears under its name only when it is complete and synced. Creates its
    folder.

    Raises:
        Denied, NoSpace, SystemFault: The file cannot be written. The partial file is removed, and an earlier file
            with this name is kept.
    """
    written = 0
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as out:
            try:
                yield out
            finally:
                written = os.fstat(out.fileno()).st_size
    except OSError as error:
        if isinstance(error, PenstockError):
            raise
        raise as_fault(error, str(path.parent), written=f"{written:,} bytes of {path.name}") from None


def as_fault(error: OSError, place: str, *, written: str | None = None) -> PenstockError:
    """Convert an OSError into a Penstock error that a caller can handle. `written` describes what was written before
    the error.
    """
    if isinstance(error, PermissionError):
        return Denied(f"{place} cannot be written: {error.strerror}", where=place)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        had = f" (wrote {written})" if written else ""
        return NoSpace(
            f"{place}: no space left on the disk{had}",
            where=place,
            hint="free some space, or choose a folder on another disk",
        )
    return SystemFault(f"{place} cannot be written: {error.strerror or error}", where=place)


def load(path: Path) -> RunRecord:
    """Read one result from its file or from the run's folder.

    Raises:
        NotFound: The file does not exist.
        Corrupt: The file is not a result, or has a newer schema.
    """
    file = path / "result.json" if path.is_dir() else path
    try:
        raw = file.read_bytes()
    except FileNotFoundError:
        raise NotFound(f"{file} does not exist", where=str(file)) from None
    except OSError as error:
        raise SystemFault(f"{file} cannot be read: {error.strerror}", where=str(file)) from None
    try:
        refuse_newer(raw, str(file))
        return msgspec.json.decode(raw, type=RunRecord)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Corrupt(f"{file} is not a valid result: {error}", where=str(file)) from None


class _Versioned(msgspec.Struct):
    schema_version: int


def refuse_newer(raw: bytes, place: str) -> None:
    """Raise Corrupt if the document has a newer schema. If the document has no schema version, msgspec raises its own
    error.
    """
    version = msgspec.json.decode(raw, type=_Versioned).schema_version
    if version > SCHEMA_VERSION:
        raise Corrupt(
            f"{place} has schema version {version}, but this build reads up to {SCHEMA_VERSION}",
            hint="update penstock",
            where=place,
        )


def load_all(runs: Path) -> list[RunRecord]:
    """Read every run under a folder, oldest first. Runs without a result (because they were killed) are skipped.

    Raises:
        NotFound: The folder does not exist.
    """
    if not runs.is_dir():
        raise NotFound(f"{runs} is not a folder", where=str(runs))
    return [load(file) for file in sorted(runs.glob("*/result.json"))]

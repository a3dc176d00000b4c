# SPDX-License-Identifier: Apache-2.0
"""Python interface of a stage: a spec in, a summary out."""

from __future__ import annotations

import hashlib
import json
import math
import operator
import os
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock import env
from penstock.deprecation import renamed_parameters
from penstock.errors import ConfigError, Interrupted, NotFound, Unsupported, of_code
from penstock.ranks import Rank

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock._native import StageJob, StageRequest

__all__ = [
    "StageSpec",
    "for_nodes",
    "index",
    "is_local",
    "local_path",
    "raise_for_failures",
    "run",
    "run_as",
    "start",
    "wait",
]

# Interval in seconds at which a waiting Python thread checks for Ctrl-C.
_LOOK_S = 0.1
# Time that an interrupted stage has to record finished files, and to remove its unfinished parts from a store.
_GRACE_S = 6.0
# Parameters under their old names; `inflate` stays.
RENAMED_REQUEST = {"deadline_s": "timeout_s", "give_up_after_s": "retry_timeout_s"}
RENAMED = {
    **RENAMED_REQUEST,
    "deflate": "compress",
    "object_deadline_s": "object_timeout_s",
    "stall_after_s": "idle_timeout_s",
    "wait_limit_s": "wait_timeout_s",
}
ALIASES = {"inflate": "decompress"}
_OF_THIS_USER = ("HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME")


@dataclass(frozen=True, slots=True)
class StageSpec:
    """Specification of a stage. Bytes and seconds are in the names; `None` uses the core's default limit."""

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
        """The core's request, with the environment's credentials.

        Raises:
            ConfigError: A value is invalid.
            Unsupported: The destination does not support writes.
        """
        from penstock import _native

        if self.level is not None and self.compress is None:
            raise ConfigError("--level: it needs --compress", where="--level")
        if self.concurrency < 1:
            raise ConfigError(f"--concurrency: {self.concurrency} is less than 1", where="--concurrency")
        if self.memory_bytes < 32 << 20:
            raise ConfigError(f"--memory: {self.memory_bytes:,} bytes is less than 32 MiB", where="--memory")
        settings = asdict(self)
        journal, manifest, destination = (settings.pop(name) for name in ("journal", "manifest", "destination"))
        del settings["wait_timeout_s"]
        source = settings["source"] = absolute(self.source)
        settings["mirrors"] = [absolute(url) for url in self.mirrors]
        settings["remote"] = None if is_local(destination) else destination
        return _native.StageRequest(
            to_json(settings),
            local_path(destination) if is_local(destination) else state_folder(source, destination, journal),
            variables(),
            manifest=manifest,
        )


def to_json(settings: dict[str, Any]) -> str:
    """Settings as the JSON document that the core reads.

    Raises:
        ConfigError: A number is infinite or not a number.
    """
    for name, value in settings.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{name}: {value} is not a finite number", where=name)
    return json.dumps(settings, default=_number)


def _number(value: Any) -> int | float:
    """A number of another type, such as NumPy's."""
    try:
        return operator.index(value)
    except TypeError:
        return float(value)


def state_folder(source: str, destination: str, journal: str | None = None) -> str:
    """Folder on this machine with the progress of a stage to a store: one per source and destination.

    Raises:
        ConfigError: The folder cannot be used.
        Unsupported: The destination does not support writes.
    """
    scheme = destination.partition("://")[0]
    if scheme in ("http", "https"):
        raise Unsupported(f"{scheme}:// as a destination is not supported: web servers accept no uploads")
    home = env.state_home(env.read())
    if journal:
        base = Path(journal)
    elif home is not None:
        base = home / "penstock/stage"
    else:
        raise ConfigError(
            "HOME and XDG_STATE_HOME are not set, so there is no place for the stage's journal",
            where="--journal",
            hint="give a folder with --journal DIR",
        )
    standing = next((path for path in (base, *base.absolute().parents) if path.exists()), None)
    if standing is not None and not standing.is_dir():
        raise ConfigError(f"--journal: {base} cannot be a folder, since {standing} is a file", where="--journal")
    names = f"{source}\n{destination.rstrip('/')}"
    return os.path.abspath(base / hashlib.sha256(names.encode(errors="surrogateescape")).hexdigest()[:24])  # noqa: PTH100 - links are not resolved


def variables() -> dict[str, str]:
    """Environment variables for the core's stores."""
    # Only variables that a store may read, and only valid text: other bytes are not a credential.
    wanted = ("AWS_", "PENSTOCK_", "AZURE_", "GOOGLE_", "HADOOP_", "IDENTITY_", "CLOUDSDK_")
    exact = (*_OF_THIS_USER, "STORAGE_EMULATOR_HOST", "GCE_METADATA_HOST")
    found = {name: value for name, value in env.read().items() if name.startswith(wanted) or name in exact}
    return {name: value for name, value in found.items() if value.isascii() or value.isprintable()}


def for_nodes() -> dict[str, str]:
    """The same for other machines: credentials are included, paths in this user's folders are not."""
    return {name: value for name, value in variables().items() if name not in _OF_THIS_USER}


def absolute(url: str) -> str:
    """A URL unchanged, or a path made absolute: the core has no working directory."""
    if "://" in url:
        return url
    if not url:
        raise ConfigError("url: it is empty", where="url", hint="write `.` for the working directory")
    return os.path.abspath(url) + ("/" if url.endswith("/") else "")  # noqa: PTH100 - links are not resolved


def is_local(url: str) -> bool:
    """True for a path and for file://."""
    return "://" not in url or url.startswith("file://")


def local_path(url: str) -> str:
    """The path of a destination.

    Raises:
        Unsupported: The destination is in a store.
    """
    if not is_local(url):
        scheme = url.partition("://")[0]
        raise Unsupported(f"{scheme}:// as a folder is not supported: `{url}` is in a store")
    path = url.removeprefix("file://").removeprefix("localhost")
    if url.startswith("file://") and not path.startswith("/"):
        raise ConfigError(f"destination: `{url}` is on another host", where="destination")
    if not path:
        raise ConfigError("destination: it is empty", where="destination")
    return os.path.abspath(path)  # noqa: PTH100 - links are not resolved


@renamed_parameters(RENAMED_REQUEST)
def index(
    url: str,
    output: str | Path | None = None,
    *,
    timeout_s: float | None = None,
    retry_timeout_s: float | None = None,
    select: tuple[str, ...] = (),
    exclude: tuple[str, ...] = (),
    written_as: str | None = None,
) -> dict[str, Any]:
    """List a dataset once (objects that match `select` and not `exclude`), and write its manifest to `output` as `json`
    or `parquet` (by default from its suffix, else Parquet from 100,000 objects on). Returns objects, bytes, codecs,
    formats and the fingerprint.

    Raises:
        NotFound: No object matches.
        Denied, Unreachable, Throttled: The store refused or did not answer.
    """
    from penstock import _native

    path = None if output is None else Path(output)
    if path is not None and path.is_dir():
        raise ConfigError(f"--output: {path} is a folder", where="--output")
    if path is not None and not path.parent.is_dir():  # raised before the listing, not after it
        raise NotFound(f"--output: the folder {path.parent} does not exist", where="--output")
    facts: dict[str, Any] = json.loads(
        _native.index(
            absolute(url),
            variables(),
            output=path,
            timeout_s=timeout_s,
            retry_timeout_s=retry_timeout_s,
            select=list(select),
            exclude=list(exclude),
            written_as=written_as,
        )
    )
    return facts


def start(spec: StageSpec) -> StageJob:
    """Start a stage and return at once. The job has `.progress()`, `.wait(timeout_s)` and `.cancel()`."""
    return spec.request().start()


def wait(
    job: StageJob, *, look: Callable[[dict[str, int]], None] | None = None, look_s: float = _LOOK_S
) -> dict[str, Any]:
    """Wait for a job and return its summary; `look` is called with the progress meanwhile.

    Ctrl-C stops the job: finished files are recorded, and the same stage later continues from there.
    """
    try:
        while (text := job.wait(look_s)) is None:
            if look is not None:
                look(job.progress())
    except KeyboardInterrupt:
        job.cancel()
        with suppress(Interrupted):
            job.wait(_GRACE_S)
        raise
    summary: dict[str, Any] = json.loads(text)
    return summary


def run_as(spec: StageSpec) -> dict[str, Any]:
    """Stage by a spec and return the summary. Only a node's first rank stages; the others wait for it."""
    request = spec.request()
    if spec.rank.local_rank == 0 or spec.dry_run:
        return wait(request.start())
    limits = {} if spec.wait_timeout_s is None else {"start_s": spec.wait_timeout_s, "silence_s": spec.wait_timeout_s}
    summary: dict[str, Any] = json.loads(request.wait_for_leader(**limits))
    return summary


@renamed_parameters(RENAMED, aliases=ALIASES)
def run(source: str, destination: str, **options: Any) -> dict[str, Any]:
    """Stage and return the summary; `failed` lists the objects that could not be staged. Options are `StageSpec`'s."""
    return run_as(StageSpec(source, destination, **options))


def raise_for_failures(summary: dict[str, Any]) -> dict[str, Any]:
    """Return the summary unchanged if every object was staged.

    Raises:
        PenstockError: The first failed object's error, with the number of failed objects.
    """
    if not summary["failed"]:
        return summary
    first = summary["failed"][0]
    error = of_code(first["code"], first["error"])
    error.add_note(
        f"{len(summary['failed']):,} of {summary['objects']:,} objects of node {summary['node']} are not staged"
    )
    raise error

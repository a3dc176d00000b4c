# SPDX-License-Identifier: Apache-2.0
"""Python interface of stage jobs: builds a request from a spec, runs it, and returns its summary."""

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
# Maximum time in which an interrupted stage records completed files and removes unfinished parts from a store.
_GRACE_S = 6.0
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
_OF_THIS_USER = ("HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME")


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
            variables(),
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


def variables() -> dict[str, str]:
    """Return the environment variables that the core's stores need."""
    # Pass on only variables that stores use. Values that are not valid text are left out, because they cannot be
    # credentials.
    wanted = ("AWS_", "PENSTOCK_", "AZURE_", "GOOGLE_", "HADOOP_", "IDENTITY_", "CLOUDSDK_", "HF_")
    exact = (*_OF_THIS_USER, "STORAGE_EMULATOR_HOST", "GCE_METADATA_HOST", "HUGGING_FACE_HUB_TOKEN")
    found = {name: value for name, value in env.read().items() if name.startswith(wanted) or name in exact}
    return {name: value for name, value in found.items() if value.isascii() or value.isprintable()}


def for_nodes() -> dict[str, str]:
    """Return the store variables for other machines: with credentials, but without paths in this user's folders."""
    return {name: value for name, value in variables().items() if name not in _OF_THIS_USER}


def absolute(url: str) -> str:
    """Make a path absolute, because the core has no working directory. A URL is returned unchanged."""
    if "://" in url:
        return url
    if not url:
        raise ConfigError("url: must not be empty", where="url", hint="write `.` for the working directory")
    return os.path.abspath(url) + ("/" if url.endswith("/") else "")  # noqa: PTH100 - links are not resolved


def is_local(url: str) -> bool:
    """True for a path and for file://."""
    return "://" not in url or url.startswith("file://")


def local_path(url: str) -> str:
    """Return the path of a destination.

    Raises:
        Unsupported: The destination is in a store.
    """
    if not is_local(url):
        scheme = url.partition("://")[0]
        raise Unsupported(f"destination: must be a local folder, not a {scheme}:// URL (got `{url}`)")
    path = url.removeprefix("file://").removeprefix("localhost")
    if url.startswith("file://") and not path.startswith("/"):
        raise ConfigError(f"destination: `{url}` is on another host", where="destination")
    if not path:
        raise ConfigError("destination: must not be empty", where="destination")
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
    """List a dataset once, and write its manifest to `output`. Lists only objects that match `select` and not
    `exclude`. The manifest format is `json` or `parquet`; by default, the suffix of `output` determines it. Without a
    known suffix, Parquet is used from 100,000 objects on. Returns objects, bytes, codecs, formats and the fingerprint.

    Raises:
        NotFound: No object matches.
        Denied, Unreachable, Throttled: The store rejected a request or did not respond.
    """
    from penstock import _native

    path = None if output is None else Path(output)
    if path is not None and path.is_dir():
        raise ConfigError(f"--output: {path} is a folder", where="--output")
    if path is not None and not path.parent.is_dir():  # checked first, because the listing can take long
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
    """Start a stage and return immediately. The job has `.progress()`, `.wait(timeout_s)` and `.cancel()`."""
    return spec.request().start()


def wait(
    job: StageJob, *, look: Callable[[dict[str, int]], None] | None = None, look_s: float = _LOOK_S
) -> dict[str, Any]:
    """Wait for a job and return its summary. Meanwhile, `look` is called with the progress.

    Ctrl-C stops the job. Completed files are recorded, so that the same stage can continue later.
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
    """Run a stage and return its summary. Only the first rank of a node stages, and all other ranks of the node wait
    for it.
    """
    request = spec.request()
    if spec.rank.local_rank == 0 or spec.dry_run:
        return wait(request.start())
    limits = {} if spec.wait_timeout_s is None else {"start_s": spec.wait_timeout_s, "silence_s": spec.wait_timeout_s}
    summary: dict[str, Any] = json.loads(request.wait_for_leader(**limits))
    return summary


@renamed_parameters(RENAMED, aliases=ALIASES)
def run(source: str, destination: str, **options: Any) -> dict[str, Any]:
    """Stage and return the summary. `failed` in the summary lists the objects that could not be staged. Options are
    fields of `StageSpec`.
    """
    return run_as(StageSpec(source, destination, **options))


def raise_for_failures(summary: dict[str, Any]) -> dict[str, Any]:
    """Return the summary unchanged if every object was staged.

    Raises:
        PenstockError: The error of the first failed object, with the number of failed objects.
    """
    if not summary["failed"]:
        return summary
    first = summary["failed"][0]
    error = of_code(first["code"], first["error"])
    error.add_note(
        f"{len(summary['failed']):,} of {summary['objects']:,} objects of node {summary['node']} are not staged"
    )
    raise error

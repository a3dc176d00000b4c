# SPDX-License-Identifier: Apache-2.0
"""Object store benchmark: throughput, latency and throttled requests of PUT, GET, LIST, HEAD and DELETE.

Creates a folder with a new name below the URL, and removes it with its objects at the end, even after an error. Nothing
else is written or deleted. Existing objects are only read, and only if the caller requests that.
"""

from __future__ import annotations

import json
import secrets
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from penstock import _native, env
from penstock.bench.phases import Hooks, collect, end_of, facts_of, raw_of, report_of, series_of
from penstock.bench.rows import Latency, Row, columns
from penstock.errors import ConfigError, PenstockError, PreconditionFailed
from penstock.local_paths import is_local, local_path
from penstock.ownership import remove_empty_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.bench.rows import End

__all__ = ["OPERATIONS", "ObjectBench", "ObjectPoint", "below", "clear", "measure", "parse_mix", "run"]

OPERATIONS = ("put", "get", "range", "list", "head", "delete")
# elbencho's names of the operations, so that rows and elbencho's CSV use the same names.
_OPERATIONS = {
    "put": "WRITE",
    "get": "READ",
    "range": "READ",
    "list": "LISTOBJ",
    "head": "HEADOBJ",
    "delete": "RMOBJECTS",
}
_BODIES = {"put", "get", "range"}
_WRITES = {"put", "delete"}
_MAX_EXISTING = 1_000_000


class ObjectPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One point of a sweep: an object size and a concurrency."""

    object_size_bytes: int
    concurrency: int


class ObjectBench(msgspec.Struct, frozen=True, kw_only=True):
    """All settings except the points. If `mix` is set, one mixed phase replaces the phases of single operations."""

    operations: tuple[str, ...] = ("put", "get", "head", "list", "delete")
    mix: dict[str, float] | None = None
    range_size_bytes: int = 1 << 20
    objects: int = 256
    prefixes: int = 16
    ramp_s: float = 0.0
    time_limit_s: float | None = None
    request_limit: int | None = None
    until_stable: bool = False
    sample_s: float = 0.4
    arrivals: Literal["closed", "constant", "poisson"] = "closed"
    rate_per_s: float | None = None
    salt: int | None = None
    compressible: int = 0
    seed: int = 0
    attempt_limit_s: float = 30.0
    give_up_after_s: float = 300.0
    list_keys: int = 1000
    existing: bool = False

    def native(
        self, url: str, point: ObjectPoint, mix: dict[str, float], existing: list[str], *, once: bool
    ) -> dict[str, Any]:
        """Settings of one phase, in the form that the core expects. Limits do not apply to a phase that uses each
        object once.
        """
        return {
            "url": url,
            "existing": existing,
            "mix": [{"operation": name, "weight": weight} for name, weight in mix.items()],
            "object_size": point.object_size_bytes,
            "range_size": self.range_size_bytes,
            "objects": self.objects,
            "prefixes": self.prefixes,
            "once": once,
            "concurrency": point.concurrency,
            "ramp_s": self.ramp_s,
            "time_limit_s": None if once else self.time_limit_s,
            "request_limit": None if once else self.request_limit,
            "until_stable": self.until_stable and not once,
            "sample_s": self.sample_s,
            "arrivals": self.arrivals,
            "rate": self.rate_per_s,
            "verify": self.salt,
            "compressible": self.compressible,
            "seed": self.seed,
            "attempt_limit_s": self.attempt_limit_s,
            "give_up_after_s": self.give_up_after_s,
            "list_keys": self.list_keys,
        }

    @property
    def has_limit(self) -> bool:
        return self.until_stable or self.time_limit_s is not None or self.request_limit is not None

    def plain(self, points: tuple[ObjectPoint, ...]) -> dict[str, Any]:
        """The settings as stored in results, without the URL."""
        return {"bench": "object", **msgspec.to_builtins(self), "points": columns(points)}


def parse_mix(text: str) -> dict[str, float]:
    """Parse `get=70,put=20,delete=10` into weights.

    Raises:
        ConfigError: An operation is unknown, or a weight is invalid.
    """
    found: dict[str, float] = {}
    for part in text.split(","):
        name, _, weight = part.strip().partition("=")
        try:
            value = float(weight or "nan")
        except ValueError:
            value = float("nan")
        if name not in OPERATIONS or not 0 <= value < float("inf"):
            known = ", ".join(OPERATIONS)
            raise ConfigError(
                f"mix: `{part.strip()}` is not OPERATION=WEIGHT, where OPERATION is one of {known}", where="--mix"
            )
        found[name] = value
    return found


def run(
    url: str,
    bench: ObjectBench,
    points: tuple[ObjectPoint, ...],
    hooks: Hooks | None = None,
    *,
    folder: str | None = None,
) -> list[Row]:
    """Measure all points, one after another. The rows use elbencho's names of operations.

    Args:
        folder: Name of the folder for the objects, below the URL. The folder must not exist yet. By default, a new name
            is generated.
    Raises:
        ConfigError: A setting is invalid; raised before the first request.
        Unsupported: The store cannot list or store objects, which this benchmark needs.
        Throttled, Unreachable, ServerError: Requests failed after all retries.
        Interrupted: Ctrl-C. As after any error, the objects of this run are removed.
    """
    hooks = hooks or Hooks()
    _refuse_impossible(bench, points)
    if is_local(url):
        url = str(Path(local_path(url)).absolute())
    variables = dict(env.read())
    existing = _native.object_keys(url, variables, min(bench.objects, _MAX_EXISTING)) if bench.existing else []
    place = url if bench.existing else below(url, folder or f"penstock-bench-{secrets.token_hex(4)}")
    try:
        rows = collect(points, lambda point: _point(place, bench, point, existing, hooks), hooks)
    except BaseException as error:
        if not bench.existing:
            try:
                clear(place)
            except PenstockError as left:
                error.add_note(f"objects may be left below {place}: {left}")
        raise
    if not bench.existing:
        clear(place)
    return rows


def below(url: str, folder: str) -> str:
    """Return the URL of a folder below another URL."""
    return f"{url.rstrip('/')}/{folder}/"


def _refuse_impossible(bench: ObjectBench, points: tuple[ObjectPoint, ...]) -> None:
    asked = set(bench.mix or {}) | set(bench.operations)
    if unknown := sorted(set(bench.operations) - set(OPERATIONS)):
        raise ConfigError(f"operations: `{unknown[0]}` is not one of {', '.join(OPERATIONS)}", where="--operations")
    if bench.existing and (writes := sorted(asked & _WRITES)):
        raise ConfigError(
            f"existing: {' and '.join(writes)} cannot be measured, because existing objects are never changed",
            where="--existing",
            hint="use --operations get,range,head,list",
        )
    if not bench.existing and not bench.operations and not bench.mix:
        raise ConfigError("operations: at least one is required", where="--operations")
    if not points:
        raise ConfigError(
            "the settings contain no combination of size and concurrency to measure", where="--concurrency"
        )
    if bench.mix and not bench.has_limit:
        raise ConfigError(
            "mix: requires an end condition: --duration, --request-limit or --until-stable", where="--mix"
        )


def clear(folder: str) -> None:
    """Delete a folder that a benchmark made, with its objects.

    Raises:
        PreconditionFailed: The folder was replaced by a link.
        PenstockError: A request failed.
    """
    root = Path(local_path(folder)) if is_local(folder) else None
    if root is not None and root.is_symlink():
        raise PreconditionFailed(f"{root} is a link that the benchmark did not create", hint="remove the link")
    _native.clear_objects(folder, dict(env.read()))
    # Remove the folders of the key prefixes, but only if they are empty.
    for inner in (*root.glob("*/"), root) if root is not None else ():
        remove_empty_folder(inner)


def measure(
    folder: str,
    bench: ObjectBench,
    point: ObjectPoint,
    mix: dict[str, float],
    existing: list[str],
    hooks: Hooks,
    *,
    once: bool,
) -> list[Row]:
    """Measure one phase, and return one row per operation that sent requests.

    Args:
        existing: Keys of existing objects below `folder`, which are only read. If empty, the objects of this benchmark
            are used.
        once: Use each object once; the limits of `bench` do not apply.
    """
    spec = json.dumps(bench.native(folder, point, mix, existing, once=once))
    begin = partial(_native.ObjectPhase, spec, dict(env.read()))
    report = report_of(begin, "+".join(mix), point.concurrency, hooks)
    return [_row(operation, report, bench, point) for operation in report["operations"]]


def _point(folder: str, bench: ObjectBench, point: ObjectPoint, existing: list[str], hooks: Hooks) -> Iterator[Row]:
    def phase(mix: dict[str, float], *, once: bool, asked: ObjectBench = bench, hooks: Hooks = hooks) -> list[Row]:
        return measure(folder, asked, point, mix, existing, hooks, once=once)

    if bench.mix:
        if not bench.existing:
            yield from phase({"put": 1.0}, once=True)
        yield from phase(bench.mix, once=False)
        return
    if not bench.existing and "put" not in bench.operations:
        phase({"put": 1.0}, once=True, hooks=Hooks())  # creates the objects for the other phases; not measured
    for name in OPERATIONS:
        if name in bench.operations:
            # LIST does not use up objects, so a LIST phase without a limit would never end. PUT and DELETE end after
            # the last object.
            once = name in _WRITES or (name != "list" and not bench.has_limit)
            endless = name == "list" and not bench.has_limit
            limited = msgspec.structs.replace(bench, request_limit=point.concurrency * 4) if endless else bench
            yield from phase({name: 1.0}, once=once, asked=limited)


def _row(operation: dict[str, Any], report: dict[str, Any], bench: ObjectBench, point: ObjectPoint) -> Row:
    name = operation["operation"]
    index, has_body = OPERATIONS.index(name), name in _BODIES
    raw = {"request": name, "objects": str(bench.objects), "prefixes": str(bench.prefixes)}
    if bench.mix:
        raw["mix"] = " ".join(f"{word}={weight:g}" for word, weight in bench.mix.items())
    raw |= raw_of(report)
    if operation["verified_bytes"]:
        raw["verified_bytes"] = str(operation["verified_bytes"])
    if (ramp := report["ramp"]) is not None:
        seconds = report["last"]["seconds"] - ramp["seconds"]
        moved = report["last"]["totals"][index]["bytes"] - ramp["totals"][index]["bytes"]
        raw |= {"ramp_s": f"{ramp['seconds']:g}"}
        if seconds > 0 and has_body:
            raw["steady_bytes_per_s"] = f"{moved / seconds:.0f}"
    last = _end(report["last"], index, has_body=has_body)
    return Row(
        operation=_OPERATIONS[name],
        path_type="object",
        threads=point.concurrency,
        files=bench.objects,
        file_size_bytes=point.object_size_bytes if has_body and not bench.existing else None,
        block_size_bytes=bench.range_size_bytes if name == "range" else None,
        random=name == "range",
        first=_end(report["first"], index, has_body=has_body),
        last=last,
        entry_latency=Latency.of(operation["latency"]),
        service_latency=Latency.of(operation["attempt_latency"]),
        first_byte_latency=Latency.of(operation["first_byte_latency"]),
        errors_by_class={word: count for word, count in operation["failures"].items() if count},
        retries=operation["retries"],
        throttled_s=operation["throttled_s"],
        bytes_refetched=operation["bytes_refetched"],
        series=series_of(report["series"], entries="requests"),
        invalid=() if last.entries else ("no request was answered within the time limit",),
        raw=raw,
        **facts_of(report),
    )


def _end(end: dict[str, Any], index: int, *, has_body: bool) -> End:
    total = end["totals"][index]
    return end_of(
        end["seconds"],
        end["cpu_percent"],
        entries=total["requests"],
        ios=None,
        moved=total["bytes"] if has_body else None,
    )

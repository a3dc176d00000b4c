# SPDX-License-Identifier: Apache-2.0
"""Checks a plan file for values that are impossible or contradict each other. Each error states both values."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from penstock.errors import ConfigError
from penstock.plan.spec import Machine, PathSpec, PlanSpec, Store, Workload, nearest
from penstock.units import format_bytes, format_rate, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["check"]

# Fields for which 0 is valid: the number of held-out samples, and delays (0 means that a delay is not modelled).
_MAY_BE_ZERO = {"held_out", "allreduce_s", "ready_s", "distance_s", "latency_s", "checkpoint_s", "restart_s"}
_LOCAL_DISK = {"stage", "pool", "node-cache"}


def check(spec: PlanSpec) -> None:
    """Raise ConfigError for the first impossible value or contradiction of a plan."""
    spec.counts()
    named: dict[str, Sequence[msgspec.Struct]] = {
        "dataset": [spec.dataset],
        "workload": [spec.workload],
        "machine": spec.machines,
        "store": spec.stores,
    }
    named |= {"path": spec.paths, "place": [spec.place], "spot": [spec.spot] if spec.spot else []}
    for section, each in named.items():
        for struct in each:
            _check_numbers(section, struct)
    for section in ("machine", "store", "path"):
        if not named[section]:
            raise ConfigError(f"{section}: at least one [[{section}]] is required")
    _check_unique("machine", (machine.name for machine in spec.machines))
    _check_unique("store", (store.name for store in spec.stores))
    _check_unique("path", (path.title for path in spec.paths))
    _check_dataset(spec)
    for machine in spec.machines:
        _check_machine(machine, spec.workload)
    for store in spec.stores:
        _check_store(store)
    for path in spec.paths:
        _check_path(path, spec)
    _check_place(spec)


def _check_numbers(section: str, struct: msgspec.Struct) -> None:
    for field in msgspec.structs.fields(struct):
        value = getattr(struct, field.name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        is_valid = value > 0 or (value == 0 and field.name in _MAY_BE_ZERO)
        if not is_valid or not math.isfinite(value):
            raise ConfigError(f"{section}.{field.encode_name}: must be above 0 and finite (got {value:g})")


def _check_unique(section: str, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ConfigError(f"{section}: the name `{name}` occurs twice", hint="give each one its own name")
        seen.add(name)


def _check_dataset(spec: PlanSpec) -> None:
    data = spec.dataset
    if data.codec != "plain" and data.stored_bytes is None:
        raise ConfigError(f"dataset.codec is `{data.codec}`, but dataset.stored is missing", hint="add the stored size")
    if data.codec == "plain" and data.stored_bytes not in (None, data.raw_bytes):
        raise ConfigError(
            f"dataset.stored is {format_bytes(data.stored_bytes or 0)} and dataset.raw {format_bytes(data.raw_bytes)}, "
            "but the codec is plain, so they must be equal",
            hint='set dataset.codec = "gzip", or remove dataset.stored',
        )
    if data.objects is not None and data.objects > data.total_samples:
        raise ConfigError(
            f"dataset.objects is {data.objects:,}, but only {data.total_samples:,} samples exist: a sample cannot be in "
            "several objects"
        )


def _demand(of: Workload | Machine) -> list[str]:
    keys = {"step": of.step_s, "samples_per_s": of.samples_per_s, "reference": of.reference}
    if isinstance(of, Workload):
        keys["run"] = of.run
    return [key for key, value in keys.items() if value is not None]


def _check_machine(machine: Machine, workload: Workload) -> None:
    for where, given in ((f"machine `{machine.name}`", _demand(machine)), ("workload", _demand(workload))):
        if len(given) > 1:
            raise ConfigError(f"{where}: {' and '.join(given)} both state the step time", hint="give exactly one")
    if not _demand(machine) and not _demand(workload):
        raise ConfigError(
            f"workload: the step time of `{machine.name}` is missing", hint="give step, samples_per_s, reference or run"
        )
    counts = [count for _, count in machine.variants()]
    if not counts or min(counts) < 1 or len(set(counts)) < len(counts):
        raise ConfigError(
            f"machine `{machine.name}`: accelerators must be one or several different numbers above 0 (got {counts})"
        )
    if machine.payload_share > 1:
        raise ConfigError(f"machine `{machine.name}`: payload_share must be at most 1 (got {machine.payload_share:g})")


def _check_store(store: Store) -> None:
    account, connection = store.account_bytes_per_s, store.connection_bytes_per_s
    if account is not None and connection is not None and connection > account:
        raise ConfigError(
            f"store `{store.name}`: one connection ({format_rate(connection)}) cannot be faster than the account "
            f"({format_rate(account)})",
            hint="correct one of the two limits",
        )
    if store.tier is None and account is None:
        raise ConfigError(
            f"store `{store.name}`: neither tier nor account is given, so nothing limits it",
            hint="set tier to a built-in tier, such as azure-hot@2021, or account to the account's bandwidth",
        )


def _check_path(path: PathSpec, spec: PlanSpec) -> None:
    where = f"path `{path.title}`"
    names = [store.name for store in spec.stores]
    if path.store not in names:
        raise ConfigError(f"{where}: store `{path.store}` is not defined", hint=nearest(path.store, names))
    for form in (path.form, path.keep or path.form):
        if spec.dataset.bytes_as(form) is None:
            key = "planes" if form == "planes" else "stored"
            raise ConfigError(
                f"{where}: the size of the dataset as {form} is unknown (its codec is {spec.dataset.codec})",
                hint=f"add dataset.{key}, or use another form",
            )
        if form == "planes" and spec.workload.planes_bytes_per_s is None:
            raise ConfigError(f"{where}: requires workload.inflate_planes, the rate at which one core reads planes")
    if path.keep is not None and path.kind not in _LOCAL_DISK:
        raise ConfigError(f"{where}: `keep` is not allowed for {path.kind}, which keeps nothing on disk")
    if path.copies > 1 and path.kind != "pool":
        raise ConfigError(f"{where}: copies = {path.copies} is allowed only for a pool, not for {path.kind}")
    if path.staged_in_s is not None and path.kind not in ("stage", "pool"):
        raise ConfigError(
            f"{where}: staged_in = {format_seconds(path.staged_in_s)}, but {path.kind} does not stage anything"
        )
    if path.reader_bytes_per_s is not None:
        account = spec.store(path.store).account_bytes_per_s
        if account is not None and path.reader_bytes_per_s > account:
            raise ConfigError(
                f"{where}: one reader ({format_rate(path.reader_bytes_per_s)}) cannot be faster than the account of "
                f"`{path.store}` ({format_rate(account)})",
                hint="correct one of the two limits",
            )
    if path.kind in _LOCAL_DISK:
        for machine in spec.machines:
            needed = [machine.disk_read_bytes_per_s, machine.disk_bytes]
            needed += [machine.disk_write_bytes_per_s] if path.kind != "node-cache" else []
            if None in needed:
                raise ConfigError(
                    f"{where}: uses local disks, but machine `{machine.name}` does not declare all disk values that "
                    "this path needs",
                    hint="add disk, disk_read and disk_write to [[machine]]",
                )


def _check_place(spec: PlanSpec) -> None:
    place = spec.place
    if place.is_cross_zone and place.crosses == "region":
        raise ConfigError(
            f"place: cross_zone and data_region = `{place.data_region}` contradict each other "
            f"(the nodes are in `{place.region}`)",
            hint="give one of the two",
        )
    if place.replicates and place.crosses == "none":
        raise ConfigError("place.replicate: data and nodes are in the same region and zone, so nothing is copied")
    if place.replicates and place.link_bytes_per_s is None:
        raise ConfigError("place.replicate: requires place.link, the rate between the two regions")

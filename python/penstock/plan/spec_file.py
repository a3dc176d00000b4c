# SPDX-License-Identifier: Apache-2.0
"""Reads a plan file: TOML with units. An unknown key is an error that suggests the nearest known key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import msgspec.inspect

from penstock.errors import ConfigError, NotFound
from penstock.plan.spec import SCHEMA_VERSION, PlanSpec, nearest
from penstock.plan.spec_checks import check
from penstock.units import parse_bytes, parse_rate, parse_seconds

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["load", "parse"]

_PARSERS: dict[str, Callable[[str], float]] = {"rate": parse_rate, "size": parse_bytes, "duration": parse_seconds}


def load(path: Path) -> PlanSpec:
    """Read a plan file.

    Raises:
        NotFound: The file does not exist.
        ConfigError: The file is not TOML, a key is unknown (the hint has the nearest names), a value is invalid, or
            limits contradict each other.
    """
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise NotFound(f"{path} does not exist", where=str(path)) from None
    try:
        content = msgspec.toml.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}", where=str(path)) from error
    try:
        return _with_measured_step(parse(content), path.parent)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}", where=str(path), hint=error.hint) from error


def _with_measured_step(spec: PlanSpec, folder: Path) -> PlanSpec:
    """Replace `workload.run` by the step time and the allreduce of that run."""
    if spec.workload.run is None:
        return spec
    from penstock.bench.results import load as load_run
    from penstock.plan.measured_job import job_from_run

    job = job_from_run(
        load_run(folder / spec.workload.run),
        samples=1,
        epochs=1,
        stored_bytes=1,
        nic_bytes_per_s=1,
        account_bytes_per_s=1,
    )
    if job.batch_per_rank != spec.workload.batch:
        raise ConfigError(
            f"workload.run: {spec.workload.run} was measured with a batch of {job.batch_per_rank} per rank, but "
            f"workload.batch is {spec.workload.batch}; the duration of a step is valid only for the measured batch",
            hint=f"set workload.batch = {job.batch_per_rank}, or measure a run with a batch of {spec.workload.batch}",
        )
    workload = msgspec.structs.replace(
        spec.workload, run=None, step_s=job.compute_step_s, allreduce_s=job.exposed_allreduce_s
    )
    return msgspec.structs.replace(spec, workload=workload)


def parse(content: dict[str, Any]) -> PlanSpec:
    """Convert a decoded document to a plan.

    Raises:
        ConfigError: As `load`.
    """
    version = content.get("schema_version", SCHEMA_VERSION)
    if not isinstance(version, int) or version > SCHEMA_VERSION:
        raise ConfigError(f"schema_version {version!r}: this build reads {SCHEMA_VERSION}", hint="update penstock")
    kind = msgspec.inspect.type_info(PlanSpec)
    assert isinstance(kind, msgspec.inspect.StructType)
    try:
        spec = msgspec.convert(_numbers(content, kind, ""), PlanSpec)
    except msgspec.ValidationError as error:
        raise ConfigError(str(error).replace(" - at `$.", ", at `").replace("Object missing", "missing")) from error
    check(spec)
    return spec


def _numbers(value: Any, kind: msgspec.inspect.Type, where: str) -> Any:
    """Replace quantities such as `50Gbit/s` by numbers, and refuse unknown keys. `where` is the place in the file."""
    if isinstance(kind, msgspec.inspect.UnionType):
        texts = (msgspec.inspect.StrType, msgspec.inspect.NoneType)
        inner = [each for each in kind.types if not isinstance(each, texts)]
        return _numbers(value, inner[0], where) if len(inner) == 1 else value
    if isinstance(kind, msgspec.inspect.Metadata):
        if not isinstance(value, str):
            return value
        try:
            return _PARSERS[(kind.extra or {})["quantity"]](value)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}", hint=error.hint) from None
    if isinstance(kind, msgspec.inspect.VarTupleType) and isinstance(value, list):
        return [_numbers(each, kind.item_type, f"{where}[{at}]") for at, each in enumerate(value)]
    if isinstance(kind, msgspec.inspect.StructType) and isinstance(value, dict):
        fields = {field.encode_name: field.type for field in kind.fields}
        found = {}
        for key, inner in value.items():
            place = f"{where}.{key}" if where else key
            if key not in fields:
                raise ConfigError(f"{place}: unknown key", hint=nearest(key, fields))
            found[key] = _numbers(inner, fields[key], place)
        return found
    return value

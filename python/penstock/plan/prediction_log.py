# SPDX-License-Identifier: Apache-2.0
"""Log of predictions: JSON lines in the results folder, appended before anything is measured and never changed."""

from __future__ import annotations

import fcntl
import os
from typing import TYPE_CHECKING

import msgspec

from penstock.bench.results import as_fault
from penstock.errors import Corrupt, NotFound, SystemFault

if TYPE_CHECKING:
    from collections.abc import Iterable
    from io import FileIO
    from pathlib import Path

    from penstock.plan.result import PlanResult

__all__ = ["LOG", "LoggedPrediction", "append", "read", "rows_of"]

LOG = "predictions.jsonl"
SCHEMA_VERSION = 1
_MAX_LINE_BYTES = 1 << 20  # far above a row's few hundred bytes


class LoggedPrediction(msgspec.Struct, frozen=True, kw_only=True):
    """One prediction, as it was logged. Times in seconds.

    Attributes:
        path: Name of the path. A run whose label is this name belongs to the prediction.
        spec_hash: Hash of the plan file.
        samples: Training samples of one epoch.
    """

    id: str
    plan: str
    created: str
    spec_hash: str
    path: str
    machine: str
    nodes: int
    accelerators: int
    samples: int
    samples_per_s: float
    first_epoch_s: float
    epoch_s: float
    stage_s: float
    job_s: float
    money: float | None
    currency: str
    limited_by: str
    schema_version: int = SCHEMA_VERSION


def rows_of(result: PlanResult) -> list[LoggedPrediction]:
    """The possible predictions of a plan, as rows of the log."""
    return [
        LoggedPrediction(
            id=row.id,
            plan=result.name,
            created=result.created,
            spec_hash=result.spec_hash,
            path=row.prediction.path,
            machine=row.prediction.machine,
            nodes=row.prediction.nodes,
            accelerators=row.prediction.accelerators,
            samples=result.spec["dataset"]["samples"],
            samples_per_s=row.prediction.samples_per_s,
            first_epoch_s=row.prediction.first_epoch_s,
            epoch_s=row.prediction.epoch_s,
            stage_s=row.prediction.stage_s,
            job_s=row.prediction.job_s,
            money=row.prediction.money.total,
            currency=result.currency,
            limited_by=row.prediction.limited_by,
        )
        for row in result.rows
        if not row.prediction.impossible
    ]


def append(rows: Iterable[LoggedPrediction], folder: Path) -> Path:
    """Append rows to the log in a results folder. Processes may do this concurrently.

    A last line that a crash cut off is removed first, because `read` would otherwise join it with the next row.

    Returns:
        Path of the log.
    Raises:
        Denied, NoSpace, SystemFault: The log cannot be written. In that case, it contains none of the rows.
    """
    file = folder / LOG
    text = b"".join(msgspec.json.encode(row) + b"\n" for row in rows)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with file.open("a+b", buffering=0) as out:
            fcntl.flock(out, fcntl.LOCK_EX)
            end = _end_of_last_line(out)
            out.truncate(end)
            try:
                rest = memoryview(text)
                while rest:
                    rest = rest[out.write(rest) :]
                os.fsync(out.fileno())
            except OSError:
                out.truncate(end)
                raise
    except OSError as error:
        raise as_fault(error, str(file)) from None
    return file


def _end_of_last_line(log: FileIO) -> int:
    start = max(0, log.seek(0, os.SEEK_END) - _MAX_LINE_BYTES)
    log.seek(start)
    return start + log.read().rfind(b"\n") + 1


def read(folder: Path) -> list[LoggedPrediction]:
    """All logged predictions of a results folder, oldest first. A last line that was cut off by a crash is skipped.

    Raises:
        NotFound: The folder has no log.
        Corrupt: A line is not a prediction, or has a newer schema.
    """
    file = folder / LOG
    try:
        lines = file.read_bytes().split(b"\n")
    except FileNotFoundError:
        raise NotFound(
            f"{file} does not exist",
            where=str(file),
            hint=f"run `penstock plan SPEC --log {folder}` before you measure",
        ) from None
    except OSError as error:
        raise SystemFault(f"{file} cannot be read: {error.strerror}", where=str(file)) from None
    found = []
    for number, line in enumerate(lines[:-1], 1):  # the last part is empty, or a line without its end
        try:
            version = msgspec.json.decode(line, type=_Versioned).schema_version
            if version > SCHEMA_VERSION:
                raise Corrupt(
                    f"{file}, line {number} has schema version {version}, but this build reads up to {SCHEMA_VERSION}",
                    hint="update penstock",
                    where=str(file),
                )
            found.append(msgspec.json.decode(line, type=LoggedPrediction))
        except msgspec.MsgspecError as error:
            raise Corrupt(f"{file}, line {number} is not a prediction: {error}", where=str(file)) from None
    return found


class _Versioned(msgspec.Struct):
    schema_version: int

# SPDX-License-Identifier: Apache-2.0
"""Compares logged predictions with measured runs, and makes a table of errors. Never changes a prediction.

A run of `penstock train` belongs to the latest prediction that was logged before the run began and whose path, or id,
is the run's label. A comparison of `penstock demo` contains both the predicted and the measured figure of each path.
"""

from __future__ import annotations

import datetime as dt
import math
from statistics import median
from typing import TYPE_CHECKING

import msgspec

from penstock.bench import results
from penstock.errors import ConfigError, Corrupt, NotFound
from penstock.plan import prediction_log

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from penstock.bench.results import RunRecord
    from penstock.plan.prediction_log import LoggedPrediction

__all__ = ["CheckedRun", "Errors", "check", "markdown"]

COMPARISON = "comparison.json"
SCHEMA_VERSION = 1


class CheckedRun(msgspec.Struct, frozen=True, kw_only=True):
    """One measured epoch time beside its prediction. `error` is predicted / measured - 1."""

    prediction: str
    run: str
    path: str
    predicted_epoch_s: float
    measured_epoch_s: float
    limited_by: str
    predicted_stage_s: float = 0.0
    measured_stage_s: float = 0.0

    @property
    def error(self) -> float:
        """Signed error as a share: 0.1 if the prediction is 10 % too slow."""
        return self.predicted_epoch_s / self.measured_epoch_s - 1


class Errors(msgspec.Struct, frozen=True, kw_only=True):
    """All compared runs.

    Attributes:
        median_error, worst_error: Median and maximum of the absolute errors of the epoch time.
        skipped: Runs that were left out, each with the reason.
    """

    rows: tuple[CheckedRun, ...]
    median_error: float
    worst_error: float
    skipped: tuple[str, ...] = ()
    schema_version: int = SCHEMA_VERSION


def check(runs: Sequence[Path], log: Path | None = None) -> Errors:
    """Compare runs with their predictions.

    Args:
        runs: Folders of runs, folders that contain runs, or folders of `penstock demo`.
        log: Folder with the log of predictions; by default each run's own results folder.
    Raises:
        NotFound: A folder does not exist or is empty, or its log is missing.
        ConfigError: None of the runs belongs to a prediction; the error lists the reasons.
    """
    rows: list[CheckedRun] = []
    skipped: list[str] = []
    logs: dict[Path, list[LoggedPrediction]] = {}
    for folder in runs:
        if (folder / COMPARISON).is_file():
            rows += _of_demo(folder / COMPARISON)
            continue
        for file in _results(folder):
            record = results.load(file)
            where = log or _log_folder(file)
            if where not in logs:
                logs[where] = prediction_log.read(where)
            reason = _unusable(record)
            prediction = None if reason else _match(record, logs[where])
            if prediction is None:
                skipped.append(f"{record.id}: {reason or _unmatched(record, logs[where])}")
                continue
            rows.append(
                CheckedRun(
                    prediction=prediction.id,
                    run=record.id,
                    path=prediction.path,
                    predicted_epoch_s=prediction.epoch_s,
                    measured_epoch_s=_epoch_s(record),
                    limited_by=prediction.limited_by,
                    predicted_stage_s=prediction.stage_s,
                    measured_stage_s=record.stage_s,
                )
            )
    if not rows:
        raise ConfigError(
            f"none of {len(skipped)} runs belongs to a prediction: {'; '.join(skipped[:3])}",
            hint="label a run with the name of its path: penstock train --label PATH",
        )
    errors = [abs(row.error) for row in rows]
    return Errors(rows=tuple(rows), median_error=median(errors), worst_error=max(errors), skipped=tuple(skipped))


def _results(folder: Path) -> list[Path]:
    if folder.is_file():
        return [folder]
    if not folder.is_dir():
        raise NotFound(f"{folder} does not exist", where=str(folder))
    own = folder / "result.json"
    found = [own] if own.is_file() else sorted(folder.glob("*/result.json"))
    if not found:
        raise NotFound(
            f"{folder} contains no runs", where=str(folder), hint="give a folder that `penstock train` wrote"
        )
    return found


def _log_folder(file: Path) -> Path:
    """Return the results folder DIR of the file DIR/ID/result.json."""
    return file.resolve().parent.parent


def _unusable(record: RunRecord) -> str:
    if record.invalid:
        return f"INVALID: {'; '.join(record.invalid)}"
    if not record.complete or not record.epoch_times:
        return "it did not complete an epoch"
    return ""


def _epoch_s(record: RunRecord) -> float:
    """Mean duration of an epoch. Each epoch lasts as long as its slowest rank takes."""
    slowest: dict[int, float] = {}
    seen: dict[int, int] = {}
    for one in record.epoch_times:
        rank = one["rank"]
        epoch = seen.get(rank, 0)
        seen[rank] = epoch + 1
        slowest[epoch] = max(slowest.get(epoch, 0.0), one["wall_s"])
    return sum(slowest.values()) / len(slowest)


def _match(record: RunRecord, logged: Iterable[LoggedPrediction]) -> LoggedPrediction | None:
    """The latest prediction for the run's label that was logged before the run."""
    began = _time(record.created)
    fits = [
        row
        for row in logged
        if record.label in (row.path, row.id) and _time(row.created) <= began and row.accelerators == record.world
    ]
    return fits[-1] if fits else None


def _unmatched(record: RunRecord, logged: Sequence[LoggedPrediction]) -> str:
    same = [row for row in logged if record.label in (row.path, row.id)]
    if not record.label:
        return "the run has no label"
    if not same:
        return f"no prediction for `{record.label}` is logged"
    worlds = sorted({row.accelerators for row in same})
    if record.world not in worlds:
        return f"the run has {record.world} ranks, and predictions for `{record.label}` have {worlds}"
    return f"the prediction for `{record.label}` was logged after the run had begun"


def _time(text: str) -> dt.datetime:
    try:
        found = dt.datetime.fromisoformat(text)
    except ValueError:
        raise Corrupt(f"`{text}` is not a time") from None
    return found if found.tzinfo is not None else found.replace(tzinfo=dt.UTC)


class _DemoPath(msgspec.Struct):
    label: str
    samples_per_s: float
    model_samples_per_s: float = 0.0
    limited_by: str = ""
    run: str = ""


class _DemoRehearsal(msgspec.Struct):
    samples: int


class _Demo(msgspec.Struct):
    paths: list[_DemoPath]
    rehearsal: _DemoRehearsal
    invalid: str = ""


def _of_demo(file: Path) -> list[CheckedRun]:
    try:
        found = msgspec.json.decode(file.read_bytes(), type=_Demo)
    except msgspec.MsgspecError as error:
        raise Corrupt(f"{file} is not a comparison: {error}", where=str(file)) from None
    return [
        CheckedRun(
            prediction="demo, before its rehearsal",
            run=path.run or str(file.parent),
            path=path.label,
            predicted_epoch_s=found.rehearsal.samples / path.model_samples_per_s,
            measured_epoch_s=found.rehearsal.samples / path.samples_per_s,
            limited_by=path.limited_by,
        )
        for path in found.paths
        if path.model_samples_per_s > 0 and math.isfinite(path.model_samples_per_s) and path.samples_per_s > 0
    ]


def markdown(found: Errors) -> str:
    """The table of errors for a results folder and the documentation."""
    lines = ["| path | prediction | run | predicted epoch | measured epoch | error | predicted limit |"]
    lines.append("|---|---|---|---:|---:|---:|---|")
    lines += [
        f"| {row.path} | {row.prediction} | {row.run} | {row.predicted_epoch_s:.2f} s | {row.measured_epoch_s:.2f} s "
        f"| {100 * row.error:+.1f} % | {row.limited_by} |"
        for row in found.rows
    ]
    lines.append("")
    lines.append(
        f"Error of the epoch time over {len(found.rows)} runs: median {100 * found.median_error:.1f} %, "
        f"worst {100 * found.worst_error:.1f} %."
    )
    lines += [f"Left out: {text}." for text in found.skipped]
    return "\n".join(lines) + "\n"

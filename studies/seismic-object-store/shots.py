# SPDX-License-Identifier: Apache-2.0
"""Second table: seconds of a shot for each backend, number of workers and store, split into I/O and compute."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from penstock.emulator import Emulator
from penstock.errors import RankFailed
from penstock.study.result import PartResult, Value

from . import disks, report

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from penstock.study.run import Context

__all__ = ["measure", "run"]

_IO = ("claim_s", "read_s", "write_s")


def run(context: Context) -> PartResult:
    """Migrate the shots, and compare the images of all backends."""
    expected = context.study.expected.tables
    with disks.opened(context) as (found, missing):
        rows = measure(context.size, context.study.tables["limits"], found)
    one = {row["backend"]: row for row in rows if (row["disk"], row["workers"]) == ("local", 1)}
    note = f"a smaller shot, {' x '.join(map(str, context.size['model']))} points, on one machine"
    return PartResult(
        measured={
            f"shot-{name}-10": Value(row["shot_s"], note, is_comparable=False)
            for name, row in one.items()
            if name in report.SHOTS
        },
        claims=tuple(report.shot_claims(rows, expected)),
        blocks=tuple(report.shot_blocks(rows, context.size, expected)),
        not_measured=tuple(missing),
        data=rows,
    )


def measure(size: Mapping[str, Any], limits: Mapping[str, Any], folders: Mapping[str, Path]) -> list[dict[str, Any]]:
    """Migrate the same shots on each backend of each disk with one worker, then with more workers on two of them.

    Returns:
        A row for each disk, backend and number of workers; `sha256` is of the stacked image.
    """
    rows = []
    for disk, folder in folders.items():
        for backend in size["backends"] if disk in size["shot_disks"] else ():
            # Workers are a question of CPU and of requests: on one disk, with files and with S3.
            many = disk == "local" and backend.startswith("zarr-blosc")
            rows += _job(disk, backend, folder, size, limits["tier"], size["workers"] if many else [1])
    return rows


def _job(
    disk: str, backend: str, folder: Path, size: Mapping[str, Any], tier: str, workers: list[int]
) -> list[dict[str, Any]]:
    place, server, variables = folder / f"job-{uuid4().hex[:8]}", None, {}
    place.mkdir()
    with ExitStack() as running:
        running.callback(shutil.rmtree, place)
        url = f"{place}/job"
        if backend.endswith("-s3"):
            server = running.enter_context(Emulator(place, tier=tier))
            url, variables = f"{server.url.rstrip('/')}/job", server.env
        _rtm(
            variables, "prepare", url, "--shape", ",".join(map(str, size["model"])), "--spacing", size["spacing_km"],
            "--frequency", size["frequency_hz"], "--shots", size["shots"], "--backend", backend.removesuffix("-s3"),
        )  # fmt: skip
        _rtm(variables, "shots", url, "--stage", "model")
        rows: list[dict[str, Any]] = []
        redo: list[object] = []
        for count in workers:
            before = server.stats() if server else {}
            _rtm(variables, "shots", url, "--stage", "migrate", "--workers", count, *redo)
            requests = (
                {name: server.stats()[name] - before[name] for name in ("gets", "heads", "puts", "lists", "deletes")}
                if server
                else {}
            )
            stage = _rtm(variables, "status", url)["stages"]["migrate"]
            rows.append({
                "disk": disk, "backend": backend, "workers": count, "shots": size["shots"], **_seconds(stage["shots"]),
                "cpu_s": round(stage["cpu_s"], 4),
                "sha256": _rtm(variables, "stack", url)["sha256"],
                "requests_per_shot": {name: round(each / size["shots"], 2) for name, each in requests.items()},
            })  # fmt: skip
            redo = [word for shot in range(size["shots"]) for word in ("--redo", shot)]
        return rows


def _seconds(shots: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Medians over the shots. A median of sums is not the sum of medians: each is of its own column."""
    columns = {
        "shot_s": [sum(parts.values()) for parts in shots.values()],
        "io_s": [sum(parts[name] for name in _IO) for parts in shots.values()],
        "compute_s": [parts["compute_s"] for parts in shots.values()],
    }
    return {name: round(statistics.median(column), 4) for name, column in columns.items()}


def _rtm(variables: Mapping[str, str], *words: object) -> dict[str, Any]:
    argv = [sys.executable, "-m", "penstock", "array", "rtm", *map(str, words), "--json"]
    done = subprocess.run(argv, env={**os.environ, **variables}, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RankFailed(f"{' '.join(argv[2:])}: {done.stderr.strip()}", rank=0)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found

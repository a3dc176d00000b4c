# SPDX-License-Identifier: Apache-2.0
"""First table: one application writes a model volume to five backends, on the local disk and on a disk of 64 MB/s."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import numpy as np

from penstock.arrays.model_volumes import model_volume
from penstock.emulator import Emulator
from penstock.errors import RankFailed
from penstock.study.result import PartResult, Value

from . import disks, report
from .application import BACKENDS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.study.run import Context

__all__ = ["MODELS", "ORDER", "measure", "run"]

MODELS = ("layered", "seismic")
ORDER = ("segy", "hdf5", "zarr", "zarr-blosc", "zarr-blosc-s3", "best", "best-s3")
"""The study's five backends, then our default setting (Blosc in shards) on a disk and on S3."""

assert {name.removesuffix("-s3") for name in ORDER} == set(BACKENDS)


def run(context: Context) -> PartResult:
    """Write the volumes, and compare their order with the published one."""
    limits, expected = context.study.tables["limits"], context.study.expected.tables
    with disks.opened(context) as (found, missing):
        rows = measure(context.size, limits, context.scratch, found)
    return PartResult(
        predicted={
            f"volume-{name}": Value(each["bytes"] / limits["disk_bytes_per_s"], "the file system's 64 MB/s")
            for name, each in expected["volumes"].items()
            if "bytes" in each
        },
        measured=_measured(rows),
        claims=tuple(report.volume_claims(rows, expected)),
        blocks=tuple(report.volume_blocks(rows, context.size, expected)),
        not_measured=tuple(missing),
        data=rows,
    )


def _measured(rows: Sequence[Mapping[str, Any]]) -> dict[str, Value]:
    """Seconds of the homogeneous volume at 64 MB/s; F is its size divided by the published 20 GB."""
    return {
        f"volume-{row['backend']}": Value(
            row["seconds"], "volume of F times 20 GB", min(row["all_seconds"]), max(row["all_seconds"]),
            float(f"{row['volume_bytes'] / 20e9:.2g}"),
        )
        for row in rows
        if (row["disk"], row["model"]) == (disks.LIMITED, "layered") and row["backend"] in report.STUDY
    }  # fmt: skip


def measure(
    size: Mapping[str, Any], limits: Mapping[str, Any], scratch: Path, folders: Mapping[str, Path]
) -> list[dict[str, Any]]:
    """Write each model to each backend on each disk, in turns.

    Args:
        size: Table of the spec: `volume` and `repeats`.
        limits: Table of the spec: `tier` of the S3 server.
        scratch: Folder for the inputs.
        folders: Name of a disk -> folder on it.
    Returns:
        A row for each disk, model and backend, with medians.
    """
    rows = []
    for model in MODELS:
        values, dims, coords, attrs = model_volume(model, size["volume"])
        want = hashlib.sha256(values.tobytes()).hexdigest()
        np.save(scratch / "values.npy", values)
        (scratch / "grid.pickle").write_bytes(pickle.dumps((dims, coords, attrs)))
        inputs = {"values": str(scratch / "values.npy"), "grid": str(scratch / "grid.pickle")}
        volume_bytes = values.nbytes
        del values
        for disk, folder in folders.items():
            found: dict[str, list[dict[str, Any]]] = {backend: [] for backend in ORDER}
            for repeat in range(size["repeats"]):
                for backend in ORDER:
                    found[backend].append(_write(backend, inputs, folder, limits["tier"], reads_back=repeat == 0))
            for backend, runs in found.items():
                rows.append(
                    {
                        "disk": disk, "model": model, "backend": backend, "volume_bytes": volume_bytes,
                        "is_same": runs[0]["sha256"] == want,
                        **{name: runs[0][name] for name in ("stored_bytes", "objects", "requests")},
                        **{
                            name: round(statistics.median(run[name] for run in runs), 4)
                            for name in ("seconds", "cpu_s", "server_cpu_s")
                        },
                        "all_seconds": [round(run["seconds"], 3) for run in runs],
                    }
                )  # fmt: skip
    return rows


def _write(backend: str, inputs: Mapping[str, str], disk: Path, tier: str, *, reads_back: bool) -> dict[str, Any]:
    folder = disk / f"volume-{uuid4().hex[:8]}"
    folder.mkdir()
    given: dict[str, Any] = {**inputs, "backend": backend, "folder": str(folder), "stored_at": str(folder)}
    variables: dict[str, str] = {}
    facts: dict[str, Any] = {"requests": 0, "server_cpu_s": 0.0}
    with ExitStack() as running:
        running.callback(shutil.rmtree, folder)
        server = None
        if backend.endswith("-s3"):
            server = running.enter_context(Emulator(folder, tier=tier))
            given["folder"], variables = server.url, server.env
        # The threads of the server are in this process, which only waits.
        cpu = time.process_time()
        facts |= _run(given, variables)
        if server is not None:
            facts |= {"requests": server.stats()["requests"], "server_cpu_s": time.process_time() - cpu}
        files = [file.stat().st_size for file in folder.rglob("*") if file.is_file()]
        facts |= {"stored_bytes": sum(files), "objects": len(files)}
        if reads_back:
            facts |= _run({**given, "options": facts["options"]}, variables)
    return facts


def _run(given: Mapping[str, Any], variables: Mapping[str, str]) -> dict[str, Any]:
    argv = [sys.executable, str(Path(__file__).with_name("application.py")), json.dumps(given)]
    done = subprocess.run(argv, env={**os.environ, **variables}, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RankFailed(f"{given['backend']}: {done.stderr.strip()}", rank=0)
    found: dict[str, Any] = json.loads(done.stdout)
    return found

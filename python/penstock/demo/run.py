# SPDX-License-Identifier: Apache-2.0
"""Runs the demo: generates the data, trains over each path, and writes the report.

Owns the order of the steps, the emulator processes and the temporary data. Cleans up in every case.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from penstock import env, tiers
from penstock.demo import data, predict
from penstock.demo.compare import MeasuredPath, compare
from penstock.demo.mount_tier import as_toml, mounted
from penstock.demo.paths import PATHS, DemoPath
from penstock.demo.train_paths import TrainingTask, train_all
from penstock.errors import Denied, PreconditionFailed, SystemFault
from penstock.ownership import NotOwned, OwnedFolder, identity_of, remove_made
from penstock.plan.reference_job import JOB
from penstock.report.comparison import Comparison, write
from penstock.report.comparison_page import write_page

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.bench.results import RunRecord
    from penstock.demo.sizes import Size
    from penstock.emulator import Emulator
    from penstock.tiers import Tier
    from penstock.train import FeedFactory, TrainSpec

__all__ = ["COMPARISON", "DATA", "REPORT", "DemoSpec", "run", "served", "tier_of", "time_path"]

REPORT = "report.html"
COMPARISON = "comparison.json"
RUNS = "runs"
ACCELERATOR = "v100x32@2021"
# docs/decisions/0702-demo-learns-from-a-large-box.md
LEARNING = {"recipe": "demo", "base_learning_rate": 0.004, "decay_epochs": [3, 4], "decay_factors": [0.3, 0.1]}
DATA = "penstock-demo-data"
_MARK = ".penstock-demo"


class DemoSpec(msgspec.Struct, frozen=True):
    """Settings of a demo.

    Attributes:
        out: Folder for the report, the comparison and the runs; created if missing.
        keep: Keep the generated data in `out`, too.
    """

    out: Path
    size: Size
    seed: int = 1
    keep: bool = False


def run(spec: DemoSpec, progress: Callable[[str], None], *, today: dt.datetime | None = None) -> Comparison:
    """Run the whole demo and write its report.

    Args:
        progress: Called with a message when a step begins.
        today: Date of the report, also used for the age of prices.
    Raises:
        Denied, NoSpace, SystemFault: The folder cannot be written or is too small.
        PenstockError: A step failed. Servers are stopped and temporary data is removed first.
    """
    began = time.perf_counter()
    today = today or dt.datetime.now(dt.UTC)
    size = spec.size
    with _folder(spec) as work:
        data.check_space(work, size.free_bytes)
        bucket = work / "bucket"
        data.make(bucket, size, spec.seed, lambda what: progress(f"Making {what}"))
        stored = _mean_size(bucket / "gzip" / "volumes")
        progress("Probing this machine: time for one core to inflate and check a byte")
        probe = _probe(bucket / "gzip" / "volumes", size)
        found = {path.name: tier_of(path) for path in PATHS}
        prediction = {
            path.name: predict.rehearsal(
                path, predict.Limits.of(found[path.name]), size, stored_bytes=stored, cores=_cores(), probe=probe
            )
            for path in PATHS
        }
        staged = _stage_all(spec, found, bucket, work, progress)
        learnt = _train_all(spec, found, bucket, work, progress)
        measured = []
        for path in PATHS:
            progress(
                f"{path.label}: {size.volumes} volumes for 32 emulated accelerators (the model predicts "
                f"{prediction[path.name].samples_per_s:.0f} samples/s)"
            )
            took, moved = staged if path.staged else (0.0, 0)
            with served(path, found[path.name], bucket, work, size.scale) as server:
                timed = time_path(spec, path, _base(path, server, work), took)
            measured.append(
                MeasuredPath(path, found[path.name], learnt[path.name], timed, prediction[path.name], took, moved)
            )
    progress("Writing the report")
    facts = compare(
        measured, spec.size, stored_bytes=stored, probe=probe, today=today, seconds=time.perf_counter() - began
    )
    write(facts, spec.out / COMPARISON)
    write_page(facts, spec.out / REPORT)
    return facts


@contextlib.contextmanager
def _folder(spec: DemoSpec) -> Iterator[Path]:
    """Context manager: a data folder inside the output folder. If `spec.keep` is not set, the folder is removed at the
    end.
    """
    try:
        spec.out.mkdir(parents=True, exist_ok=True)
        work = _kept(spec.out / DATA) if spec.keep else Path(tempfile.mkdtemp(prefix=f".{DATA}-", dir=spec.out))
    except PreconditionFailed:
        raise
    except PermissionError as error:
        raise Denied(
            f"{spec.out} cannot be written: {error.strerror}", hint="use --output with a folder that you own"
        ) from error
    except OSError as error:
        raise SystemFault(
            f"{spec.out} cannot be used as a folder: {error.strerror}", hint="use --output DIR"
        ) from error
    made = identity_of(work)
    try:
        yield work
    finally:
        if not spec.keep:
            remove_made(work, made)


def _kept(folder: Path) -> Path:
    """Create the folder for kept data, or empty it: data of an earlier demo is removed, except the marker file.

    Raises:
        PreconditionFailed: The folder contains files that are not from a demo.
    """
    try:
        with OwnedFolder.made(str(folder), is_private=False) as held:
            if held.names() and held.read(_MARK) is None:
                raise PreconditionFailed(
                    f"{folder} exists and is not from an earlier demo",
                    where=str(folder),
                    hint="use --output with another folder",
                )
            # Write the marker first: if no file were kept, `remove` would delete the folder itself.
            held.write(
                _MARK, b"Data of penstock demo: the next demo with --keep removes what lies here.\n", replaces=True
            )
            held.remove(keep=(_MARK,))
    except NotOwned as error:
        raise PreconditionFailed(str(error), where=str(folder), hint="use --output with another folder") from error
    return folder


def _mean_size(folder: Path) -> float:
    sizes = [f.stat().st_size for f in folder.iterdir()]
    return sum(sizes) / len(sizes)


def _open(url: str, voxels: int) -> Any:
    import penstock

    # The dataset's publisher states one record per object. Declaring this number saves the requests that would
    # determine it.
    return penstock.open(url, records_per_object=1).fields(
        x=penstock.tensor("int16", (voxels, voxels, voxels, 4)), y=penstock.tensor("float32", (4,))
    )


def _probe(folder: Path, size: Size) -> predict.Probe:
    """Read local files once with one decoding thread; return the CPU seconds to decompress and to decode a raw byte."""
    import penstock

    loader = penstock.Loader(
        _open(f"{folder}/", size.voxels), batch_size=size.batch, rank=0, world=1, threads=1, tail="drop"
    )
    for batch in loader:
        del batch
    result = loader.report()
    done = result["samples"] * size.sample_bytes
    return predict.Probe(result["busy_inflate_s"] / done, result["busy_decode_s"] / done)


def _server(path: DemoPath, tier: Tier, bucket: Path, work: Path, scale: float) -> Emulator:
    """Emulator that serves the bucket with the path's tier; not started yet."""
    from penstock.emulator import Emulator

    page = work / f"{path.name}.toml"
    page.write_text(as_toml(tier), encoding="utf-8")
    return Emulator(bucket, tier=tier.name, scale=scale, tiers=page)


@contextlib.contextmanager
def served(path: DemoPath, tier: Tier, bucket: Path, work: Path, scale: float) -> Iterator[Emulator]:
    """Context manager: a running emulator, with the environment variables of this process pointing to it."""
    with _server(path, tier, bucket, work, scale) as server, env.override(server.env):
        yield server


def tier_of(path: DemoPath) -> Tier:
    """Tier of the path's store. For a mount, each reader is limited to the rate of the published mount."""
    tier = tiers.find(path.tier)
    return mounted(tier, JOB.sample_bytes) if path.mount else tier


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _base(path: DemoPath, server: Emulator, work: Path) -> str:
    """URL or folder of the path's copy of the data."""
    return f"{work}/staged/" if path.staged else f"{server.url}{path.stored}/"


def _stage_all(
    spec: DemoSpec, found: dict[str, Tier], bucket: Path, work: Path, progress: Callable[[str], None]
) -> tuple[float, int]:
    """Stage all data to the local disk; return the seconds and bytes of staging the comparison's volumes."""
    size = spec.size
    path = next(p for p in PATHS if p.staged)
    progress(
        f"{path.label}: staging {size.volumes + size.learn_samples + size.held_out} objects, inflated and verified"
    )
    with served(path, found[path.name], bucket, work, size.scale) as server:
        for name in ("train", "held-out"):
            _stage(f"{server.url}gzip/{name}/", work / "staged" / name)
        return _stage(f"{server.url}gzip/volumes/", work / "staged" / "volumes")


def _train_all(
    spec: DemoSpec, found: dict[str, Tier], bucket: Path, work: Path, progress: Callable[[str], None]
) -> dict[str, RunRecord]:
    """Run the same real training over every path; concurrency is the number of cores."""
    progress(f"Training the real model on each path, {spec.size.learn_epochs} epochs")
    with contextlib.ExitStack() as stack:
        tasks = []
        for path in PATHS:
            server = stack.enter_context(_server(path, found[path.name], bucket, work, spec.size.scale))
            tasks.append(TrainingTask(path.name, _learning(spec, path, _base(path, server, work)), server.env))
        return train_all(tasks, work, at_once=_cores(), progress=lambda _: None)


def _stage(url: str, folder: Path) -> tuple[float, int]:
    """Stage a dataset to this machine, decompressed and verified; return the seconds and bytes."""
    from penstock import stage

    began = time.perf_counter()
    result = stage.run(url, str(folder), decompress=True)
    return time.perf_counter() - began, int(result["bytes_in"])


def _source(request: Any) -> Any:
    """Create the loader for the storage comparison."""
    import penstock

    voxels = request.demand.fields["x"].shape[0]
    return penstock.Loader(
        _open(request.url, voxels).shuffle(seed=request.seed),
        global_batch=request.global_batch,
        rank=request.rank,
        world=request.world,
        tail=request.tail,
        memory_bytes=request.memory_bytes,
        max_in_flight=request.max_in_flight,
        read_ahead=request.read_ahead,
    )


def _run(spec: DemoSpec, train: TrainSpec, source: FeedFactory | None = None) -> RunRecord:
    """Run one training of the demo, and save its result in the folder of the report."""
    from penstock.bench.results import RunRecord as Record
    from penstock.train import run as start

    # A debug build may also run the demo, but the results and the report of such a run are marked INVALID.
    kept = msgspec.structs.replace(train, runs=str(spec.out / RUNS), allow_debug=True)
    return msgspec.convert(start(kept, source=source), Record)


def _learning(spec: DemoSpec, path: DemoPath, base: str) -> TrainSpec:
    """Training spec with real gradient steps over this path. The losses must be the same on every path."""
    from penstock.train import TrainSpec

    size = spec.size
    return TrainSpec(
        workload="cosmoflow",
        data=f"{base}train/",
        validation=f"{base}held-out/",
        settings={**LEARNING, "voxels": size.learn_voxels},
        global_batch=size.learn_batch,
        epochs=size.learn_epochs,
        seed=spec.seed,
        device="cpu",
        threads=1,
        label=path.name,
        max_in_flight=path.max_in_flight,
        runs=str(spec.out / RUNS),
        allow_debug=True,
        notes=("learning: several paths at once on this machine, so its rates are not a measurement",),
    )


def time_path(spec: DemoSpec, path: DemoPath, base: str, stage_s: float) -> RunRecord:
    """Run the storage comparison: read every volume once, with the steps of emulated accelerators."""
    from penstock.train import TrainSpec

    size = spec.size
    return _run(
        spec,
        TrainSpec(
            workload="cosmoflow",
            data=f"{base}volumes/",
            settings={"recipe": "demo", "voxels": size.voxels},
            global_batch=size.batch,
            epochs=1,
            seed=spec.seed,
            accelerator=ACCELERATOR,
            label=path.name,
            stage_s=stage_s,
            memory_bytes=path.memory_bytes,
            max_in_flight=path.max_in_flight,
            read_ahead=path.read_ahead,
            cache_state="warm",
            cache_how="made by the same process just before",
            notes=(f"tier {path.tier} at scale F = {size.scale:g}",),
        ),
        _source,
    )

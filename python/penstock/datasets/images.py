# SPDX-License-Identifier: Apache-2.0
"""Generated JPEG datasets that are similar to ImageNet: classes that a model can learn, and realistic file sizes. The
bytes depend on a seed, and an interrupted run can be resumed.

`image_plan` plans the shards, `image_scenes` draws the images, `image_shards` encodes the records, and `image_manifest`
writes `dataset.json`. This module writes the shards in parallel. A shard appears only when it is complete, so a second
run after a kill writes only the missing shards. A shard whose size differs from `dataset.json` is written again.
"""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import signal
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.child_process import deferred_signals
from penstock.datasets.files import prepare_folder, write_errors
from penstock.datasets.image_classes import ImageClass
from penstock.datasets.image_manifest import (
    MANIFEST,
    damaged_shards,
    made_with,
    mark_incomplete,
    read_manifest,
    refuse_damaged_folders,
    refuse_different,
    sample_paths,
    write_manifest,
)
from penstock.datasets.image_plan import ImageSpec, Split, Task
from penstock.datasets.image_shards import Record, encode, end_of_shard, shard_files, write_file
from penstock.errors import Busy, ConfigError, SystemFault
from penstock.extras import require
from penstock.ownership import remove_file
from penstock.parent_death import end_with_parent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

__all__ = ["MANIFEST", "ImageSpec", "Summary", "expected", "generate"]

_POLL_S = 0.2
_NOT_A_JPEG = b"<html><head><title>404 Not Found</title></head><body>The photo is no longer available.</body></html>\n"


@dataclass(frozen=True)
class Summary:
    """Result of `generate`, or the prediction of `expected`.

    Attributes:
        images: Number of different images, for training and validation.
        records: Number of records. A replicated image has several records.
        shards: Number of shards; 0 for class folders.
        written: Number of records that this run wrote. The other records existed before.
        drawn: Number of different images that this run drew for these records. Copies of an image are drawn once.
        damaged: Number of shards that this run wrote again, because their sizes differed from `dataset.json`.
        bytes_stored: Total size of the shards or files.
    """

    format: str
    images: int
    records: int
    shards: int
    classes: int
    broken: int
    seed: int
    written: int
    drawn: int
    damaged: int
    bytes_stored: int


def expected(spec: ImageSpec) -> Summary:
    """Predict the result of `generate` without writing anything."""
    records = sum(spec.images_of(split) * spec.copies_of(split) for split in spec.splits)
    # Bytes per record in addition to the JPEG. In a tar, these are three headers, two members of less than a block, and
    # the padding of the image. In a TFRecord, these are the other features.
    overhead = {"tar": 5.5 * 512, "tfrecord": 560, "folder": 0}[spec.format]
    return _summary(spec, int(records * (spec.mean_bytes + overhead)))


def generate(
    out: Path, spec: ImageSpec, *, jobs: int | None = None, progress: Callable[[int, int], None] | None = None
) -> Summary:
    """Write a dataset, or complete a dataset that an earlier run began with the same settings.

    The same settings produce the same bytes for any number of processes. Other versions of Pillow or NumPy can produce
    other bytes, so a dataset can be completed only with the same versions.

    Args:
        out: Folder; created if missing. The folder must be empty or contain only this dataset.
        spec: Settings.
        jobs: Number of processes; by default one per processor that this process may use. With more than 1 process, a
            script must call this function below `if __name__ == "__main__"`, as `multiprocessing` requires.
        progress: Function that is called with (bytes written, records done) several times per second.

    Returns:
        A summary of the dataset.

    Raises:
        ConfigError: The folder contains other files, or a dataset with other settings.
        Busy: Another run writes to the folder.
        Corrupt: The class folders have another size than in `dataset.json`.
        NoSpace, Denied, SystemFault: The folder cannot be written, or a process ended unexpectedly. Complete shards
            remain for the next run.
        MissingPackage: Pillow is not installed.
    """
    if jobs is not None and jobs < 1:
        raise ConfigError(f"jobs: must be at least 1 (got {jobs})")
    require("penstock.datasets.images", "images")
    with write_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    with _locked(out):
        return _complete(out, spec, jobs, progress)


def _complete(out: Path, spec: ImageSpec, jobs: int | None, progress: Callable[[int, int], None] | None) -> Summary:
    manifest = _prepare(out, spec)
    tasks = list(spec.tasks())
    damaged = damaged_shards(out, spec, manifest, tasks)
    work = {task: _work(out, spec, task, damaged) for task in tasks}
    unfinished = [task for task in tasks if work[task] != (0, 0)]
    total = expected(spec).records
    to_write, to_draw = (sum(column) for column in zip(*work.values(), strict=True))
    if unfinished:
        refuse_different(out, manifest["made_with"], made_with())
        if manifest["complete"]:  # the sizes are kept, so that a later run compares with them, too
            mark_incomplete(out, manifest)
        with write_errors(out):
            for path in damaged:
                remove_file(path)

    def report(size_bytes: int, records: int) -> None:
        if progress is not None:
            progress(size_bytes, total - to_write + records)

    report(0, 0)
    processes = min(jobs or len(os.sched_getaffinity(0)), len(unfinished))
    if processes > 1:
        _in_processes(out, spec, unfinished, processes, report)
    else:
        size_bytes = records = 0
        for task in unfinished:
            for size in _write(out, spec, task):
                size_bytes, records = size_bytes + size, records + 1
                report(size_bytes, records)
    refuse_damaged_folders(out, spec, manifest, tasks)
    if unfinished or not manifest["complete"]:
        write_manifest(out, spec, tasks, is_complete=True)
    stored = sum(path.stat().st_size for task in tasks for path in sample_paths(out, spec, task))
    return _summary(spec, stored, written=to_write, drawn=to_draw, damaged=len(damaged))


@contextmanager
def _locked(out: Path) -> Iterator[None]:
    """Lock the folder against other runs. The lock is on the folder itself, so it leaves no file, and ends with the
    process.

    Raises:
        Busy: Another run writes to the folder.
    """
    folder = os.open(out, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Busy(
                f"{out}: another run writes this dataset", where=str(out), hint="wait for it, or choose another folder"
            ) from None
        except OSError:
            pass  # NFS cannot lock folders; continue, because the lock only protects against mistakes
        yield
    finally:
        os.close(folder)


def _summary(spec: ImageSpec, stored: int, *, written: int = 0, drawn: int = 0, damaged: int = 0) -> Summary:
    has_shards = spec.format != "folder"
    return Summary(
        format=spec.format,
        images=spec.images + spec.validation,
        records=spec.images * spec.replicate + spec.validation,
        shards=sum(spec.shards_of(split) * spec.copies_of(split) for split in spec.splits) if has_shards else 0,
        classes=spec.classes,
        broken=spec.broken * spec.replicate,
        seed=spec.seed,
        written=written,
        drawn=drawn,
        damaged=damaged,
        bytes_stored=stored,
    )


# ---------------------------------------------------------------- the folder and its manifest


def _prepare(out: Path, spec: ImageSpec) -> dict[str, Any]:
    """Create the folders, remove temporary files of a killed run, and check that the folder has no other content.
    Return the manifest of an earlier run, or a new manifest.
    """
    manifest = read_manifest(out)
    if manifest is not None:
        refuse_different(out, manifest["settings"], spec.settings())
    prepare_folder(out, {MANIFEST, *spec.splits} if manifest is not None else set())
    if manifest is None:  # written first, so that another run can complete this run if it is killed
        manifest = write_manifest(out, spec, [], is_complete=False)
    for split in spec.splits:
        if spec.format != "folder":
            tasks = [task for task in spec.tasks() if task.split == split]
            prepare_folder(out / split, {name for task in tasks for name in spec.shard_names(task)})
            continue
        names: dict[str, set[str]] = {ImageClass(number).synset: set() for number in range(spec.classes)}
        for image in range(spec.images_of(split)):
            folder = names.setdefault(ImageClass(spec.label(split, image)).synset, set())
            folder.update(f"{spec.key(split, image, copy)}.JPEG" for copy in range(spec.copies_of(split)))
        prepare_folder(out / split, set(names))
        for name, files in names.items():
            prepare_folder(out / split / name, files)
    return manifest


# ---------------------------------------------------------------- writing


def _work(out: Path, spec: ImageSpec, task: Task, damaged: set[Path]) -> tuple[int, int]:
    """Return the number of records that a task must write, and of images that it draws for them."""
    paths = sample_paths(out, spec, task)
    missing = [i for i, path in enumerate(paths) if path in damaged or not path.exists()]
    if spec.format == "folder":
        return len(missing), len({i // spec.copies_of(task.split) for i in missing})
    images = task.stop - task.first
    return len(missing) * images, images if missing else 0


def _missing(out: Path, spec: ImageSpec, task: Task) -> set[Path]:
    return {path for path in sample_paths(out, spec, task) if not path.exists()}


def _write(out: Path, spec: ImageSpec, task: Task) -> Iterator[int]:
    """Write the missing files of a task, and yield the size of each record."""
    missing = _missing(out, spec, task)
    paths = sample_paths(out, spec, task)
    copies = spec.copies_of(task.split)
    if spec.format == "folder":
        for i, image in enumerate(range(task.first, task.stop)):
            wanted = [copy for copy in range(copies) if paths[i * copies + copy] in missing]
            for record in _records(spec, task.split, image, wanted):
                write_file(out / task.split, record)
                yield len(record.data)
        return
    wanted = [copy for copy in range(copies) if paths[copy] in missing]
    with shard_files([paths[copy] for copy in wanted]) as files:
        for image in range(task.first, task.stop):
            for file, record in zip(files, _records(spec, task.split, image, wanted), strict=True):
                yield file.write(encode(spec.format, record))
        for file in files:
            file.write(end_of_shard(spec.format))


def _records(spec: ImageSpec, split: Split, image: int, copies: list[int]) -> list[Record]:
    """Return the records of the given copies of an image. All copies have equal pixels."""
    if not copies:
        return []
    from penstock.datasets.image_scenes import library

    of = spec.class_of(split, image)
    picture = library(spec.width, spec.height).picture(
        spec.generator(split, image), of, median_bytes=spec.median_bytes, sigma=spec.sigma
    )
    match spec.broken_kind(split, image):
        case "truncated":
            data = picture.jpeg[: len(picture.jpeg) * 2 // 3]
        case "not a JPEG":
            data = _NOT_A_JPEG
        case "empty":
            data = b""
        case _:
            data = picture.jpeg
    label = spec.label(split, image)
    return [Record(spec.key(split, image, copy), label, of, picture, data) for copy in copies]


# ---------------------------------------------------------------- processes

_shared: dict[str, Any] = {}
"""Arguments of `_begin`; set in the processes of the pool."""


def _begin(out: Path, spec: ImageSpec, size_bytes: Any, records: Any, stop: Any) -> None:
    # Ctrl-C reaches all processes of a terminal; the parent handles it and sets `stop`.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
    _shared.update(out=out, spec=spec, size_bytes=size_bytes, records=records, stop=stop)


def _run(task: Task) -> None:
    for size in _write(_shared["out"], _shared["spec"], task):
        for counter, step in ((_shared["size_bytes"], size), (_shared["records"], 1)):
            with counter.get_lock():
                counter.value += step
        if _shared["stop"].is_set():
            raise InterruptedError


def _in_processes(
    out: Path, spec: ImageSpec, tasks: list[Task], processes: int, report: Callable[[int, int], None]
) -> None:
    # Spawn instead of fork, because the caller may have threads.
    context = multiprocessing.get_context("spawn")
    size_bytes, records, stop = context.Value("q", 0), context.Value("q", 0), context.Event()
    # An interrupt during `shutdown` would leave the pool's processes waiting forever, and this process with them.
    with deferred_signals() as interrupts:
        pool = ProcessPoolExecutor(processes, context, _begin, (out, spec, size_bytes, records, stop))
        try:
            pending = {pool.submit(_run, task) for task in tasks}
            while pending and not interrupts:
                done, pending = wait(pending, timeout=_POLL_S, return_when=FIRST_COMPLETED)
                for future in done:
                    future.result()
                report(size_bytes.value, records.value)
        except BrokenProcessPool as error:
            raise SystemFault(
                f"{out}: 1 of {processes} processes that write images ended unexpectedly",
                where=str(out),
                hint="check the memory and the system log, then repeat the command with fewer --jobs to continue",
            ) from error
        finally:
            # After an error or an interrupt, each process stops at its next image and removes its partial shard.
            stop.set()
            pool.shutdown(cancel_futures=True)

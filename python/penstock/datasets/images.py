# SPDX-License-Identifier: Apache-2.0
"""Generated JPEG datasets that are similar to ImageNet: classes that a model can learn, and realistic file sizes. The
bytes depend on a seed, and an interrupted run can be resumed.

`image_plan` plans the shards, `image_scenes` draws the images, and `image_shards` encodes the records. This module
writes the shards in parallel, and `dataset.json` beside them. A shard appears only when it is complete, so a second run
after a kill writes only the missing shards.
"""

from __future__ import annotations

import fcntl
import json
import multiprocessing
import os
import signal
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.datasets.files import prepare_folder, write_atomically, write_errors
from penstock.datasets.image_classes import ImageClass
from penstock.datasets.image_plan import ImageSpec, Split, Task
from penstock.datasets.image_shards import Record, encode, end_of_shard, shard_files, write_file
from penstock.errors import Busy, ConfigError, Corrupt, SystemFault
from penstock.extras import require
from penstock.parent_death import end_with_parent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

__all__ = ["MANIFEST", "ImageSpec", "Summary", "expected", "generate"]

MANIFEST = "dataset.json"
_SCHEMA_VERSION = 1
_KEYS = {"settings", "made_with", "complete"}
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
    bytes_stored: int


def expected(spec: ImageSpec) -> Summary:
    """Predict the result of `generate` without writing anything."""
    records = sum(spec.images_of(split) * spec.copies_of(split) for split in spec.splits)
    # Bytes per record in addition to the JPEG. In a tar, these are three headers, two members of less than a block, and
    # the padding of the image. In a TFRecord, these are the other features.
    overhead = {"tar": 5.5 * 512, "tfrecord": 560, "folder": 0}[spec.format]
    return _summary(spec, records, int(records * (spec.mean_bytes + overhead)))


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
    missing = {task: len(_missing(out, spec, task)) for task in tasks}
    unfinished = [task for task in tasks if missing[task]]
    total = expected(spec).records
    to_write = sum(missing[task] * _per_file(spec, task) for task in unfinished)
    if unfinished:
        _refuse_different(out, manifest["made_with"], _made_with())
        if manifest["complete"]:
            _write_manifest(out, spec, [], is_complete=False)

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
    if unfinished or not manifest["complete"]:
        _write_manifest(out, spec, tasks, is_complete=True)
    stored = sum(path.stat().st_size for task in tasks for path in _paths(out, spec, task))
    return _summary(spec, to_write, stored)


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


def _summary(spec: ImageSpec, written: int, stored: int) -> Summary:
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
        bytes_stored=stored,
    )


# ---------------------------------------------------------------- the folder and its manifest


def _prepare(out: Path, spec: ImageSpec) -> dict[str, Any]:
    """Create the folders, remove temporary files of a killed run, and check that the folder has no other content.
    Return the manifest of an earlier run, or a new manifest.
    """
    manifest = _read_manifest(out)
    if manifest is not None:
        _refuse_different(out, manifest["settings"], spec.settings())
    prepare_folder(out, {MANIFEST, *spec.splits} if manifest is not None else set())
    if manifest is None:  # written first, so that another run can complete this run if it is killed
        manifest = _write_manifest(out, spec, [], is_complete=False)
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


def _read_manifest(out: Path) -> dict[str, Any] | None:
    path = out / MANIFEST
    try:
        manifest = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise Corrupt(f"{path} is not JSON: {error}", where=str(path)) from None
    if not isinstance(manifest, dict) or manifest.get("kind") != "images" or not manifest.keys() >= _KEYS:
        raise ConfigError(f"{path} does not describe a dataset of images", hint="choose an empty folder")
    return manifest


def _refuse_different(out: Path, found: dict[str, Any], wanted: dict[str, Any]) -> None:
    different = [name for name in wanted if found.get(name) != wanted[name]]
    if different:
        name = different[0]
        raise ConfigError(
            f"{out} contains a dataset with other settings or package versions: its {name} is {found.get(name)}, but"
            f" this run has {wanted[name]} ({len(different)} values differ)",
            where=str(out),
            hint="choose an empty folder, or repeat the settings and versions of the dataset to complete it",
        )


def _made_with() -> dict[str, str]:
    import numpy as np
    import PIL
    from PIL import features

    return {"numpy": np.__version__, "pillow": PIL.__version__, "libjpeg": str(features.version("jpg"))}


def _write_manifest(out: Path, spec: ImageSpec, tasks: list[Task], *, is_complete: bool) -> dict[str, Any]:
    """Write `dataset.json`, and return its content. The content does not depend on the run, so that the bytes are
    reproducible, too.
    """
    splits: dict[str, Any] = {}
    for split in spec.splits:
        copies = spec.copies_of(split)
        splits[split] = {"images": spec.images_of(split), "records": spec.images_of(split) * copies}
        if not is_complete:
            continue
        mine = [task for task in tasks if task.split == split]
        if spec.format == "folder":
            sizes = (path.stat().st_size for task in mine for path in _paths(out, spec, task))
            splits[split]["size_bytes"] = sum(sizes)
            continue
        shards = {
            path.name: {"name": path.name, "records": task.stop - task.first, "size_bytes": path.stat().st_size}
            for task in mine
            for path in _paths(out, spec, task)
        }
        splits[split]["shards"] = [shards[name] for name in sorted(shards)]
    manifest = {
        "schema_version": _SCHEMA_VERSION,
        "kind": "images",
        "complete": is_complete,
        "settings": spec.settings(),
        "made_with": _made_with(),
        "splits": splits,
        "broken": list(_broken(spec)),
        "classes": [
            {"label": number, "synset": ImageClass(number).synset, "text": ImageClass(number).text}
            for number in range(spec.classes)
        ],
    }
    write_atomically(out / MANIFEST, json.dumps(manifest, indent=1).encode() + b"\n")
    return manifest


def _broken(spec: ImageSpec) -> Iterator[dict[str, Any]]:
    for image, kind in spec.broken_images.items():
        for copy in range(spec.replicate):
            yield {"key": spec.key("train", image, copy), "kind": kind, "label": spec.label("train", image)}


# ---------------------------------------------------------------- writing


def _paths(out: Path, spec: ImageSpec, task: Task) -> list[Path]:
    """Return the files of a task: one shard per copy, or one file per image and copy."""
    folder = out / task.split
    if spec.format != "folder":
        return [folder / name for name in spec.shard_names(task)]
    return [
        folder / ImageClass(spec.label(task.split, image)).synset / f"{spec.key(task.split, image, copy)}.JPEG"
        for image in range(task.first, task.stop)
        for copy in range(spec.copies_of(task.split))
    ]


def _per_file(spec: ImageSpec, task: Task) -> int:
    return 1 if spec.format == "folder" else task.stop - task.first


def _missing(out: Path, spec: ImageSpec, task: Task) -> set[Path]:
    return {path for path in _paths(out, spec, task) if not path.exists()}


def _write(out: Path, spec: ImageSpec, task: Task) -> Iterator[int]:
    """Write the missing files of a task, and yield the size of each record."""
    missing = _missing(out, spec, task)
    paths = _paths(out, spec, task)
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
    pool = ProcessPoolExecutor(processes, context, _begin, (out, spec, size_bytes, records, stop))
    try:
        pending = {pool.submit(_run, task) for task in tasks}
        while pending:
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

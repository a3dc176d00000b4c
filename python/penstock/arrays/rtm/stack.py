# SPDX-License-Identifier: Apache-2.0
"""Stacks the images of a job, always in the order of the shots, so that the result is reproducible bit for bit."""

from __future__ import annotations

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock import _native
from penstock.arrays.array import Coordinate
from penstock.arrays.convert.zarr_metadata import array_document, group_document, parse_codec
from penstock.arrays.create import create_segy
from penstock.arrays.rtm.job import Job, digest, dims_of
from penstock.arrays.rtm.picture import picture
from penstock.errors import Corrupt, NotFound
from penstock.rtm.imaging import stack

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from penstock.arrays.array import Array

__all__ = ["StackReport", "markers", "stack_images"]

_FOLDER = "stack"
_READERS = 16
_CHUNK = {2: (512, 512), 3: (64, 64, 64)}


@dataclass(frozen=True)
class StackReport:
    """Result of `stack_images`.

    Attributes:
        image_url: Zarr group with the image (x, z) or (x, y, z) in km.
        segy_url: SEG-Y file with the image, in depth.
        picture_url: PNG file of the image; None without matplotlib.
        sha256: Digest of the image's values.
        shots: Number of shots.
        was_complete: True if the stack of the same images existed before the call.
    """

    image_url: str
    segy_url: str
    picture_url: str | None
    sha256: str
    shots: int
    was_complete: bool = False


def markers(job: Job, kind: Any, shots: set[int]) -> dict[int, dict[str, Any]]:
    """Read the done markers of shots, in parallel."""
    with ThreadPoolExecutor(_READERS) as readers:
        found = readers.map(lambda shot: job.marker(kind, shot), sorted(shots))
        return {shot: facts for shot, facts in zip(sorted(shots), found, strict=True) if facts is not None}


def stack_images(
    job_url: str | os.PathLike[str],
    *,
    progress: Callable[[int, int], None] | None = None,
    timeout_s: float = 600.0,
) -> StackReport:
    """Stack the images of all shots, compensated for illumination, and write the result as Zarr, SEG-Y and PNG.

    If a call is killed, repeat it. If a stack of the same images exists, the call does nothing.

    Args:
        job_url: A job whose shots are all migrated.
        progress: Function that is called with the number of arrays that were read and the total number. Each shot has
            two arrays, image and illumination.
        timeout_s: Time limit of each request, in seconds.
    Raises:
        NotFound: The job does not exist, or shots are missing.
        Corrupt: The digest of an image differs from the digest that its worker recorded.
    """
    job = Job.load(job_url, timeout_s=timeout_s)
    shots = job.survey.shots
    facts = markers(job, "migrate", job.done("migrate"))
    missing = [shot for shot in range(shots) if shot not in facts]
    if missing:
        listed = ", ".join(map(str, missing[:10])) + (", ..." if len(missing) > 10 else "")
        raise NotFound(
            f"{job.location.url}: {len(missing):,} of {shots:,} shots have not been migrated ({listed})",
            hint=f"run penstock array rtm shots {job.location.url} to migrate them",
            where=job.location.url,
        )
    inputs = hashlib.sha256("".join(facts[shot]["sha256"] for shot in range(shots)).encode()).hexdigest()
    found = job.location.read(f"{_FOLDER}/done.json")
    if found is not None and (document := json.loads(found)).pop("inputs", None) == inputs:
        return StackReport(**{**document, "was_complete": True})
    image = _stacked(job, {shot: each["sha256"] for shot, each in facts.items()}, progress)
    report = _write(job, image)
    job.location.write(f"{_FOLDER}/done.json", json.dumps({**asdict(report), "inputs": inputs}).encode())
    return report


def _stacked(job: Job, wanted: dict[int, str], progress: Callable[[int, int], None] | None) -> NDArray[np.float32]:
    arrays = {name: job.open_output(name) for name in ("image", "illumination")}
    digests: dict[int, Any] = {}
    read = 0

    def parts(name: str) -> Iterator[NDArray[np.float32]]:
        # The digest of a shot covers its image, followed by its illumination.
        nonlocal read
        for shot in range(len(wanted)):
            values = _checked(arrays[name], shot)
            digests.setdefault(shot, hashlib.sha256()).update(values.reshape(-1).view(np.uint8))
            if name == "illumination" and digests[shot].hexdigest() != wanted[shot]:
                raise Corrupt(
                    f"shot {shot}: the stored image differs from the image that the worker wrote",
                    hint=f"run penstock array rtm shots {job.location.url} --redo {shot} to migrate the shot again",
                    where=job.location.url,
                )
            read += 1
            if progress is not None:
                progress(read, 2 * len(wanted))
            yield values

    return stack(parts("image"), parts("illumination"))


def _checked(array: Array, shot: int) -> NDArray[np.float32]:
    values: NDArray[np.float32] = np.ascontiguousarray(array[shot])
    if not np.isfinite(values).all():
        raise Corrupt(
            f"shot {shot}: the stored {array.name} is missing or contains values that are not finite",
            hint=f"run penstock array rtm shots JOB --redo {shot} to migrate the shot again",
        )
    return values


def _write(job: Job, image: NDArray[np.float32]) -> StackReport:
    survey, folder = job.survey, job.location / _FOLDER
    dims = dims_of(survey)
    coords = {
        dim: Coordinate((dim,), np.arange(side) * survey.spacing_km, {"units": "km"})
        for dim, side in zip(dims, survey.shape, strict=True)
    }
    _write_zarr(job, image, dims, coords)
    frequency = f"{survey.frequency_hz:g} Hz"
    text = [" Stacked image of reverse time migration", f" {survey.shots} shots, Ricker wavelet of {frequency}"]
    create_segy(folder / "image.sgy", image, dims, coords, text=text, replaces=True)
    drawn = picture(image, survey, title=f"{survey.shots} shots, {frequency}")
    if drawn is not None:
        folder.write("image.png", drawn)
    return StackReport(
        (folder / "image.zarr").url, (folder / "image.sgy").url, None if drawn is None else (folder / "image.png").url,
        digest(image), survey.shots,
    )  # fmt: skip


def _write_zarr(job: Job, image: NDArray[np.float32], dims: tuple[str, ...], coords: dict[str, Coordinate]) -> None:
    place = job.location / _FOLDER / "image.zarr"
    chunks = tuple(min(side, chunk) for side, chunk in zip(image.shape, _CHUNK[image.ndim], strict=True))
    lz4 = parse_codec("lz4", 4)
    documents = {
        "image": array_document(
            image.shape, image.dtype, dims, chunks=chunks, codecs=lz4, fill=float("nan"),
            attrs={"long_name": "stacked image"},
        )
    }  # fmt: skip
    values: dict[str, NDArray[Any]] = {"image": image}
    for dim, coordinate in coords.items():
        values[dim] = coordinate.values
        documents[dim] = array_document(
            coordinate.values.shape, coordinate.values.dtype, (dim,), chunks=coordinate.values.shape, fill=float("nan"),
            attrs=coordinate.attrs,
        )  # fmt: skip
    for name, document in documents.items():
        place.write(f"{name}/zarr.json", json.dumps(document).encode())
        target = place / name
        writer = _native.ZarrWriter(target.url, json.dumps(document), target.variables, timeout_s=target.timeout_s)
        sides = document["chunk_grid"]["configuration"]["chunk_shape"]
        for cell in np.ndindex(*[-(-side // part) for side, part in zip(values[name].shape, sides, strict=True)]):
            part = values[name][tuple(slice(at * side, (at + 1) * side) for at, side in zip(cell, sides, strict=True))]
            whole = np.full(sides, np.nan, dtype=part.dtype)
            whole[tuple(slice(side) for side in part.shape)] = part
            writer.write(cell, whole.reshape(-1).view(np.uint8))
    attrs = {"Conventions": "CF-1.11", "defaultVariableName": "image"}
    place.write("zarr.json", json.dumps(group_document(documents, attrs)).encode())

# SPDX-License-Identifier: Apache-2.0
"""A migration job: a folder on any store with the survey, the volumes, and a marker for each finished shot.

survey.json              the survey, and the locations of its volumes; `prepare` writes it last, and only once
volumes/                 the velocity model and the smoothed model, unless they are stored elsewhere
gathers/                 Zarr group: `gather` [shot, receiver, time], one chunk per shot
images/                  Zarr group: `image` and `illumination` [shot, x, (y,) z], one chunk per shot
claims/SHOT              lease of the worker that computes the shot
done/model/SHOT          marker: the gather is stored; contains digest and seconds; created only once
done/migrate/SHOT        marker: the image is stored
failed/KIND/SHOT         last error of a shot that could not be computed
stack/                   the stacked image: Zarr, SEG-Y, PNG
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping  # noqa: TC003 - msgspec-like use by dataclasses at run time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from penstock.arrays.convert.zarr_metadata import array_document, group_document, parse_codec
from penstock.arrays.location import Location
from penstock.arrays.opening import open as open_array
from penstock.errors import ConfigError, Corrupt, Mismatch, NotFound, PreconditionFailed
from penstock.rtm.survey import Survey

if TYPE_CHECKING:
    from penstock.arrays.array import Array

__all__ = ["ARRAYS", "SURVEY", "Job", "Kind", "Volume", "digest", "shot_name"]

SURVEY = "survey.json"
SCHEMA_VERSION = 1

Kind = Literal["model", "migrate"]
"""Stages of a shot: first its gather is modelled, then the gather is migrated."""

ARRAYS: dict[Kind, tuple[str, ...]] = {"model": ("gather",), "migrate": ("image", "illumination")}
"""Names of the arrays that each stage writes, below `gathers` and `images`."""

_GROUPS: dict[Kind, str] = {"model": "gathers", "migrate": "images"}
_METHODS = ("snapshots", "revolver")


def shot_name(shot: int) -> str:
    """Return the name of a shot's claim and markers."""
    return f"{shot:06d}"


def digest(*arrays: np.ndarray[Any, Any]) -> str:
    """Return the SHA-256 of the values of arrays, in hexadecimal."""
    found = hashlib.sha256()
    for array in arrays:
        found.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return found.hexdigest()


@dataclass(frozen=True)
class Volume:
    """An array on a store.

    Attributes:
        url: URL of the array. A relative path is relative to the job's folder.
        options: Arguments of `penstock.arrays.open`.
        sha256: Digest of the values; empty if this job has not written the values.
    """

    url: str
    options: Mapping[str, Any] = field(default_factory=dict)
    sha256: str = ""


@dataclass(frozen=True)
class Job:
    """A migration job; see the module.

    Attributes:
        location: Folder of the job.
        survey: Survey of the whole grid.
        smooth: Velocity model without reflections, for migration.
        velocity: Velocity model with reflections, for modelling; None if the gathers are recorded.
        gathers: Recorded gathers [shot, receiver, time]; None if the gathers are modelled.
        method: "snapshots" or "revolver". With "snapshots", a worker can also store snapshots in a file (method
            "disk").
        aperture_km: Half width of the part of the grid that is computed for a shot, km; None means the whole grid.
    """

    location: Location
    survey: Survey
    smooth: Volume
    velocity: Volume | None = None
    gathers: Volume | None = None
    method: str = "snapshots"
    aperture_km: float | None = None

    def __post_init__(self) -> None:
        if self.method not in _METHODS:
            raise ConfigError(
                f"method: {self.method!r} is not one of {', '.join(_METHODS)}",
                hint='set method="snapshots" and pass snapshots_dir to the worker to keep snapshots on disk',
                where="method",
            )
        if self.aperture_km is not None and not 0 < self.aperture_km < float("inf"):
            raise ConfigError(
                f"aperture_km: must be finite and above 0 (got {self.aperture_km:g})", where="aperture_km"
            )
        if (self.velocity is None) == (self.gathers is None):
            raise ConfigError("job: must have either a velocity model or gathers, but not both", where="velocity")

    @classmethod
    def load(cls, url: str | os.PathLike[str], *, timeout_s: float = 600.0) -> Job:
        """Open a job.

        Raises:
            NotFound: No job exists at the URL.
            Corrupt: The survey of the job is damaged.
        """
        location = Location(os.fspath(url), timeout_s)
        text = location.read(SURVEY)
        if text is None:
            raise NotFound(
                f"{location.url} is not a migration job: {SURVEY} is missing",
                hint="run penstock array rtm prepare to create it",
                where=location.url,
            )
        return cls.from_json(location, text)

    @classmethod
    def from_json(cls, location: Location, text: bytes) -> Job:
        """Parse a job from the text of its `survey.json`.

        Raises:
            Corrupt: The text is not a valid `survey.json`.
        """
        place = f"{location.url}/{SURVEY}"
        try:
            document = json.loads(text)
            if document["schema_version"] != SCHEMA_VERSION:
                raise Corrupt(f"{place}: schema_version must be {SCHEMA_VERSION} (got {document['schema_version']})")
            volumes = {name: Volume(**each) for name, each in document["volumes"].items()}
            survey = Survey.from_json(json.dumps(document["survey"]))
            return cls(
                location, survey, volumes["smooth"], volumes.get("velocity"), volumes.get("gathers"),
                document["method"], document["aperture_km"],
            )  # fmt: skip
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if isinstance(error, Corrupt):
                raise
            raise Corrupt(f"{place} is damaged: {error}", where=place) from None

    def to_json(self) -> bytes:
        """Return the text of `survey.json`."""
        volumes = {"smooth": self.smooth, "velocity": self.velocity, "gathers": self.gathers}
        document = {
            "schema_version": SCHEMA_VERSION,
            "survey": json.loads(self.survey.to_json()),
            "volumes": {name: asdict(each) for name, each in volumes.items() if each is not None},
            "method": self.method,
            "aperture_km": self.aperture_km,
        }
        return json.dumps(document, indent=1, sort_keys=True).encode()

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """Stages of each shot, in order."""
        return get_args(Kind) if self.gathers is None else ("migrate",)

    def at(self, volume: Volume) -> Location:
        """Return the location of a volume."""
        if "://" in volume.url or volume.url.startswith("/"):
            return Location(volume.url, self.location.timeout_s, self.location.variables)
        return self.location / volume.url

    def open(self, volume: Volume) -> Array:
        """Open a volume."""
        return open_array(self.at(volume).url, timeout_s=self.location.timeout_s, **volume.options)

    def open_output(self, name: str) -> Array:
        """Open an array that the workers write: `gather`, `image` or `illumination`."""
        group = next(_GROUPS[kind] for kind, names in ARRAYS.items() if name in names)
        return open_array((self.location / group).url, array=name, timeout_s=self.location.timeout_s)

    def open_gathers(self) -> Array:
        """Open the recorded or modelled gathers.

        Raises:
            ConfigError: Recorded gathers do not fit the survey.
        """
        if self.gathers is None:
            return self.open_output("gather")
        found = self.open(self.gathers)
        want = (self.survey.shots, len(self.survey.receivers_km), self.survey.samples)
        if found.shape != want:
            raise ConfigError(
                f"gathers: {self.gathers.url} has shape {list(found.shape)}, but the survey requires {list(want)} "
                "(shots, receivers, samples)",
                where="gathers",
            )
        return found

    def output(self, name: str) -> tuple[Location, dict[str, Any]]:
        """Return the location and the metadata of an array that the workers write."""
        kind = next(kind for kind, names in ARRAYS.items() if name in names)
        return self.location / _GROUPS[kind] / name, self._documents(kind)[name]

    def write_outputs(self) -> None:
        """Write the metadata of the arrays that the workers write. The metadata depends only on the job."""
        for kind in self.kinds:
            documents = self._documents(kind)
            for name, document in documents.items():
                self.location.write(f"{_GROUPS[kind]}/{name}/zarr.json", json.dumps(document).encode())
            attrs = {"Conventions": "CF-1.11", "defaultVariableName": ARRAYS[kind][0]}
            self.location.write(f"{_GROUPS[kind]}/zarr.json", json.dumps(group_document(documents, attrs)).encode())

    def _documents(self, kind: Kind) -> dict[str, dict[str, Any]]:
        survey = self.survey
        if kind == "model":
            shape: tuple[int, ...] = (survey.shots, len(survey.receivers_km), survey.samples)
            dims: tuple[str, ...] = ("shot", "receiver", "time")
        else:
            shape, dims = (survey.shots, *survey.shape), ("shot", *dims_of(survey))
        # The fill value is NaN, so the image of a shot that is not stored reads as NaN, and `stack` rejects it.
        codecs = parse_codec("lz4", 4)
        return {
            name: array_document(
                shape, np.dtype(np.float32), dims, chunks=(1, *shape[1:]), codecs=codecs, fill=float("nan"),
                attrs={"long_name": f"{name} of each shot"},
            )
            for name in ARRAYS[kind]
        }  # fmt: skip

    def done(self, kind: Kind) -> set[int]:
        """Return the shots whose stage is finished."""
        return self._numbers(f"done/{kind}/")

    def claimed(self) -> set[int]:
        """Return the shots with a claim, even if the owner of the claim is dead."""
        return self._numbers("claims/")

    def _numbers(self, prefix: str) -> set[int]:
        names = (os.fsdecode(name).rpartition("/")[2] for name, *_ in self.location.files.described(prefix.encode()))
        return {int(name) for name in names if name.isdecimal()}

    def marker(self, kind: Kind, shot: int) -> dict[str, Any] | None:
        """Read the done marker of a stage of a shot; None if the stage is not finished.

        Raises:
            Corrupt: The marker is damaged.
        """
        name = f"done/{kind}/{shot_name(shot)}"
        text = self.location.read(name)
        if text is None:
            return None
        try:
            found: dict[str, Any] = json.loads(text)
        except ValueError as error:
            raise Corrupt(
                f"{self.location.url}/{name} is damaged: {error}",
                hint=f"run penstock array rtm shots {self.location.url} --redo {shot} to migrate the shot again",
                where=f"{self.location.url}/{name}",
            ) from None
        return found

    def mark(self, kind: Kind, shot: int, facts: Mapping[str, Any]) -> bool:
        """Create a done marker. Return False if another worker has created it first."""
        try:
            self.location.write(f"done/{kind}/{shot_name(shot)}", json.dumps(facts).encode(), create_only=True)
        except PreconditionFailed:
            return False
        return True

    def forget(self, shots: list[int], kinds: tuple[Kind, ...] | None = None) -> None:
        """Delete the done markers of shots, so that they are computed again.

        Raises:
            ConfigError: The survey has no such shot.
        """
        for shot in shots:
            self.survey.check_shot(shot)
        names = [f"done/{kind}/{shot_name(shot)}" for shot in shots for kind in kinds or self.kinds]
        self.location.files.delete([os.fsencode(name) for name in names])

    def create(self) -> bool:
        """Write `survey.json`, which completes the creation of the job. Return False if the same job exists.

        Raises:
            Mismatch: A different job exists.
        """
        try:
            self.location.write(SURVEY, self.to_json(), create_only=True)
        except PreconditionFailed:
            self.check_same()
            return False
        return True

    def check_same(self) -> None:
        """Check that the stored job is equal to this job.

        Raises:
            Mismatch: The stored job has a different survey or different volumes.
        """
        found, mine = json.loads(self.location.read(SURVEY) or b"{}"), json.loads(self.to_json())
        if found != mine:
            differs = [
                name
                for part in ("survey", "volumes")
                for name in sorted({*found.get(part, {}), *mine[part]})
                if found.get(part, {}).get(name) != mine[part].get(name)
            ]
            differs += [name for name in ("method", "aperture_km") if found.get(name) != mine[name]]
            raise Mismatch(
                f"{self.location.url} contains a job with a different {', '.join(differs) or 'schema'}",
                hint="choose another folder, or delete it first",
                where=self.location.url,
            )


def dims_of(survey: Survey) -> tuple[str, ...]:
    """Return the names of the axes of a model."""
    return ("x", "z") if len(survey.shape) == 2 else ("x", "y", "z")

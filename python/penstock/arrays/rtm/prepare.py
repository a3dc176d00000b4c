# SPDX-License-Identifier: Apache-2.0
"""Creates a job of reverse time migration: writes the velocity models in the chosen format, then the survey."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.arrays.array import Coordinate
from penstock.arrays.create import create_volume
from penstock.arrays.lease import Lease
from penstock.arrays.location import Location
from penstock.arrays.opening import kind_of
from penstock.arrays.opening import open as open_array
from penstock.arrays.rtm.job import SURVEY, Job, Volume, digest, dims_of
from penstock.arrays.rtm.shot_grid import shot_grid
from penstock.errors import ConfigError, Mismatch, NotFound, PenstockError
from penstock.rtm.survey import surface_spread
from penstock.rtm.velocity_model import smooth

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from penstock.arrays.array import Array
    from penstock.rtm.survey import Survey

__all__ = ["BACKENDS", "prepare", "read_model"]

BACKENDS: dict[str, tuple[str, str | None, str]] = {
    "segy": ("segy", None, ".sgy"),
    "hdf5": ("hdf5", "none", ".h5"),
    "zarr": ("zarr", "none", ".zarr"),
    "zarr-blosc": ("zarr", "lz4", ".zarr"),
}
"""Format, codec and suffix of each backend of model volumes. For Zarr on S3, use the Zarr backend with an s3:// URL."""

_KM = {"km": 1.0, "m": 0.001, "ft": 0.0003048}
_KM_PER_S = {"km/s": 1.0, "km s-1": 1.0, "m/s": 0.001, "m s-1": 0.001, "ft/s": 0.0003048}


def read_model(
    url: str | os.PathLike[str], *, options: Mapping[str, Any] | None = None, unit: str | None = None
) -> tuple[NDArray[np.float32], float | None]:
    """Read a velocity model (x, z) or (x, y, z) in any format.

    Args:
        url: A volume whose last dimension is depth.
        options: Arguments of `penstock.arrays.open`.
        unit: Unit of the velocities: km/s, m/s or ft/s; by default the unit in the volume's attributes, otherwise km/s.
    Returns:
        Velocities in km/s, and the spacing of the volume's depths in km (None if the volume has no depths).
    Raises:
        ConfigError: The unit is unknown, or the volume does not have 2 or 3 dimensions.
    """
    found = (
        open_array(url, **{"vertical": "depth", **(options or {})})
        if _is_segy(url)
        else open_array(url, **(options or {}))
    )
    stated = unit or str(found.attrs.get("units", "km/s"))
    if stated not in _KM_PER_S:
        raise ConfigError(f"unit: `{stated}` is not one of km/s, m/s, ft/s", where="unit")
    if found.ndim not in (2, 3):
        raise ConfigError(f"model: {url} must have 2 or 3 dimensions (got {found.ndim})", where="model")
    model = found[...].astype(np.float32)
    if _KM_PER_S[stated] != 1:
        model = (model.astype(np.float64) * _KM_PER_S[stated]).astype(np.float32)
    return model, _spacing_km(found)


def prepare(
    job_url: str | os.PathLike[str],
    model: NDArray[Any],
    *,
    spacing_km: float | None = None,
    shots: int = 16,
    frequency_hz: float = 15.0,
    record_s: float | None = None,
    survey: Survey | None = None,
    smooth_points: float = 10.0,
    backend: str = "zarr-blosc",
    volumes_url: str | os.PathLike[str] | None = None,
    gathers: Volume | None = None,
    aperture_km: float | None = None,
    method: str = "snapshots",
    snapshot_factor: int | None = None,
    timeout_s: float = 600.0,
) -> Job:
    """Create a job. If the same job exists, return it. If a call is killed, repeat the same call to continue.

    Args:
        job_url: A folder on any store.
        model: Velocities [x, z] or [x, y, z], km/s.
        spacing_km: Grid spacing, km; required without `survey`.
        shots, frequency_hz, record_s: Settings of a survey with shots and receivers near the surface; see
            `surface_spread`.
        survey: Survey to use, instead of the settings above.
        smooth_points: Width, in samples, of the Gaussian that removes the reflections for migration.
        backend: Format of the model volumes: segy, hdf5, zarr or zarr-blosc.
        volumes_url: Folder of the model volumes, on any store; by default below the job.
        gathers: Recorded gathers [shot, receiver, time]. By default, gathers are modelled with `model`.
        aperture_km: Half width of the part of the grid that is computed for a shot, km; by default the whole grid.
        method: "snapshots" or "revolver".
        snapshot_factor: Number of time steps between two snapshots; by default the survey's number.
        timeout_s: Time limit of each request, in seconds.
    Raises:
        ConfigError: An argument is invalid, the model does not fit the survey, or a shot's part of the grid contains no
            receiver.
        Mismatch: A different job or a different volume exists at the location.
        Busy: Another process is preparing this job.
    """
    if backend not in BACKENDS:
        raise ConfigError(f"backend: `{backend}` is not one of {', '.join(BACKENDS)}", where="backend")
    model = np.ascontiguousarray(model, dtype=np.float32)
    if survey is None:
        if spacing_km is None:
            raise ConfigError("spacing_km: missing", hint="set it to the grid spacing in km", where="spacing_km")
        survey = surface_spread(model, spacing_km, shots, frequency_hz=frequency_hz, record_s=record_s)
    if snapshot_factor is not None:
        survey = replace(survey, snapshot_factor=snapshot_factor)
    survey.check_model(model, reflectors=gathers is None)
    for shot in range(survey.shots):
        shot_grid(survey, shot, aperture_km)
    location = Location(os.fspath(job_url), timeout_s)
    kept = {"smooth": smooth(model, smooth_points)} | ({"velocity": model} if gathers is None else {})
    volumes = {name: _plan(values, name, backend, survey, volumes_url, timeout_s) for name, values in kept.items()}
    job = Job(location, survey, volumes["smooth"], volumes.get("velocity"), gathers, method, aperture_km)
    if location.read(SURVEY) is not None:
        job.check_same()
        return job
    if gathers is not None:
        job.open_gathers()
    with Lease(location, "claims/prepare"):
        for name, volume in volumes.items():
            _write(job, volume, kept[name], name, backend)
        job.write_outputs()
        job.create()
    return job


def _plan(
    values: NDArray[np.float32], name: str, backend: str, survey: Survey, folder: Any, timeout_s: float
) -> Volume:
    to, _, suffix = BACKENDS[backend]
    file = f"{name}{suffix}"
    url = f"volumes/{file}" if folder is None else (Location(os.fspath(folder), timeout_s) / file).url
    if to != "segy":
        return Volume(url, {"array": name}, digest(values))
    # The header fields in which `create_segy` numbers the traces.
    fields = ["cdp=21:i4"] if len(survey.shape) == 2 else ["inline=189:i4", "crossline=193:i4"]
    return Volume(url, {"map": ",".join(fields), "vertical": "depth"}, digest(values))


def _write(job: Job, volume: Volume, values: NDArray[np.float32], name: str, backend: str) -> None:
    location, (to, codec, _) = job.at(volume), BACKENDS[backend]
    try:
        existing = job.open(volume)[...]
    except (NotFound, PenstockError):
        existing = None
    if existing is not None:
        # A killed call may have left the same volume. Any other volume is an error.
        if digest(existing) != volume.sha256:
            raise Mismatch(
                f"{location.url} already contains different velocities",
                hint="choose another folder for the volumes, or delete this one first",
                where=location.url,
            )
        return
    if location.is_local:
        location.path.parent.mkdir(parents=True, exist_ok=True)
    survey, dims = job.survey, dims_of(job.survey)
    coords = {
        dim: Coordinate((dim,), np.arange(side) * survey.spacing_km, {"units": "km"})
        for dim, side in zip(dims, survey.shape, strict=True)
    }
    attrs = {"units": "km/s", "long_name": f"{name} model"}
    # Choose chunks for the access pattern of a shot, which reads the full depth below its part of the surface.
    access = dims[:-1]
    create_volume(
        location, values, dims, coords, to=to, name=name, attrs=attrs, codec=codec, access=access, is_sharded=False
    )


def _is_segy(url: str | os.PathLike[str]) -> bool:
    return kind_of(Location(os.fspath(url))) == "segy"


def _spacing_km(array: Array) -> float | None:
    depth = array.coords.get(array.dims[-1])
    if depth is None or len(depth.values) < 2 or depth.attrs.get("units") not in _KM:
        return None
    values = np.asarray(depth.values, dtype=np.float64) * _KM[depth.attrs["units"]]
    return float(f"{(values[-1] - values[0]) / (len(values) - 1):.9g}")

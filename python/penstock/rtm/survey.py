# SPDX-License-Identifier: Apache-2.0
"""Survey of a migration: grid, times, and positions of shots and receivers. Checks that a velocity model fits the
survey.
"""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.errors import ConfigError
from penstock.rtm.velocity_model import check_velocities, two_way_time_s

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["DEFAULT_CHECKPOINTS", "Plan", "Survey", "surface_spread", "time_step_limit_s"]

SCHEMA_VERSION = 1
DEFAULT_CHECKPOINTS = 20
"""Default number of checkpoints of Revolver. With 200 checkpoints, a shot of 1,378 steps takes 10 % less time, but 10
times the memory for checkpoints.
"""

SEGMENT_BYTES = 32 * 2**20
"""Memory in bytes for the snapshots of one segment, if migration stores snapshots in a file."""

HIGHEST_FREQUENCY = 2.5
"""Highest relevant frequency of a Ricker wavelet, as a multiple of its peak frequency. At higher frequencies, the
spectrum is below 4 % of its peak.
"""

# Time step in units of h / vmax, by number of dimensions. The step is about 0.8 of the stability limit at order 8, so
# that dispersion in time is less than dispersion in space.
_CFL = {2: 0.42, 3: 0.38}
_SPONGE_POINTS = {2: 40, 3: 20}
_SPONGE_REFLECTION = 1e-3  # share of the amplitude that a sponge reflects at normal incidence
# Minimum number of grid points per shortest wavelength, by space order. Source: Alford et al. 1974 for orders 2 and 4
# (10 and 5 points at the half-power frequency). At order 8, the error of the phase velocity is below 1 % with 3 points.
_POINTS_PER_WAVELENGTH = {2: 8.0, 4: 5.0}
_POINTS_PER_WAVELENGTH_FROM_6 = 3.0
_MAX_SAMPLES = 10_000_000


def time_step_limit_s(spacing_km: float, vmax: float, dimensions: int, *, space_order: int = 8) -> float:
    """Return the longest time step, in s, with which modelling is stable and accurate (Courant-Friedrichs-Lewy
    condition).

    Args:
        spacing_km: Grid spacing, km.
        vmax: Highest velocity of the model, km/s.
        dimensions: 2 or 3.
        space_order: Order of the spatial derivatives; an even number.
    Returns:
        0.42 h/vmax in 2-D and 0.38 h/vmax in 3-D, where h is the spacing. Less for space orders with a lower stability
        limit.
    Raises:
        ConfigError: An argument is invalid.
    """
    if dimensions not in _CFL:
        raise ConfigError(f"dimensions: must be 2 or 3 (got {dimensions})", where="dimensions")
    for name, value in (("spacing_km", spacing_km), ("vmax", vmax)):
        _check_positive(name, value)
    _check_space_order(space_order)
    half = space_order // 2
    # Absolute weights of the central second derivative at distance j. At the Nyquist wavenumber, all terms have the
    # same sign, so the largest eigenvalue of the Laplacian is the sum of the absolute weights, times the number of
    # dimensions.
    sizes = [
        2 * math.factorial(half) ** 2 / (j**2 * math.factorial(half - j) * math.factorial(half + j))
        for j in range(1, half + 1)
    ]
    centre = abs(sum(2 * size * (-1) ** j for j, size in enumerate(sizes, 1)))
    stable = 2 / math.sqrt(dimensions * (centre + 2 * sum(sizes)))
    return min(_CFL[dimensions], 0.95 * stable) * spacing_km / vmax


@dataclass(frozen=True)
class Plan:
    """Cost of one shot of a survey: steps and memory.

    Attributes:
        steps: Number of time steps of one propagation. Modelling propagates once. Migration propagates twice, or more
            often with Revolver.
        snapshots: Number of snapshots of the forward wavefield.
        grid_points: Number of grid points, including the sponge.
        gather_bytes: Size of a gather, float32.
        image_bytes: Size of an image, float32; the illumination has the same size.
        snapshot_bytes: Size of all snapshots, in memory for method "snapshots", or in a file for "disk".
        model_memory_bytes: Memory of the arrays of modelling.
        memory_bytes: Memory of the arrays of a migration by "snapshots".
        disk_memory_bytes: Memory of the arrays of a migration by "disk".
        revolver_memory_bytes: Memory of the arrays of a migration by "revolver" with its default checkpoints.
    """

    steps: int
    snapshots: int
    grid_points: int
    gather_bytes: int
    image_bytes: int
    snapshot_bytes: int
    model_memory_bytes: int
    memory_bytes: int
    disk_memory_bytes: int
    revolver_memory_bytes: int


@dataclass(frozen=True)
class Survey:
    """Acquisition and numerical settings of a set of shots on one grid. All shots have the same receivers.

    Attributes:
        shape: Grid samples of the model, [x, z] or [x, y, z], without the sponge. Depth is last.
        spacing_km: Grid spacing, km, the same in every direction. Sample 0 of each axis is at 0 km.
        time_step_s: Time step of modelling, migration and gathers, s.
        record_s: Record length, s. The wavelet peaks at 1 / frequency_hz.
        frequency_hz: Peak frequency of the Ricker wavelet, Hz.
        sources_km: Position of each shot, km: (x, z) or (x, y, z).
        receivers_km: Position of each receiver, km.
        space_order: Order of the spatial derivatives, even.
        sponge_points: Width of the absorbing layer on each side, in samples; by default 40 in 2-D and 20 in 3-D.
        snapshot_factor: Number of time steps between two snapshots of the forward wavefield.

    Raises:
        ConfigError: A value is invalid, a position is outside the grid, or `snapshot_factor` is too large for the
            wavelet.
    """

    shape: tuple[int, ...]
    spacing_km: float
    time_step_s: float
    record_s: float
    frequency_hz: float
    sources_km: tuple[tuple[float, ...], ...]
    receivers_km: tuple[tuple[float, ...], ...]
    space_order: int = 8
    sponge_points: int = 0
    snapshot_factor: int = 8

    def __post_init__(self) -> None:
        sizes = tuple(_whole("shape", n) for n in _sequence("shape", self.shape))
        if len(sizes) not in _CFL:
            raise ConfigError(f"shape: must be [x, z] or [x, y, z] (got {list(sizes)})", where="shape")
        numbers = {
            name: _check_positive(name, getattr(self, name))
            for name in ("spacing_km", "time_step_s", "record_s", "frequency_hz")
        }
        counts = {
            "space_order": _check_space_order(self.space_order),
            "sponge_points": _whole("sponge_points", self.sponge_points) or _SPONGE_POINTS[len(sizes)],
            "snapshot_factor": _whole("snapshot_factor", self.snapshot_factor),
        }
        for name, value in (("shape", min(sizes)), *counts.items()):
            if value < 1:
                raise ConfigError(f"{name}: must be at least 1 (got {value})", where=name)
        if min(sizes) <= counts["space_order"]:
            raise ConfigError(
                f"shape: every side must be longer than the stencil of {counts['space_order']} samples (got "
                f"{list(sizes)})",
                hint="enlarge the grid, or lower the space order",
                where="shape",
            )
        positions = {
            name: tuple(
                tuple(_number(name, x) for x in _sequence(name, each)) for each in _sequence(name, getattr(self, name))
            )
            for name in ("sources_km", "receivers_km")
        }
        converted: dict[str, Any] = {"shape": sizes, **numbers, **counts, **positions}
        for name, field in converted.items():
            object.__setattr__(self, name, field)
        for name, places in positions.items():
            self._check_positions(name.removesuffix("_km"), places)
        self._check_times()

    @property
    def samples(self) -> int:
        """Number of samples of a trace, which is also the number of time steps of a propagation."""
        return math.floor(self.record_s / self.time_step_s * (1 + 1e-9)) + 1

    @property
    def snapshots(self) -> int:
        """Number of snapshots of the forward wavefield: one at each multiple of `snapshot_factor`, beginning with time
        step 0.
        """
        return -(-self.samples // self.snapshot_factor)

    @property
    def _longest_snapshot_step_s(self) -> float:
        return 1 / (2 * HIGHEST_FREQUENCY * self.frequency_hz)

    @property
    def max_snapshot_factor(self) -> int:
        """Largest `snapshot_factor` that the frequency allows (sampling theorem)."""
        return max(1, math.floor(self._longest_snapshot_step_s / self.time_step_s * (1 + 1e-9)))

    @property
    def shots(self) -> int:
        """Number of shots."""
        return len(self.sources_km)

    @property
    def padded_shape(self) -> tuple[int, ...]:
        """Number of grid samples along each axis, including the sponge."""
        return tuple(n + 2 * self.sponge_points for n in self.shape)

    @property
    def plan(self) -> Plan:
        """Steps and memory of one shot, without the fixed 0.2 GB of Python and Devito."""
        points = math.prod(self.padded_shape)
        with_halo = math.prod(n + 2 * self.space_order for n in self.padded_shape)
        gather = 4 * self.samples * len(self.receivers_km)
        # Arrays of a migration: two wavefields of three time levels; slowness, sponge, image and illumination; and
        # gather, record and residual.
        base = 4 * (6 * with_halo + 4 * points) + 3 * gather
        held = min(self.snapshots, self.snapshots_per_segment)
        return Plan(
            steps=self.samples,
            snapshots=self.snapshots,
            grid_points=points,
            gather_bytes=gather,
            image_bytes=4 * math.prod(self.shape),
            snapshot_bytes=4 * points * self.snapshots,
            # Arrays of modelling: one wavefield, slowness and sponge, a gather and its traces.
            model_memory_bytes=4 * (3 * with_halo + 2 * points) + 2 * gather,
            memory_bytes=base + 4 * points * self.snapshots,
            disk_memory_bytes=base + 4 * points * held,
            revolver_memory_bytes=base + 8 * with_halo * min(DEFAULT_CHECKPOINTS, self.samples),
        )

    @property
    def snapshots_per_segment(self) -> int:
        """Number of snapshots that migration by "disk" keeps in memory: about 32 MiB.

        The number is a multiple of 3, so that all segments of time steps start at the same time level of a wavefield,
        which has three.
        """
        return 3 * max(1, SEGMENT_BYTES // (12 * math.prod(self.padded_shape)))

    def check_model(self, model: NDArray[Any], *, reflectors: bool = True) -> None:
        """Check that a velocity model can be modelled with this survey.

        Args:
            model: Velocities [*shape], km/s.
            reflectors: Whether the record must be long enough for the echo of the deepest reflector.
        Raises:
            ConfigError: The shape differs, a velocity is invalid, the time step is too long (stability), the grid is
                too coarse (dispersion), or the record is too short.
        """
        check_velocities(model)
        if model.shape != self.shape:
            raise ConfigError(
                f"velocity model: shape {list(model.shape)} differs from the survey's {list(self.shape)}", where="model"
            )
        slowest, fastest = float(model.min()), float(model.max())
        limit = time_step_limit_s(self.spacing_km, fastest, model.ndim, space_order=self.space_order)
        if self.time_step_s > limit * (1 + 1e-6):
            raise ConfigError(
                f"time_step_s: {self.time_step_s:g} s is too long for {fastest:g} km/s on a grid of"
                f" {self.spacing_km:g} km (limit {limit:.4g} s)",
                hint=f"set time_step_s to {_rounded_down(limit)} or less",
                where="time_step_s",
            )
        highest = HIGHEST_FREQUENCY * self.frequency_hz
        have = slowest / (highest * self.spacing_km)
        need = _POINTS_PER_WAVELENGTH.get(self.space_order, _POINTS_PER_WAVELENGTH_FROM_6)
        if have < need * (1 - 1e-6):
            raise ConfigError(
                f"spacing_km: {self.spacing_km:g} km is too coarse for {self.frequency_hz:g} Hz at {slowest:g} km/s"
                f" ({have:.2g} points in the shortest wavelength, {need:g} needed)",
                hint=f"set spacing_km to {_rounded_down(slowest / (highest * need))} or less, or frequency_hz to"
                f" {_rounded_down(slowest / (HIGHEST_FREQUENCY * self.spacing_km * need))} or less",
                where="spacing_km",
            )
        echo = two_way_time_s(model, self.spacing_km) if reflectors else 0.0
        shortest = echo + 2 / self.frequency_hz
        if echo and self.record_s < shortest * (1 - 1e-6):
            raise ConfigError(
                f"record_s: {self.record_s:g} s ends before the echo of the deepest reflector ({shortest:.4g} s)",
                hint=f"set record_s to {math.ceil(shortest * 1000) / 1000:g} or more, or cut the model above that reflector",
                where="record_s",
            )

    def check_shot(self, shot: int) -> None:
        """Check that a shot exists.

        Raises:
            ConfigError: The shot is not an integer from 0 to the number of shots minus one.
        """
        if not 0 <= _whole("shot", shot) < self.shots:
            raise ConfigError(
                f"shot: {shot} is not in a survey of {self.shots:,} shots",
                hint=f"give a number from 0 to {self.shots - 1}",
                where="shot",
            )

    def to_json(self) -> str:
        """Return the survey as a JSON object that `from_json` can parse."""
        return json.dumps({"schema_version": SCHEMA_VERSION, **asdict(self)})

    @classmethod
    def from_json(cls, text: str | bytes) -> Survey:
        """Parse a survey from a JSON object.

        Raises:
            ConfigError: The text is not JSON, a key is unknown or missing, or a value is invalid.
        """
        try:
            document = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"survey: not valid JSON ({error})", where="survey") from error
        if not isinstance(document, dict):
            raise ConfigError("survey: not a JSON object", where="survey")
        if document.get("schema_version") != SCHEMA_VERSION:
            raise ConfigError(
                f"survey: schema_version must be {SCHEMA_VERSION} (got {document.get('schema_version')!r})",
                hint="write the survey again with this version of Penstock",
                where="schema_version",
            )
        values = {key: value for key, value in document.items() if key != "schema_version"}
        known = {field.name for field in fields(cls)}
        required = {"shape", "spacing_km", "time_step_s", "record_s", "frequency_hz", "sources_km", "receivers_km"}
        if unknown := sorted(values.keys() - known):
            raise ConfigError(
                f"survey: unknown key {unknown[0]!r}", hint=f"use only these keys: {', '.join(sorted(known))}"
            )
        if missing := sorted(required - values.keys()):
            raise ConfigError(f"survey: {missing[0]} is missing", where=missing[0])
        return cls(**values)

    def _check_positions(self, name: str, places: Sequence[tuple[float, ...]]) -> None:
        if not places:
            raise ConfigError(
                f"{name}: at least one position is required",
                hint=f"give one or more positions in {name}_km",
                where=name,
            )
        ends = [(n - 1) * self.spacing_km for n in self.shape]
        for i, place in enumerate(places):
            if len(place) != len(ends):
                raise ConfigError(
                    f"{name}: position {i} has {len(place)} coordinates, but the grid has {len(ends)} dimensions",
                    where=name,
                )
            if not all(-1e-9 <= x <= end * (1 + 1e-9) for x, end in zip(place, ends, strict=True)):
                raise ConfigError(
                    f"{name}: position {i} ({_listed(place)} km) is outside the grid (0 to {_listed(ends)} km)",
                    hint="move the position inside, or enlarge the grid; positions are in km",
                    where=name,
                )

    def _check_times(self) -> None:
        if self.record_s < self.time_step_s or self.record_s / self.time_step_s > _MAX_SAMPLES:
            raise ConfigError(
                f"record_s: must be 1 to {_MAX_SAMPLES:,} time steps of {self.time_step_s:g} s (got {self.record_s:g} "
                "s)",
                where="record_s",
            )
        longest = self._longest_snapshot_step_s
        if self.snapshot_factor * self.time_step_s > longest * (1 + 1e-9):
            raise ConfigError(
                f"snapshot_factor: a snapshot every {self.snapshot_factor * self.time_step_s:.4g} s is too infrequent "
                f"for {self.frequency_hz:g} Hz (limit {longest:.4g} s)",
                hint=f"set snapshot_factor to {max(1, int(longest / self.time_step_s))} or less"
                if longest >= self.time_step_s
                else f"set time_step_s to {_rounded_down(longest)} or less",
                where="snapshot_factor",
            )


def surface_spread(
    model: NDArray[Any],
    spacing_km: float,
    shots: int,
    *,
    frequency_hz: float = 15.0,
    record_s: float | None = None,
    depth_km: float | None = None,
) -> Survey:
    """Create a survey with shots and receivers near the surface: a receiver at each grid position, and shots at equal
    distances.

    Args:
        model: Velocities [x, z] or [x, y, z], km/s.
        spacing_km: Grid spacing, km.
        shots: Number of shots. In 3-D, the shots form an almost square grid.
        frequency_hz: Peak frequency, Hz.
        record_s: Record length, s; by default the time of the echo of the deepest reflector at zero offset, plus 2
            periods.
        depth_km: Depth of shots and receivers, km; by default 2 samples.
    Returns:
        A survey with the longest stable time step and at most 8 steps between snapshots.
    Raises:
        ConfigError: An argument is invalid, or does not fit the model.
    """
    check_velocities(model)
    _check_positive("frequency_hz", frequency_hz)
    if _whole("shots", shots) < 1:
        raise ConfigError(f"shots: must be at least 1 (got {shots})", where="shots")
    depth = 2 * spacing_km if depth_km is None else depth_km
    echo = two_way_time_s(model, spacing_km) or two_way_time_s(model, spacing_km, model.shape[-1] - 1)
    step = time_step_limit_s(spacing_km, float(model.max()), model.ndim)
    sides = [(n - 1) * spacing_km for n in model.shape[:-1]]
    rows = max(n for n in range(1, math.isqrt(shots) + 1) if shots % n == 0) if len(sides) == 2 else 1
    counts = [shots // rows, rows][: len(sides)]
    survey = Survey(
        shape=model.shape,
        spacing_km=spacing_km,
        time_step_s=step,
        record_s=echo + 2 / frequency_hz if record_s is None else record_s,
        frequency_hz=frequency_hz,
        sources_km=tuple(
            (*place, depth)
            for place in product(
                *([side * (i + 0.5) / n for i in range(n)] for side, n in zip(sides, counts, strict=True))
            )
        ),
        receivers_km=tuple((*(i * spacing_km for i in place), depth) for place in np.ndindex(*model.shape[:-1])),
        snapshot_factor=max(1, min(8, int(1 / (2 * HIGHEST_FREQUENCY * frequency_hz * step)))),
    )
    survey.check_model(model)
    return survey


def _check_positive(name: str, value: float) -> float:
    number = _number(name, value)
    if not math.isfinite(number) or number <= 0:
        raise ConfigError(f"{name}: must be finite and above 0 (got {number:g})", where=name)
    return number


def _check_space_order(value: int) -> int:
    order = _whole("space_order", value)
    if not 2 <= order <= 16 or order % 2:
        raise ConfigError(f"space_order: must be an even number from 2 to 16 (got {order})", where="space_order")
    return order


def _number(name: str, value: Any) -> float:
    if isinstance(value, (bool, str, bytes)):
        raise ConfigError(f"{name}: {value!r} is not a number", where=name)
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise ConfigError(f"{name}: {value!r} is not a number", where=name) from error


def _whole(name: str, value: Any) -> int:
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError as error:
        raise ConfigError(f"{name}: {value!r} is not a whole number", where=name) from error


def _sequence(name: str, value: Any) -> tuple[Any, ...]:
    if isinstance(value, (str, bytes, dict)) or not isinstance(value, Iterable):
        raise ConfigError(f"{name}: {value!r} is not a list", where=name)
    return tuple(value)


def _rounded_down(value: float) -> str:
    """Round down to three digits, so that the value in a hint passes the check."""
    digits = 2 - math.floor(math.log10(value))
    return f"{math.floor(value * 10.0**digits) / 10.0**digits:g}"


def _listed(place: Iterable[float]) -> str:
    return ", ".join(f"{x:g}" for x in place)

# SPDX-License-Identifier: Apache-2.0
"""Acoustic modelling of seismic shots with Devito.

Devito's settings (`DEVITO_LANGUAGE`, `DEVITO_PLATFORM`, ...) come from the environment; they can select a GPU. A
process computes one shot at a time, with the number of threads that Devito is configured to use.
"""

from __future__ import annotations

import gc
import math
import threading
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from penstock.errors import ConfigError, SystemFault
from penstock.extras import require
from penstock.rtm.subnormals import flushed_subnormals
from penstock.rtm.survey import Plan, Survey, surface_spread, time_step_limit_s

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

__all__ = [
    "Method",
    "Plan",
    "Propagator",
    "Survey",
    "model_shot",
    "propagator",
    "ricker",
    "surface_spread",
    "time_step_limit_s",
]

Method = Literal["snapshots", "revolver", "disk"]
"""Method by which migration gets the forward wavefield: snapshots in memory, steps that are computed again (Revolver),
or snapshots in a file.
"""

Precision = Literal["float32", "float64"]

_SPONGE_REFLECTION = 1e-3  # share of the amplitude that a sponge reflects at normal incidence
# Only one thread at a time can use Devito's operators and symbol caches, and the arrays of a propagator.
_LOCK = threading.RLock()
_last: dict[tuple[Survey, Precision], Propagator] = {}


def ricker(samples: int, time_step_s: float, frequency_hz: float) -> NDArray[np.float64]:
    """Return a Ricker wavelet whose peak has the value 1 and the time 1 / frequency_hz.

    Returns:
        float64 [samples].
    """
    t = np.arange(samples) * time_step_s - 1 / frequency_hz
    squared = (math.pi * frequency_hz * t) ** 2
    wavelet: NDArray[np.float64] = (1 - 2 * squared) * np.exp(-squared)
    return wavelet


class Propagator:
    """Operators and arrays for the shots of one survey in one process. Only the thread that holds `lock` can use them.

    Call `propagator` to get a propagator; the function keeps it for the next shot. The order of calls is `load`,
    `forward`, then `adjoint` or `image`. Time steps are computed in segments, so that only the snapshots of one segment
    must be in memory.
    """

    def __init__(self, survey: Survey, precision: Precision = "float32") -> None:
        devito = _devito()
        self.survey = survey
        self.precision: Precision = precision
        self.lock = _LOCK
        self.operators = _operators(len(survey.shape), survey.space_order, survey.snapshot_factor, precision)
        self._inside = tuple(slice(survey.sponge_points, survey.sponge_points + n) for n in survey.shape)
        self._grid = devito.Grid(
            shape=survey.padded_shape,
            extent=tuple((n - 1) * survey.spacing_km for n in survey.padded_shape),
            origin=tuple(-survey.sponge_points * survey.spacing_km for _ in survey.shape),
            dtype=np.dtype(precision).type,
        )
        self._arrays: dict[str, Any] = {}

    def prepare(self, method: Method | None = None) -> None:
        """Build and compile the operators before the first shot. This takes several seconds, once per process.

        Args:
            method: Also build the operators of a migration with this method.
        Raises:
            SystemFault: Devito's C compiler is missing, or it rejected the code.
        """
        with self.lock:
            for name in _OPERATORS_OF[method]:
                self.operators.compiled(name)

    def load(self, model: NDArray[Any]) -> None:
        """Set the velocities, km/s. The velocities at the edges are continued into the sponge."""
        velocity = np.pad(np.asarray(model, dtype=np.float64), self.survey.sponge_points, mode="edge")
        self._function("m", space_order=2).data[:] = velocity**-2
        self._function("damp", space_order=2).data[:] = _sponge(self.survey) / velocity

    def forward(
        self,
        wavelet: NDArray[Any],
        source_km: Sequence[float],
        *,
        segments: Sequence[range] | None = None,
        keep: Callable[[int, NDArray[Any]], None] | None = None,
    ) -> NDArray[Any]:
        """Propagate a source from time 0 on.

        Args:
            wavelet: [samples], the source's signal.
            source_km: Position of the source, km.
            segments: With snapshots: consecutive ranges of time steps. All ranges except the last have the same length,
                which is a multiple of 3 and of the snapshot factor.
            keep: Function that is called with the number of each segment and its snapshots [snapshots, *padded_shape].
        Returns:
            [samples, receivers], in the propagator's precision.
        """
        operator = self.operators.compiled("model" if segments is None else "forward")
        parts = [range(self.survey.samples)] if segments is None else segments
        gather = np.empty((self.survey.samples, len(self.survey.receivers_km)), dtype=self.precision)
        arguments = {"u": self._wavefield("u"), **self._medium()}
        if segments is not None:
            arguments["usave"] = self.snapshots(len(parts[0]))
        for number, steps in enumerate(parts):
            src = self._sparse("src", len(parts[0]), [source_km])
            rec = self._sparse("rec", len(parts[0]), self.survey.receivers_km)
            src.data[: len(steps), 0] = wavelet[steps.start : steps.stop]
            self._apply(operator, len(steps), src=src, rec=rec, **arguments)
            gather[steps.start : steps.stop] = rec.data[: len(steps)]
            if keep is not None:
                keep(number, np.asarray(arguments["usave"].data)[: self._count(steps)])
        return gather

    def adjoint(self, gather: NDArray[Any], source_km: Sequence[float]) -> NDArray[Any]:
        """Propagate a gather backwards from its receivers, and record the wavefield at the source. This is the
        transpose of `forward`.

        Returns:
            [samples], in the propagator's precision.
        """
        src = self._sparse("src", self.survey.samples, [source_km])
        rec = self._sparse("rec", self.survey.samples, self.survey.receivers_km)
        rec.data[:] = gather
        operator = self.operators.compiled("adjoint")
        self._apply(operator, self.survey.samples, src=src, rec=rec, v=self._wavefield("v"), **self._medium())
        return np.array(src.data[:, 0])

    def image(
        self,
        residual: NDArray[Any],
        *,
        segments: Sequence[range],
        fetch: Callable[[int, NDArray[Any]], None] | None = None,
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Propagate a gather backwards and correlate it with the snapshots of `forward`.

        Args:
            residual: [samples, receivers].
            segments: The same segments as in `forward`.
            fetch: Function that is called with the number of a segment and an array [snapshots, *padded_shape] to fill.
                By default, the snapshots of `forward` are still in memory.
        Returns:
            Image and illumination, float32 [*shape]: time integrals of u v and of u u.
        """
        operator = self.operators.compiled("image")
        arguments = {
            "v": self._wavefield("v"),
            "usave": self.snapshots(len(segments[0])),
            **self._zeroed_images(),
            **self._medium(),
        }
        for number, steps in reversed(list(enumerate(segments))):
            rec = self._sparse("rec", len(segments[0]), self.survey.receivers_km)
            rec.data[: len(steps)] = residual[steps.start : steps.stop]
            if fetch is not None:
                fetch(number, np.asarray(arguments["usave"].data)[: self._count(steps)])
            self._apply(operator, len(steps), rec=rec, **arguments)
        return self.images(self.survey.snapshot_factor)

    def snapshots(self, steps: int) -> Any:
        """Return Devito's array for the snapshots of a number of time steps, [snapshots, *padded_shape]."""
        count = self._count(range(steps))
        held = self._arrays.get("usave")
        if held is None or held.shape[0] != count:
            if held is not None:
                del held, self._arrays["usave"]
                gc.collect()
            held = self._arrays["usave"] = self.operators.snapshots(self._grid, count)
        return held

    def checkpoint_steps(self, wavelet: NDArray[Any], source_km: Sequence[float]) -> CheckpointSteps:
        """Return the forward and backward steps for migration with checkpoints.

        Args:
            wavelet: [samples], the source's signal.
            source_km: Position of the source, km.
        """
        samples = self.survey.samples
        src = self._sparse("src", samples, [source_km])
        rec = self._sparse("rec", samples, self.survey.receivers_km)
        residual = self._sparse("rec", samples, self.survey.receivers_km, key="residual")
        src.data[:, 0] = wavelet
        u, v = self._wavefield("u"), self._wavefield("v")
        shared = {"time_m": 0, "time_M": samples - 1, "dt": self.survey.time_step_s, "u": u, **self._medium()}
        make = _devito().checkpointing.CheckpointOperator
        return CheckpointSteps(
            forward=make(self.operators.compiled("model"), src=src, rec=rec, **shared),
            backward=make(self.operators.compiled("image_step"), v=v, rec=residual, **self._zeroed_images(), **shared),
            record=np.asarray(rec.data),
            residual=np.asarray(residual.data),
            levels=np.asarray(u.data_with_halo),
        )

    def images(self, interval: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return image and illumination of the model without the sponge, float32 [*shape], integrated over time.

        Args:
            interval: Time steps between two correlations.
        """
        scale = interval * self.survey.time_step_s
        image, illumination = (
            (np.asarray(self._arrays[name].data)[self._inside] * scale).astype(np.float32)
            for name in ("image", "illumination")
        )
        return image, illumination

    def _apply(self, operator: Any, steps: int, **arguments: Any) -> None:
        with flushed_subnormals():
            operator.apply(time_m=0, time_M=steps - 1, dt=self.survey.time_step_s, **arguments)

    def _count(self, steps: range) -> int:
        """Return the number of snapshots in a range of time steps whose first step has a snapshot."""
        return -(-len(steps) // self.survey.snapshot_factor)

    def _medium(self) -> dict[str, Any]:
        return {name: self._arrays[name] for name in ("m", "damp")}

    def _wavefield(self, name: str) -> Any:
        """Return three time levels of a wavefield, set to zero."""
        if name not in self._arrays:
            self._arrays[name] = _devito().TimeFunction(
                name=name, grid=self._grid, time_order=2, space_order=self.survey.space_order
            )
        self._arrays[name].data_with_halo[:] = 0
        return self._arrays[name]

    def _function(self, name: str, space_order: int) -> Any:
        if name not in self._arrays:
            self._arrays[name] = _devito().Function(name=name, grid=self._grid, space_order=space_order)
        return self._arrays[name]

    def _zeroed_images(self) -> dict[str, Any]:
        images = {name: self._function(name, space_order=0) for name in ("image", "illumination")}
        for image in images.values():
            image.data[:] = 0
        return images

    def _sparse(self, name: str, steps: int, positions_km: Sequence[Sequence[float]], *, key: str | None = None) -> Any:
        """Return an array for signals [steps, positions]. `key` distinguishes arrays that have the same name in
        Devito.
        """
        held = self._arrays.get(key or name)
        if held is None or held.data.shape != (steps, len(positions_km)):
            held = _devito().SparseTimeFunction(name=name, grid=self._grid, npoint=len(positions_km), nt=steps)
            self._arrays[key or name] = held
        held.coordinates.data[:] = positions_km
        return held


def propagator(survey: Survey, precision: Precision = "float32") -> Propagator:
    """Return the propagator of this process for a survey.

    Operators are kept until the process ends, and are shared between surveys of the same dimensions, space order and
    snapshot factor. Arrays are kept only for the last survey and precision.

    Raises:
        MissingPackage: Devito is not installed.
    """
    if precision not in ("float32", "float64"):
        raise ConfigError(f"precision: must be float32 or float64 (got {precision!r})", where="precision")
    key = (survey, precision)
    with _LOCK:
        if key not in _last:
            if _last:
                _last.clear()
                gc.collect()  # Devito's arrays are in reference cycles, so old arrays would remain in memory
            _last[key] = Propagator(survey, precision)
        return _last[key]


def model_shot(survey: Survey, model: NDArray[Any], shot: int) -> NDArray[np.float32]:
    """Model the gather of one shot.

    Args:
        survey: The survey.
        model: Velocities [*shape], km/s.
        shot: Index of the shot.
    Returns:
        float32 [samples, receivers]: pressure at each receiver.
    Raises:
        ConfigError: The survey has no such shot, or the model does not fit the survey.
        MissingPackage: Devito is not installed.
        SystemFault: Devito's C compiler is missing, or it rejected the code.
    """
    survey.check_shot(shot)
    survey.check_model(model)
    wave = propagator(survey)
    with wave.lock:
        wave.load(model)
        wavelet = ricker(survey.samples, survey.time_step_s, survey.frequency_hz)
        return wave.forward(wavelet, survey.sources_km[shot]).astype(np.float32)


@dataclass(frozen=True)
class CheckpointSteps:
    """Steps of a migration that computes forward steps again from checkpoints. Also pyrevolve's description of a
    checkpoint.

    Attributes:
        forward: Devito's operator for forward steps, which writes `record`.
        backward: Devito's operator for backward steps, which reads `residual` and correlates the wavefields.
        record: The forward wavefield at the receivers [samples, receivers].
        residual: The signals to propagate backwards [samples, receivers]. The caller fills them.
        levels: The three time levels of the forward wavefield [3, ...]; step n is at n modulo 3.
    """

    forward: Any
    backward: Any
    record: NDArray[Any]
    residual: NDArray[Any]
    levels: NDArray[Any]

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of a value in a checkpoint."""
        return self.levels.dtype

    @property
    def size(self) -> int:
        """Number of values in a checkpoint."""
        return 2 * int(self.levels[0].size)

    def get_data(self, step: int) -> list[NDArray[Any]]:
        """The two time levels from which a step is computed. pyrevolve copies them into a checkpoint."""
        return [self.levels[step % 3], self.levels[(step - 1) % 3]]

    def get_data_location(self, step: int) -> list[NDArray[Any]]:
        """The same arrays, into which pyrevolve copies a checkpoint."""
        return self.get_data(step)


class _Operators:
    """Devito operators for grids of any size. An operator is built only when it is first used, because building it
    takes a second.

    The wave equation is m u_tt + damp u_t - laplace(u) = source, where m is the squared slowness, and damp the damping
    of the sponge. `adjoint` is the transpose of `model`: the same equation with time reversed, the receivers as
    sources, and the source as a receiver.
    """

    def __init__(self, dimensions: int, space_order: int, snapshot_factor: int, precision: Precision) -> None:
        devito = self._devito = _devito()
        # Arrays of this size are never used, because each call of an operator passes its own arrays.
        grid = devito.Grid(shape=(2 * space_order,) * dimensions, dtype=np.dtype(precision).type)
        self._medium = [devito.Function(name=name, grid=grid, space_order=2) for name in ("m", "damp")]
        self._wave = {
            name: devito.TimeFunction(name=name, grid=grid, time_order=2, space_order=space_order) for name in "uv"
        }
        self._sparse = [devito.SparseTimeFunction(name=name, grid=grid, npoint=1, nt=2) for name in ("src", "rec")]
        self._images = [devito.Function(name=name, grid=grid, space_order=0) for name in ("image", "illumination")]
        self._snapshot_time = devito.ConditionalDimension("t_snapshot", parent=grid.time_dim, factor=snapshot_factor)
        self._snapshots = self.snapshots(grid, 2)
        self._dt = grid.stepping_dim.spacing
        self._compiled: dict[str, Any] = {}

    def snapshots(self, grid: Any, count: int) -> Any:
        """Return Devito's array of snapshots, [count, *grid.shape]. It has no halo, so that its memory is
        contiguous.
        """
        return self._devito.TimeFunction(
            name="usave", grid=grid, time_order=0, space_order=0, save=count, time_dim=self._snapshot_time
        )

    def compiled(self, name: str) -> Any:
        """Return the operator `model`, `forward` (stores snapshots), `adjoint`, `image` (reads snapshots) or
        `image_step` (for Revolver).

        Raises:
            SystemFault: Devito's C compiler is missing, or it rejected the code.
        """
        if name not in self._compiled:
            operator = self._devito.Operator(getattr(self, f"_{name}")(), name=f"penstock_{name}")
            try:
                # Accessing this property compiles and loads the code.
                with flushed_subnormals():
                    _ = operator.cfunction
            except (self._devito.exceptions.CompilationError, OSError, RuntimeError) as error:
                raise SystemFault(
                    f"Devito: operator {name} does not compile ({error})",
                    hint="install gcc, or name the compiler in DEVITO_ARCH; DEVITO_LOGGING=DEBUG prints the command",
                ) from error
            self._compiled[name] = operator
        return self._compiled[name]

    def _model(self) -> list[Any]:
        u, (m, damp), (src, rec) = self._wave["u"], self._medium, self._sparse
        equation = m * u.dt2 - u.laplace + damp * u.dt
        update = self._devito.Eq(u.forward, self._devito.solve(equation, u.forward))
        return [update, src.inject(u.forward, expr=src * self._dt**2 / m), rec.interpolate(u)]

    def _forward(self) -> list[Any]:
        return [*self._model(), self._devito.Eq(self._snapshots, self._wave["u"])]

    def _backward(self) -> list[Any]:
        v, (m, damp), (_, rec) = self._wave["v"], self._medium, self._sparse
        equation = m * v.dt2 - v.laplace + damp * v.dt.T
        update = self._devito.Eq(v.backward, self._devito.solve(equation, v.backward))
        return [update, rec.inject(v.backward, expr=rec * self._dt**2 / m)]

    def _adjoint(self) -> list[Any]:
        return [*self._backward(), self._sparse[0].interpolate(self._wave["v"])]

    def _image(self) -> list[Any]:
        return [*self._backward(), *self._correlate(self._snapshots)]

    def _image_step(self) -> list[Any]:
        return [*self._backward(), *self._correlate(self._wave["u"])]

    def _correlate(self, u: Any) -> list[Any]:
        image, illumination = self._images
        return [self._devito.Inc(image, u * self._wave["v"]), self._devito.Inc(illumination, u * u)]


_OPERATORS_OF: dict[Method | None, tuple[str, ...]] = {
    None: ("model",),
    "snapshots": ("model", "forward", "image"),
    "disk": ("model", "forward", "image"),
    "revolver": ("model", "image_step"),
}


@cache
def _operators(dimensions: int, space_order: int, snapshot_factor: int, precision: Precision) -> _Operators:
    return _Operators(dimensions, space_order, snapshot_factor, precision)


@cache
def _devito() -> Any:
    require("penstock.rtm", "rtm")
    import devito

    # By default, Devito prints a line for each call of an operator. A log level that the user has set is not changed.
    if devito.configuration["log-level"] == "INFO":
        devito.set_log_level("WARNING")
    return devito


def _sponge(survey: Survey) -> NDArray[np.float64]:
    """Return the damping of the sponge times the velocity, [*padded_shape], in 1/km. It is 0 in the model, and
    increases smoothly outwards.
    """
    points = survey.sponge_points
    strength = 2 * math.log(1 / _SPONGE_REFLECTION) / (points * survey.spacing_km)
    total = np.zeros(survey.padded_shape)
    for axis, samples in enumerate(survey.shape):
        at = np.arange(-points, samples + points)
        depth = np.maximum(0, np.maximum(-at, at - (samples - 1))) / points
        profile = strength * (depth - np.sin(2 * np.pi * depth) / (2 * np.pi))
        total += profile.reshape([-1 if other == axis else 1 for other in range(total.ndim)])
    return total

# SPDX-License-Identifier: Apache-2.0
"""Reverse time migration: images one shot, and stacks the images of all shots.

A shot's image is the correlation of two wavefields: the wavefield of the source, and the gather's residual propagated
backwards in time.
"""

from __future__ import annotations

import errno
import math
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from penstock.errors import ConfigError, Denied, NoSpace, NotFound, PenstockError, SystemFault
from penstock.rtm.propagation import Method, propagator, ricker
from penstock.rtm.subnormals import flushed_subnormals
from penstock.rtm.survey import DEFAULT_CHECKPOINTS

if TYPE_CHECKING:
    from collections.abc import Iterable
    from os import PathLike

    from numpy.typing import NDArray

    from penstock.rtm.propagation import Precision, Propagator
    from penstock.rtm.survey import Survey

__all__ = ["adjoint_test", "migrate_shot", "reflector_peaks", "stack", "tree_sum"]

_WATER_LEVEL = 1e-3  # share of the highest illumination that is added before the division


@flushed_subnormals()
def migrate_shot(
    survey: Survey,
    smooth_model: NDArray[Any],
    gather: NDArray[Any],
    shot: int,
    method: Method = "snapshots",
    *,
    snapshot_dir: str | PathLike[str] | None = None,
    checkpoints: int = DEFAULT_CHECKPOINTS,
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Migrate the gather of one shot.

    First, the direct wave is modelled in the smooth model and subtracted from the gather. The result is the residual.

    Args:
        survey: The survey.
        smooth_model: Velocities without reflections [*shape], km/s.
        gather: [samples, receivers], as `model_shot` returns it.
        shot: Index of the shot.
        method: "snapshots" keeps every n-th step of the forward wavefield in memory, where n is
            `survey.snapshot_factor`. "disk" keeps the same snapshots in a file, and only 32 MiB of them in memory.
            "revolver" keeps some checkpoints, and computes the steps between them again. It uses every step and little
            memory, but is several times slower.
        snapshot_dir: For "disk": folder of the snapshot file, on a fast local disk with `survey.plan.snapshot_bytes` of
            free space. The file has no name, so the system deletes it when the process ends for any reason.
        checkpoints: For "revolver": number of checkpoints in memory.
    Returns:
        Image and illumination, float32 [*shape]. They are the time integrals of u v and of u u, where u is the
        wavefield of the source, and v the wavefield of the residual.
    Raises:
        ConfigError: The shot, model, gather, method or folder is invalid or does not fit the survey.
        NoSpace, NotFound, Denied, SystemFault: The snapshot file cannot be written, or Devito cannot compile.
        MissingPackage: Devito or pyrevolve is not installed.
    """
    survey.check_shot(shot)
    survey.check_model(smooth_model, reflectors=False)
    _check_gather(survey, gather)
    if method not in get_args(Method):
        raise ConfigError(
            f"method: {method!r} is not a migration method",
            hint=f"use one of {', '.join(get_args(Method))}",
            where="method",
        )
    if (method == "disk") != (snapshot_dir is not None):
        raise ConfigError(
            f"snapshot_dir: {'required by' if snapshot_dir is None else 'not supported by'} method {method}",
            hint='use method="disk" with snapshot_dir set to a folder on a fast local disk, or leave out both',
            where="snapshot_dir",
        )
    wave = propagator(survey)
    with wave.lock:
        wave.load(smooth_model)
        if method == "revolver":
            image = _with_checkpoints(wave, gather, shot, checkpoints)
        elif snapshot_dir is not None:
            image = _with_file(wave, gather, shot, snapshot_dir)
        else:
            image = _with_memory(wave, gather, shot)
    if not all(np.isfinite(each).all() for each in image):
        raise ConfigError(
            f"shot {shot}: the image contains values that are not finite",
            hint="check the amplitudes of the gather, and lower time_step_s if they are right",
            where="gather",
        )
    return image


@flushed_subnormals()
def adjoint_test(survey: Survey, model: NDArray[Any], *, precision: Precision = "float32", shot: int = 0) -> float:
    """Test with dot products that backward propagation is the transpose of forward propagation.

    For a wavelet q with the gather F q, the dot products <F q, F q> and <q, Fᵀ F q> must be equal.

    Args:
        survey: The survey.
        model: Velocities [*shape], km/s.
        precision: Precision of the propagation: "float32" or "float64".
        shot: Index of the shot.
    Returns:
        Difference of the dot products, relative to the first dot product: about 1e-6 in float32 and 1e-15 in float64.
    Raises:
        ConfigError: The model or the shot does not fit the survey, or no energy reaches a receiver.
        MissingPackage: Devito is not installed.
    """
    survey.check_shot(shot)
    survey.check_model(model, reflectors=False)
    wavelet = ricker(survey.samples, survey.time_step_s, survey.frequency_hz).astype(precision)
    wave = propagator(survey, precision)
    with wave.lock:
        wave.load(model)
        gather = wave.forward(wavelet, survey.sources_km[shot])
        back = wave.adjoint(gather, survey.sources_km[shot])
    energy = float(np.vdot(gather.astype(np.float64), gather.astype(np.float64)))
    if energy == 0:
        raise ConfigError(f"shot {shot}: no energy reaches a receiver", hint="set a longer record_s", where="record_s")
    return abs(energy - float(np.vdot(wavelet.astype(np.float64), back.astype(np.float64)))) / energy


def tree_sum(arrays: Iterable[NDArray[Any]]) -> NDArray[np.float64]:
    """Sum arrays pairwise in float64. The result depends only on the arrays and their order.

    Args:
        arrays: One or more arrays of the same shape, in the order of the shots. About log2(n) of the n arrays are in
            memory at a time.
    Returns:
        Sum, as float64 with the shape of the arrays.
    Raises:
        ConfigError: The list is empty, shapes differ, or a value is not finite.
    """
    # As in a binary counter, `partial` contains at most one sum of 2^level arrays per level. Two sums of the same level
    # are added, and become a sum of the next level.
    partial: list[tuple[int, NDArray[np.float64]]] = []
    for number, array in enumerate(arrays):
        total, level = np.array(array, dtype=np.float64), 0
        if partial and partial[0][1].shape != total.shape:
            raise ConfigError(
                f"image {number}: shape {list(total.shape)} differs from the earlier images' "
                f"{list(partial[0][1].shape)}"
            )
        if not np.isfinite(total).all():
            raise ConfigError(
                f"image {number}: contains values that are not finite", hint="migrate the shot of this image again"
            )
        while partial and partial[-1][0] == level:
            total = partial.pop()[1] + total
            level += 1
        partial.append((level, total))
    if not partial:
        raise ConfigError("no images to sum", hint="migrate one or more shots first")
    total = partial.pop()[1]
    while partial:
        total = partial.pop()[1] + total
    return total


def stack(images: Iterable[NDArray[Any]], illuminations: Iterable[NDArray[Any]]) -> NDArray[np.float32]:
    """Stack the images of the shots, compensate for illumination, and remove low wavenumbers by a second z derivative.

    Args:
        images: Images of the shots [*shape], in the order of the shots.
        illuminations: Illuminations of the shots, in the same order as the images.
    Returns:
        float32 [*shape]: second difference in depth of (image / illumination).
    Raises:
        ConfigError: A list is empty, shapes differ, a value is not finite, or all illumination is 0.
    """
    image, illumination = tree_sum(images), tree_sum(illuminations)
    if image.shape != illumination.shape:
        raise ConfigError(f"stack: images have shape {list(image.shape)}, and illuminations {list(illumination.shape)}")
    highest = float(illumination.max(initial=0.0))
    if highest <= 0 or float(illumination.min()) < 0:
        raise ConfigError(
            "stack: the illumination is 0 everywhere, or negative somewhere",
            hint="pass the illuminations that migrate_shot returned",
        )
    compensated = image / (illumination + _WATER_LEVEL * highest)
    stacked = np.zeros(image.shape)
    stacked[..., 1:-1] = np.diff(compensated, 2, axis=-1)
    return stacked.astype(np.float32)


def reflector_peaks(image: NDArray[Any], count: int, *, separation: int = 8) -> list[int]:
    """Find the depths of the strongest reflectors in a stacked image. A reflector is a peak of the envelope, which does
    not depend on the phase of the wavelet.

    Args:
        image: Stacked image [x, z] or [x, y, z] of flat reflectors.
        count: Number of reflectors.
        separation: Smallest distance, in samples, of two reflectors, and of a reflector from the top and the bottom.
            Near the top, the sources cause strong amplitudes.
    Returns:
        At most `count` sample numbers, increasing.
    Raises:
        ConfigError: The image is not an array of finite numbers with 2 or 3 dimensions, or `count` or `separation` is
            less than 1.
    """
    values = np.asarray(image, dtype=np.float64)
    if values.ndim not in (2, 3) or not values.size or not np.isfinite(values).all():
        raise ConfigError(
            f"image: must be an array [x, z] or [x, y, z] of finite numbers (got shape {list(values.shape)})"
        )
    if min(count, separation) < 1:
        raise ConfigError(f"count, separation: must be at least 1 (got {count} and {separation})")
    # Only the middle half of each horizontal axis is used, because a finite spread blurs the edges.
    middle = tuple(slice(n // 4, n - n // 4) for n in values.shape[:-1])
    trace = _envelope(values[middle].mean(axis=tuple(range(values.ndim - 1))))
    found: list[int] = []
    for depth in np.argsort(-trace, kind="stable"):
        around = trace[max(0, depth - separation) : depth + separation + 1]
        is_peak = len(around) == 2 * separation + 1 and trace[depth] == around.max() > 0
        if is_peak and all(abs(int(depth) - other) >= separation for other in found):
            found.append(int(depth))
        if len(found) == count:
            break
    return sorted(found)


def _envelope(trace: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the envelope: the modulus of the analytic signal, whose spectrum has no negative frequencies."""
    samples = len(trace)
    # The trace is padded with zeros to twice its length, so that its top does not wrap around to its end.
    spectrum = np.fft.fft(trace, 2 * samples)
    spectrum[1:samples] *= 2
    spectrum[samples + 1 :] = 0
    return np.abs(np.fft.ifft(spectrum))[:samples]


def _with_memory(wave: Propagator, gather: NDArray[Any], shot: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    survey = wave.survey
    segments = [range(survey.samples)]
    direct = wave.forward(_wavelet(survey), survey.sources_km[shot], segments=segments)
    return wave.image(gather - direct, segments=segments)


def _with_file(
    wave: Propagator, gather: NDArray[Any], shot: int, snapshot_dir: str | PathLike[str]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    survey = wave.survey
    length = survey.snapshots_per_segment * survey.snapshot_factor
    segments = [range(start, min(start + length, survey.samples)) for start in range(0, survey.samples, length)]
    segment_bytes = survey.snapshots_per_segment * 4 * math.prod(survey.padded_shape)
    try:
        # The file has no name in the folder, so the system frees it when the process ends.
        with tempfile.TemporaryFile(dir=snapshot_dir, buffering=0) as file:

            def keep(number: int, snapshots: NDArray[Any]) -> None:
                _write(file.fileno(), number * segment_bytes, snapshots)

            def fetch(number: int, snapshots: NDArray[Any]) -> None:
                _read(file.fileno(), number * segment_bytes, snapshots)

            direct = wave.forward(_wavelet(survey), survey.sources_km[shot], segments=segments, keep=keep)
            return wave.image(gather - direct, segments=segments, fetch=fetch)
    except PenstockError:
        raise
    except OSError as error:
        raise _refused(error, str(snapshot_dir), survey.plan.snapshot_bytes) from error


def _with_checkpoints(
    wave: Propagator, gather: NDArray[Any], shot: int, checkpoints: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    import pyrevolve

    survey = wave.survey
    if checkpoints < 1:
        raise ConfigError(f"checkpoints: must be at least 1 (got {checkpoints})", where="checkpoints")
    steps = wave.checkpoint_steps(_wavelet(survey), survey.sources_km[shot])
    schedule = pyrevolve.Revolver(
        steps, steps.forward, steps.backward, min(checkpoints, survey.samples), survey.samples
    )
    schedule.apply_forward()
    steps.residual[:] = gather - steps.record
    schedule.apply_reverse()
    return wave.images(1)


def _wavelet(survey: Survey) -> NDArray[np.float64]:
    return ricker(survey.samples, survey.time_step_s, survey.frequency_hz)


def _check_gather(survey: Survey, gather: NDArray[Any]) -> None:
    want = [survey.samples, len(survey.receivers_km)]
    if not isinstance(gather, np.ndarray) or list(gather.shape) != want or gather.dtype.kind not in "fiu":
        described = f"{gather.dtype} {list(gather.shape)}" if isinstance(gather, np.ndarray) else type(gather).__name__
        raise ConfigError(
            f"gather: must be an array of real numbers {want} (samples, receivers), but is {described}",
            hint="resample the gather to the survey's time step and record length, samples first",
            where="gather",
        )
    if not np.isfinite(gather).all():
        raise ConfigError(
            f"gather: {int((~np.isfinite(gather)).sum()):,} of {gather.size:,} samples are not finite",
            hint="replace dead samples with 0",
            where="gather",
        )


def _write(file: int, offset: int, snapshots: NDArray[Any]) -> None:
    rest = snapshots.data.cast("B")
    while rest:
        count = os.pwrite(file, rest, offset)
        rest, offset = rest[count:], offset + count


def _read(file: int, offset: int, snapshots: NDArray[Any]) -> None:
    rest = snapshots.data.cast("B")
    while rest:
        count = os.preadv(file, [rest], offset)
        if not count:
            raise OSError(errno.EIO, "the snapshot file ends too early")
        rest, offset = rest[count:], offset + count


def _refused(error: OSError, folder: str, need: int) -> PenstockError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return NoSpace(
            f"{folder}: no space left for the snapshots of a shot ({need:,} bytes)",
            where=folder,
            need=need,
            hint="free some space, choose another folder, or raise snapshot_factor",
        )
    if isinstance(error, (FileNotFoundError, NotADirectoryError)) and not Path(folder).is_dir():
        return NotFound(f"{folder}: not a folder", where=folder, hint="create the folder, or choose another")
    if isinstance(error, PermissionError) or error.errno == errno.EROFS:
        return Denied(f"{folder}: cannot be written ({error.strerror})", where=folder, hint="choose another folder")
    return SystemFault(f"{folder}: {error.strerror}", where=folder)

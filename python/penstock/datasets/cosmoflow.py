# SPDX-License-Identifier: Apache-2.0
"""Files in the format of the published CosmoFlow dataset: one gzip-compressed TFRecord per sample, with the same names
and encoding.

A sample is a `tf.train.Example` of `x` (bytes: int16 little-endian, C order [V, V, V, 4]) and `y` (4 floats: the
parameters, scaled to [-1, 1]). Each universe has its own parameters and phases, so a model must learn the labels from
clustering, not from the noise.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Literal

import numpy as np

from penstock import _native
from penstock.datasets import cosmology
from penstock.datasets.files import prepare_folder, write_atomically
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

__all__ = ["Summary", "default_box_mpc", "generate", "sample_name", "universe"]

Codec = Literal["gzip", "zstd", "none"]
_SUFFIX: dict[str, str] = {"gzip": ".gz", "zstd": ".zst", "none": ""}
_CUBES_PER_SIDE = {1: 1, 8: 2, 64: 4}
_LEVEL = 6  # default of zlib and `gzip`, which gives the compression ratio of the published set


@dataclass(frozen=True)
class Summary:
    """Result of `generate`.

    Attributes:
        samples: Number of files written.
        bytes_stored: Total size of the files.
        bytes_inflated: Total size before compression.
        box_mpc: Side of a sample's box, Mpc/h at H_0 = 70.
    """

    samples: int
    voxels: int
    seed: int
    compress: str
    cubes_per_universe: int
    box_mpc: float
    bytes_stored: int
    bytes_inflated: int


def default_box_mpc(voxels: int) -> float:
    """Return the default side of a sample's box in Mpc/h at H_0 = 70: 4 per voxel, but at least 192.

    Source: docs/decisions/0302-box.md. With voxels below about 2 Mpc/h, orbits cross in second-order theory, and the
    variance no longer grows from z = 0.5 to z = 0. A box below about 190 Mpc/h has too few modes to determine Omega_m.
    `box_mpc=128` with 128 voxels gives the published voxel size of 1 Mpc/h.
    """
    return max(192.0, 4.0 * voxels)


def sample_name(universe: int, cube: int, compress: str) -> str:
    """Return the file name of one sample. As in the published set, seven digits number the universe, and three the
    cube.
    """
    return f"univ_ics_2019-03_a{universe:07d}_{cube:03d}.tfrecord{_SUFFIX[compress]}"


def universe(
    index: int, *, seed: int, voxels: int, box_mpc: float, cubes_per_universe: int = 1
) -> tuple[NDArray[np.float32], list[NDArray[np.int16]]]:
    """Generate one universe and cut it into cubes.

    Args:
        index: Number of the universe in the sequence of this seed.
        seed: Seed of the dataset.
        voxels: Side of a cube.
        box_mpc: Side of a cube's box, Mpc/h at H_0 = 70. The side in Mpc is the same for all universes, as in the
            published simulations, so the side in Mpc/h is proportional to H_0.
        cubes_per_universe: 1, 8 or 64.

    Returns:
        y, float32 [4]: the parameters (Omega_m, sigma_8, n_s, H_0), scaled to [-1, 1]. And for each cube x, int16
        [voxels, voxels, voxels, 4].
    """
    side = _CUBES_PER_SIDE[cubes_per_universe]
    rng = np.random.default_rng([seed, index])
    unit = rng.uniform(-1, 1, 4)
    parameters = cosmology.Cosmology.of_unit(unit)
    box = side * box_mpc * parameters.h_0 / 70.0
    counts = cosmology.volume(parameters, side * voxels, box, rng)
    cubes = [
        np.ascontiguousarray(
            counts[i * voxels : (i + 1) * voxels, j * voxels : (j + 1) * voxels, k * voxels : (k + 1) * voxels]
        )
        for i in range(side)
        for j in range(side)
        for k in range(side)
    ]
    return unit.astype(np.float32), cubes


def generate(
    out: Path,
    *,
    samples: int,
    voxels: int,
    seed: int,
    box_mpc: float | None = None,
    cubes_per_universe: int = 1,
    first_universe: int = 0,
    compress: Codec = "gzip",
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Summary:
    """Write a dataset. The same arguments produce the same bytes.

    Args:
        out: Folder; created if missing. The folder must contain only samples of this dataset.
        samples: Number of files to write. From the last universe, possibly only some cubes are written.
        voxels: Side of a sample, 8 to 512.
        seed: Seed of parameters and phases.
        box_mpc: Side of a sample's box, Mpc/h at H_0 = 70; `default_box_mpc` if None.
        cubes_per_universe: Number of samples cut from one universe: 1, 8 or 64. The published set has 64.
        first_universe: Number of the first universe. A validation set can begin with the universe after the last
            universe of the training set.
        compress: "gzip", "zstd" or "none".
        workers: Number of threads; by default one per processor. The number does not change the bytes.
        progress: Function that is called with (bytes stored, samples done) after each sample.

    Returns:
        A summary of the files written.

    Raises:
        ConfigError: An argument is invalid, or the folder contains other files.
        NoSpace, Denied, SystemFault: The folder cannot be written. No partial file remains under a sample's name.
    """
    if seed < 0:
        raise ConfigError(f"seed: must be at least 0 (got {seed})", where="seed")
    _check(samples, voxels, cubes_per_universe, first_universe, compress, box_mpc)
    box = default_box_mpc(voxels) if box_mpc is None else box_mpc
    names = [
        sample_name(first_universe + i // cubes_per_universe, i % cubes_per_universe, compress) for i in range(samples)
    ]
    prepare_folder(out, set(names))

    def write(index: int) -> list[tuple[int, int]]:
        y, cubes = universe(
            first_universe + index, seed=seed, voxels=voxels, box_mpc=box, cubes_per_universe=cubes_per_universe
        )
        wanted = names[index * cubes_per_universe : (index + 1) * cubes_per_universe]
        written = []
        for name, x in zip(wanted, cubes, strict=False):
            record = _native.encode_tfrecord(
                {"x": x.astype("<i2", copy=False).tobytes(), "y": y.tolist()}, codec=compress, level=_LEVEL
            )
            write_atomically(out / name, record)
            written.append((len(record), x.nbytes))
        return written

    stored = inflated = done = 0
    universes = -(-samples // cubes_per_universe)
    for written in _in_order(write, universes, workers or os.cpu_count() or 1):
        for size, raw in written:
            stored, inflated, done = stored + size, inflated + raw, done + 1
            if progress is not None:
                progress(stored, done)
    return Summary(
        samples=samples,
        voxels=voxels,
        seed=seed,
        compress=compress,
        cubes_per_universe=cubes_per_universe,
        box_mpc=box,
        bytes_stored=stored,
        bytes_inflated=inflated,
    )


def _in_order(
    write: Callable[[int], list[tuple[int, int]]], count: int, workers: int
) -> Iterator[list[tuple[int, int]]]:
    # A limited number of futures limits the memory to a few universes. Ctrl-C cancels the futures that have not
    # started.
    with ThreadPoolExecutor(workers, thread_name_prefix="penstock-universe") as pool:
        indices = iter(range(count))
        pending = [pool.submit(write, i) for i in islice(indices, 2 * workers)]
        try:
            while pending:
                yield pending.pop(0).result()
                pending += [pool.submit(write, i) for i in islice(indices, 1)]
        finally:
            for future in pending:
                future.cancel()


def _check(samples: int, voxels: int, cubes: int, first_universe: int, compress: str, box_mpc: float | None) -> None:
    if samples < 1:
        raise ConfigError(f"samples: must be at least 1 (got {samples})")
    if not 8 <= voxels <= 512:
        raise ConfigError(f"voxels: {voxels} is not between 8 and 512")
    if cubes not in _CUBES_PER_SIDE:
        raise ConfigError(f"cubes-per-universe: {cubes} is not one of 1, 8, 64 (the cubes must fill a box)")
    if voxels * _CUBES_PER_SIDE[cubes] > 1024:
        raise ConfigError(
            f"cubes-per-universe: {cubes} cubes of {voxels} voxels need a grid of {voxels * _CUBES_PER_SIDE[cubes]}³, more than 1024³"
        )
    if compress not in _SUFFIX:
        raise ConfigError(f"compress: `{compress}` is not one of {', '.join(_SUFFIX)}")
    if box_mpc is not None and not 1 <= box_mpc <= 10_000:
        raise ConfigError(f"box: {box_mpc:g} Mpc/h is not between 1 and 10,000")
    last = first_universe + -(-samples // cubes) - 1
    if first_universe < 0 or last > 9_999_999:
        raise ConfigError(f"universes {first_universe} to {last} do not fit in the seven digits of a sample name")

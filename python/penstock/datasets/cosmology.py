# SPDX-License-Identifier: Apache-2.0
"""A universe in a box: linear power spectrum, Gaussian field, second-order Lagrangian displacement, particle counts.

Contains only the physics; `penstock.datasets.cosmoflow` writes the files. One core computes a 128³ x 4 volume in about
a second. The N-body pipeline of the published set takes minutes on one core, but its volumes are more realistic. Here,
Lagrangian perturbation theory is valid only until orbits first cross, so haloes do not collapse, and power at scales
below a few Mpc/h is too low. Large-scale clustering, its growth and the statistics of counts are correct.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["REDSHIFTS", "Cosmology", "growth", "linear_power", "volume"]

REDSHIFTS = (0.0, 0.5, 1.5, 3.0)
"""Redshift of each channel, in order. Source: CosmoFlow's simulation set (NERSC/cosmoflow-sims)."""

_OMEGA_B = 0.045
_T_CMB_K = 2.7255


@dataclass(frozen=True)
class Cosmology:
    """A flat universe.

    Attributes:
        omega_m: Matter density today, in units of the critical density.
        sigma_8: Root mean square of the linear density contrast in spheres of 8 Mpc/h today.
        n_s: Slope of the primordial spectrum.
        h_0: Hubble constant, km/s/Mpc.
    """

    omega_m: float
    sigma_8: float
    n_s: float
    h_0: float

    @classmethod
    def of_unit(cls, u: NDArray[np.float64]) -> Cosmology:
        """Return the universe for four numbers in [-1, 1], which are the labels of the published set.

        Source:
            Central values and the 10 % half-width of each range: NERSC/cosmoflow-sims, `janWorkflow`.
        """
        return cls(
            omega_m=0.3 * (1 + 0.1 * float(u[0])),
            sigma_8=0.8 * (1 + 0.1 * float(u[1])),
            n_s=0.96 * (1 + 0.1 * float(u[2])),
            h_0=70.0 * (1 + 0.1 * float(u[3])),
        )


def _transfer(k: NDArray[np.float64], cosmology: Cosmology) -> NDArray[np.float64]:
    """Return the zero-baryon transfer function of Eisenstein & Hu 1998 (ApJ 496, 605), eq. 26, 28-31. k is in h/Mpc."""
    h = cosmology.h_0 / 100
    om = cosmology.omega_m * h * h
    ob = _OMEGA_B * h * h
    fb = ob / om
    sound_horizon_mpc = 44.5 * np.log(9.83 / om) / np.sqrt(1 + 10 * ob**0.75)
    alpha = 1 - 0.328 * np.log(431 * om) * fb + 0.38 * np.log(22.3 * om) * fb * fb
    shape = cosmology.omega_m * h * (alpha + (1 - alpha) / (1 + (0.43 * k * h * sound_horizon_mpc) ** 4))
    q = k * (_T_CMB_K / 2.7) ** 2 / shape
    log_term = np.log(2 * np.e + 1.8 * q)
    transfer: NDArray[np.float64] = log_term / (log_term + (14.2 + 731 / (1 + 62.5 * q)) * q * q)
    return transfer


def linear_power(k: NDArray[np.float64], cosmology: Cosmology) -> NDArray[np.float64]:
    """Return the linear matter power at z = 0.

    Args:
        k: Wave numbers, h/Mpc. The power at wave number 0 is 0.
        cosmology: The universe; its sigma_8 sets the amplitude.

    Returns:
        Power in (Mpc/h)³, with the shape of k.
    Source:
        Eisenstein & Hu 1998 without baryon wiggles: within 7 % of CAMB 2.0.5 at equal sigma_8 for 0.02 < k < 6 h/Mpc.
    """
    grid = np.geomspace(1e-4, 50.0, 2048)
    shape = grid**cosmology.n_s * _transfer(grid, cosmology) ** 2
    x = 8.0 * grid
    top_hat = 3 * (np.sin(x) - x * np.cos(x)) / x**3
    integrand = grid**3 * shape * top_hat**2 / (2 * np.pi**2)  # integration over ln k
    variance = float(np.sum((integrand[1:] + integrand[:-1]) / 2 * np.diff(np.log(grid))))
    amplitude = cosmology.sigma_8**2 / variance
    safe = np.where(k > 0, k, 1.0)
    return np.where(k > 0, amplitude * safe**cosmology.n_s * _transfer(safe, cosmology) ** 2, 0.0)


def _omega_m_at(z: float, omega_m: float) -> float:
    matter: float = omega_m * (1 + z) ** 3
    return matter / (matter + 1 - omega_m)


def growth(z: float, omega_m: float) -> float:
    """Return the linear growth factor of a flat universe, which is 1 at z = 0.

    Source:
        Carroll, Press & Turner 1992 (ARA&A 30, 499), eq. 29.
    """

    def suppressed(z: float) -> float:
        m = _omega_m_at(z, omega_m)
        vacuum = 1 - m
        # Use math.pow, because type checkers give Python's ** on floats the type Any.
        return 2.5 * m / (math.pow(m, 4 / 7) - vacuum + (1 + m / 2) * (1 + vacuum / 70)) / (1 + z)

    return suppressed(z) / suppressed(0.0)


def volume(cosmology: Cosmology, voxels: int, box_mpc_per_h: float, rng: np.random.Generator) -> NDArray[np.int16]:
    """Compute the particle counts of one universe on a periodic grid at four redshifts.

    One particle starts on each grid point and is displaced by second-order Lagrangian perturbation theory. Each
    particle is counted at its nearest grid point, so the sum of each channel is voxels³.

    Args:
        cosmology: The universe.
        voxels: Grid points per side.
        box_mpc_per_h: Side of the box, Mpc/h.
        rng: Random generator for the initial phases, which are the same for all four redshifts.

    Returns:
        int16 [voxels, voxels, voxels, 4], channels in the order of `REDSHIFTS`.
    Source:
        2LPT: Bouchet et al. 1995 (A&A 296, 575); second-order growth D2 = -3/7 D² Omega_m(z)^(-1/143).
    """
    n = voxels
    axis = (np.fft.fftfreq(n) * (2 * np.pi * n / box_mpc_per_h)).astype(np.float32)
    half = (np.fft.rfftfreq(n) * (2 * np.pi * n / box_mpc_per_h)).astype(np.float32)
    k = (axis[:, None, None], axis[None, :, None], half[None, None, :])
    k_squared = k[0] ** 2 + k[1] ** 2 + k[2] ** 2
    power = linear_power(np.sqrt(k_squared, dtype=np.float64), cosmology)
    k_squared[0, 0, 0] = 1.0  # the mean has no power; any non-zero value avoids the division

    def forward(field: NDArray[np.float32]) -> NDArray[np.complex64]:
        return np.fft.rfftn(field).astype(np.complex64, copy=False)

    def back(modes: NDArray[np.complex64]) -> NDArray[np.float32]:
        return np.fft.irfftn(modes, s=(n, n, n), axes=(0, 1, 2)).astype(np.float32, copy=False)

    noise = rng.standard_normal((n, n, n), dtype=np.float32)
    contrast = forward(noise) * np.sqrt(power * (n / box_mpc_per_h) ** 3).astype(np.float32)
    potential = -contrast / k_squared
    potential[0, 0, 0] = 0

    diagonal = [back(-(k[i] ** 2) * potential) for i in range(3)]
    source = diagonal[0] * diagonal[1] + diagonal[0] * diagonal[2] + diagonal[1] * diagonal[2]
    for i, j in ((0, 1), (0, 2), (1, 2)):
        source -= back(-(k[i] * k[j]) * potential) ** 2
    potential_2 = -forward(source) / k_squared
    potential_2[0, 0, 0] = 0

    to_voxels = np.float32(n / box_mpc_per_h)
    start = np.arange(n, dtype=np.float32)
    # The sign of the gradient at the Nyquist frequency is not defined, so set this gradient to zero, as is usual.
    first = [back(-1j * _without_nyquist(k[i], n, i) * potential) * to_voxels for i in range(3)]
    second = [back(1j * _without_nyquist(k[i], n, i) * potential_2) * to_voxels for i in range(3)]

    out = np.empty((n, n, n, len(REDSHIFTS)), dtype=np.int16)
    for channel, z in enumerate(REDSHIFTS):
        d = growth(z, cosmology.omega_m)
        d2 = np.float32(-3 / 7 * d * d * _omega_m_at(z, cosmology.omega_m) ** (-1 / 143))
        cell = np.zeros((n, n, n), dtype=np.int64)
        for i in range(3):
            shape = [1, 1, 1]
            shape[i] = n
            position = start.reshape(shape) + np.float32(d) * first[i] + d2 * second[i]
            cell = cell * n + np.mod(np.floor(position + np.float32(0.5)).astype(np.int64), n)
        counts = np.bincount(cell.ravel(), minlength=n**3)
        out[..., channel] = np.minimum(counts, np.iinfo(np.int16).max).reshape(n, n, n)
    return out


def _without_nyquist(k: NDArray[np.float32], n: int, axis: int) -> NDArray[np.float32]:
    if n % 2:
        return k
    kept = k.copy()
    np.moveaxis(kept, axis, 0)[n // 2] = 0
    return kept

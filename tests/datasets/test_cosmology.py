# SPDX-License-Identifier: Apache-2.0
"""Tests the simulated physics: spectrum, growth, counts, and that the volumes carry the information of their labels."""

import numpy as np
import pytest

from penstock.datasets import cosmoflow, cosmology

CENTRE = cosmology.Cosmology(omega_m=0.3, sigma_8=0.8, n_s=0.96, h_0=70.0)


def log_power(volume):
    """Log power of each channel in radial bins, as one row for the volume."""
    n = volume.shape[0]
    k = np.sqrt(sum(np.meshgrid(*[np.fft.fftfreq(n) ** 2] * 3, indexing="ij")))
    bins = np.digitize(k.ravel(), np.linspace(0.5 / n, 0.5, 11))
    rows = []
    for channel in range(volume.shape[-1]):
        contrast = volume[..., channel] / volume[..., channel].mean() - 1
        power = (np.abs(np.fft.fftn(contrast)) ** 2).ravel()
        rows.append(np.log([power[bins == b].mean() for b in range(1, 11)]))
    return np.concatenate(rows)


def held_out_r2(features, target, folds=4):
    """R² of a ridge regression on held-out universes."""
    x = (features - features.mean(0)) / features.std(0)
    x = np.hstack([x, np.ones((len(x), 1))])
    fold = np.arange(len(x)) % folds
    predicted = np.empty(len(x))
    for f in range(folds):
        a, b = x[fold != f], target[fold != f]
        predicted[fold == f] = x[fold == f] @ np.linalg.solve(a.T @ a + np.eye(a.shape[1]), a.T @ b)
    return 1 - ((target - predicted) ** 2).sum() / ((target - target.mean()) ** 2).sum()


def universes(count, voxels, seed):
    labels, features = [], []
    for i in range(count):
        y, (x,) = cosmoflow.universe(i, seed=seed, voxels=voxels, box_mpc=cosmoflow.default_box_mpc(voxels))
        labels.append(y)
        features.append(log_power(x))
    return np.array(labels), np.array(features)


def test_linear_power_amplitude_is_sigma_8():
    k = np.geomspace(1e-4, 50, 20_000)
    x = 8 * k
    window = 3 * (np.sin(x) - x * np.cos(x)) / x**3
    variance = np.trapezoid(k**2 * cosmology.linear_power(k, CENTRE) * window**2 / (2 * np.pi**2), k)
    assert np.sqrt(variance) == pytest.approx(0.8, rel=1e-3)


def test_linear_power_turns_over_near_the_horizon_at_equality():
    k = np.geomspace(1e-3, 1, 500)
    assert 0.01 < k[np.argmax(cosmology.linear_power(k, CENTRE))] < 0.03


def test_growth_of_a_matter_universe_is_the_scale_factor():
    assert cosmology.growth(3.0, 1.0) == pytest.approx(0.25, rel=1e-6)
    # Dark energy slows down growth, so the past differs less from today.
    assert cosmology.growth(3.0, 0.3) == pytest.approx(0.32, abs=0.01)


def test_volume_counts_every_particle_in_every_channel():
    x = cosmology.volume(CENTRE, 32, 192.0, np.random.default_rng(1))
    assert x.dtype == np.int16
    assert x.shape == (32, 32, 32, 4)
    assert x.min() >= 0
    assert (x.sum((0, 1, 2), dtype=np.int64) == 32**3).all()


def test_volume_large_scales_follow_linear_theory():
    # At z = 0.5, displacements span several voxels, so the grid has no visible effect, and linear theory still nearly
    # holds.
    n, box = 64, 256.0
    ratios = []
    for seed in range(3):
        x = cosmology.volume(CENTRE, n, box, np.random.default_rng(seed))[..., 1]
        modes = np.abs(np.fft.fftn(x / x.mean() - 1)) ** 2 * (box / n**2) ** 3
        k = 2 * np.pi * n / box * np.sqrt(sum(np.meshgrid(*[np.fft.fftfreq(n) ** 2] * 3, indexing="ij")))
        wanted = (k > 0.03) & (k < 0.2)
        linear = cosmology.linear_power(k[wanted], CENTRE) * cosmology.growth(0.5, 0.3) ** 2
        ratios.append(modes[wanted].mean() / linear.mean())
    assert np.mean(ratios) == pytest.approx(0.93, abs=0.1)


@pytest.mark.parametrize("voxels", [32, 64])
def test_volume_clustering_grows_with_time(voxels):
    _, (x,) = cosmoflow.universe(0, seed=3, voxels=voxels, box_mpc=cosmoflow.default_box_mpc(voxels))
    variance = x.astype(float).var((0, 1, 2))
    assert (np.diff(variance) < 0).all(), variance  # channels run from today into the past


def test_sigma_8_can_be_read_from_32_cubed_volumes():
    labels, features = universes(160, 32, seed=5)
    assert held_out_r2(features, labels[:, 1]) > 0.45


@pytest.mark.slow
def test_omega_m_can_be_read_only_from_the_redshifts_together():
    labels, features = universes(140, 64, seed=5)
    together = held_out_r2(features, labels[:, 0])
    today = held_out_r2(features[:, :10], labels[:, 0])
    assert together > 0.5
    assert together > today + 0.2

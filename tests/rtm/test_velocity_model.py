# SPDX-License-Identifier: Apache-2.0
"""Tests velocity models: layers, smoothing, reflector depths and travel times."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.errors import ConfigError
from penstock.rtm.velocity_model import layered, reflector_depths, smooth, two_way_time_s


def test_layered_by_default_has_five_layers_of_equal_thickness():
    model = layered((3, 201), 0.01)
    assert (model.shape, model.dtype) == ((3, 201), np.float32)
    assert reflector_depths(model) == [40, 80, 120, 160]
    assert model[0, [0, 40, 80, 120, 200]].tolist() == [1.5, 2.0, 2.5, 3.0, 3.5]


def test_layered_in_3d_puts_interfaces_at_the_nearest_sample():
    model = layered((4, 5, 60), 0.02, [0.3, 0.809], vmin=1.6, vmax=3.0)
    assert reflector_depths(model) == [15, 40]
    assert two_way_time_s(model, 0.02) == pytest.approx(2 * (0.3 / 1.6 + 0.5 / 2.3))
    assert (model == model[0, 0]).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((0, 201), 0.01), r"shape: must be .* \(got \[0, 201\]"),
        (((201,), 0.01), r"shape: must be .* \(got \[201\]"),
        (((9, 201), float("nan")), "spacing_km: must be finite and above 0 .got nan"),
        (((9, 201), 0.01, [0.5, 0.4]), r"samples \[50, 40\] do not divide"),
        (((9, 201), 0.01, [2.5]), r"samples \[250\] do not divide a depth of 201"),
        (((9, 201), 0.01, [0.1, float("inf")]), "interfaces_km: must be finite and above 0 .got inf"),
        (((9, 3), 0.01, [0.001]), "do not divide"),
    ],
)
def test_layered_of_an_impossible_model_is_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        layered(*arguments)


@pytest.mark.parametrize(("vmin", "vmax"), [(-1.5, 3.5), (0.0, 3.5), (1.5, float("nan")), (1500.0, 3500.0)])
def test_layered_of_impossible_velocities_is_refused(vmin, vmax):
    with pytest.raises(ConfigError, match=r"vmin|vmax|km/s"):
        layered((9, 201), 0.01, vmin=vmin, vmax=vmax)


def test_smooth_keeps_travel_time_along_a_layer_and_removes_reflectors():
    model = layered((41, 201), 0.01)
    smoothed = smooth(model, 10)
    assert (smoothed.shape, smoothed.dtype) == (model.shape, np.float32)
    assert reflector_depths(smoothed) == []
    assert (smoothed**-2.0).mean() == pytest.approx((model**-2.0).mean(), rel=0.01)
    assert (np.diff(smoothed, axis=-1) >= -1e-6).all()
    assert smoothed[0, 0] == pytest.approx(1.5, rel=1e-3)


def test_smooth_is_a_gaussian_on_squared_slowness():
    model = np.full((61, 61), 2.0)
    model[30, 30] = 1.0
    change = smooth(model, 3).astype(np.float64) ** -2 - 0.25
    r = np.arange(61) - 30
    gaussian = np.exp(-0.5 * (r[:, None] ** 2 + r**2) / 9) / (2 * np.pi * 9)
    assert change == pytest.approx(0.75 * gaussian, abs=1e-5)


def test_smooth_in_3d_of_a_constant_is_the_constant():
    model = np.full((5, 6, 7), 2.5, dtype=np.float32)
    assert smooth(model, 20) == pytest.approx(model, rel=1e-6)
    assert (smooth(model, 0) == model).all()


@pytest.mark.parametrize("points", [-1, float("nan"), float("inf")])
def test_smooth_with_an_invalid_width_is_refused(points):
    with pytest.raises(ConfigError, match="points"):
        smooth(layered((3, 20), 0.01), points)


def test_two_way_time_is_that_of_the_slowest_column_down_to_a_depth():
    model = np.full((2, 10), 2.0)
    model[1, :5] = 1.0
    assert two_way_time_s(model, 0.1, 10) == pytest.approx(2 * (0.5 / 1 + 0.5 / 2))
    assert two_way_time_s(model, 0.1) == pytest.approx(2 * 0.5 / 1)
    assert two_way_time_s(model[:1], 0.1) == 0
    with pytest.raises(ConfigError, match="sample 11"):
        two_way_time_s(model, 0.1, 11)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (np.array([[1.5, -2.0], [1.5, 2.0]]), r"1 of 4 velocities are not positive, first at \[0, 1\]"),
        (np.array([[1.5, 0.0]]), "not positive"),
        (np.array([[1.5, np.nan]]), r"1 of 2 velocities are not finite, first at \[0, 1\]"),
        (np.array([[1.5, np.inf]]), "not finite"),
        (np.array([[1500.0, 2000.0]]), "2000 km/s is above 20 km/s"),
        (np.array([1.5, 2.0]), "must be an array of real numbers"),
        (np.zeros((0, 5)), "must be an array of real numbers"),
        (np.array([["a", "b"]]), "must be an array of real numbers"),
        (np.array([[1.5 + 1j]]), "must be an array of real numbers"),
        ([[1.5, 2.0]], "must be an array .* .got list"),
    ],
)
def test_velocities_that_cannot_be_are_refused_by_each_function(model, message):
    for function in (reflector_depths, lambda v: smooth(v, 2), lambda v: two_way_time_s(v, 0.01)):
        with pytest.raises(ConfigError, match=message):
            function(model)

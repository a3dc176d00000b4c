# SPDX-License-Identifier: Apache-2.0
"""Tests migration: the adjoint, the image of known reflectors, the three methods, and the stack."""

from __future__ import annotations

import resource
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from penstock.errors import ConfigError, Denied, NoSpace, NotFound
from penstock.rtm import survey as survey_module
from penstock.rtm.imaging import adjoint_test, migrate_shot, reflector_peaks, stack, tree_sum
from penstock.rtm.propagation import model_shot, surface_spread
from penstock.rtm.velocity_model import layered, smooth


@pytest.fixture(scope="module")
def shot():
    """Survey, smooth model and gather of a small shot."""
    model = layered((61, 61), 0.01, [0.25, 0.45])
    survey = surface_spread(model, 0.01, 2)
    return survey, smooth(model, 8), model_shot(survey, model, 1)


def difference(one, other):
    """Norm of the difference relative to the second array. In float64: squares of images underflow in float32."""
    one, other = one.astype(np.float64), other.astype(np.float64)
    return np.linalg.norm(one - other) / np.linalg.norm(other)


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "limit"), [("float32", 1e-5), ("float64", 1e-13)])
def test_backward_propagation_is_the_transpose_of_forward_propagation(precision, limit):
    model = layered((61, 61), 0.01)
    survey = surface_spread(model, 0.01, 2)
    # Positions between grid points and at the model's edges, next to the sponge.
    survey = replace(survey, sources_km=((0.1234, 0.017),), receivers_km=((0.0, 0.0), (0.6, 0.6), (0.333, 0.0215)))
    assert adjoint_test(survey, model, precision=precision) < limit


def test_backward_propagation_in_3d_is_the_transpose_of_forward_propagation():
    model = layered((21, 21, 21), 0.01)
    assert adjoint_test(replace(surface_spread(model, 0.01, 1), sponge_points=8), model) < 1e-5


def test_adjoint_test_without_energy_at_the_receivers_is_refused():
    model = layered((61, 61), 0.01)
    survey = replace(surface_spread(model, 0.01, 1), receivers_km=((0.6, 0.6),), record_s=0.0012)
    with pytest.raises(ConfigError, match="no energy"):
        adjoint_test(survey, model)


def test_image_of_201_by_201_samples_peaks_at_the_reflectors():
    model = layered((201, 201), 0.01)
    survey = surface_spread(model, 0.01, 8)
    smoothed = smooth(model, 10)
    shots = [migrate_shot(survey, smoothed, model_shot(survey, model, i), i) for i in range(survey.shots)]
    stacked = stack([image for image, _ in shots], [illumination for _, illumination in shots])
    assert stacked.shape == (201, 201)
    assert stacked.dtype == np.float32
    peaks = reflector_peaks(stacked, 4)
    assert peaks == pytest.approx([40, 80, 120, 160], abs=2)


def test_image_in_3d_peaks_at_the_reflector():
    model = layered((25, 25, 31), 0.02, [0.3], vmin=1.8, vmax=2.6)
    survey = replace(surface_spread(model, 0.02, 1, frequency_hz=10), sponge_points=10)
    image, illumination = migrate_shot(survey, smooth(model, 4), model_shot(survey, model, 0), 0)
    assert image.shape == illumination.shape == (25, 25, 31)
    assert reflector_peaks(stack([image], [illumination]), 1) == pytest.approx([15], abs=2)


def test_image_of_the_smooth_model_itself_is_empty(shot):
    survey, smoothed, gather = shot
    reference, _ = migrate_shot(survey, smoothed, gather, 1)
    image, illumination = migrate_shot(survey, smoothed, model_shot(survey, smoothed, 1), 1)
    assert np.abs(image).max() < 1e-5 * np.abs(reference).max()
    assert (illumination >= 0).all()
    assert illumination.max() > 0


def test_snapshots_in_a_file_give_the_same_bits_and_leave_no_file(shot, tmp_path, monkeypatch):
    survey, smoothed, gather = shot
    image, illumination = migrate_shot(survey, smoothed, gather, 1)
    for segment_bytes in (survey_module.SEGMENT_BYTES, 1, survey.plan.snapshot_bytes // 3):
        monkeypatch.setattr(survey_module, "SEGMENT_BYTES", segment_bytes)
        from_file = migrate_shot(survey, smoothed, gather, 1, "disk", snapshot_dir=tmp_path)
        assert (from_file[0] == image).all()
        assert (from_file[1] == illumination).all()
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("checkpoints", [5, 20, 10_000])
def test_checkpoints_give_the_image_of_the_snapshots(shot, checkpoints):
    survey, smoothed, gather = shot
    snapshots = migrate_shot(survey, smoothed, gather, 1)
    revolver = migrate_shot(survey, smoothed, gather, 1, "revolver", checkpoints=checkpoints)
    # Snapshots sample the correlation every 8 steps, checkpoints at every step.
    assert difference(revolver[0], snapshots[0]) < 1e-3
    assert difference(revolver[1], snapshots[1]) < 1e-3
    every_step = migrate_shot(replace(survey, snapshot_factor=1), smoothed, gather, 1)
    assert difference(revolver[0], every_step[0]) < 1e-6


def test_migration_is_linear_in_the_residual(shot):
    survey, smoothed, gather = shot
    direct = model_shot(survey, smoothed, 1)
    image, illumination = migrate_shot(survey, smoothed, gather, 1)
    doubled, same = migrate_shot(survey, smoothed, direct + 2 * (gather - direct), 1)
    assert difference(doubled, 2 * image) < 1e-4
    assert (same == illumination).all()


def test_gather_that_does_not_fit_the_survey_is_refused(shot):
    survey, smoothed, gather = shot
    dead = gather.copy()
    dead[5, 6] = np.nan
    for bad, message in (
        (gather.T, r"must be an array of real numbers \[\d+, 61\] \(samples, receivers\), but is float32 \[61, \d+\]"),
        (gather[:-1], "must be an array of real numbers"),
        (gather.astype(complex), "complex128"),
        (None, "NoneType"),
        (dead, "1 of .* samples are not finite"),
    ):
        with pytest.raises(ConfigError, match=message):
            migrate_shot(survey, smoothed, bad, 1)


def test_gather_whose_image_overflows_is_refused(shot):
    survey, smoothed, gather = shot
    with pytest.raises(ConfigError, match="shot 1: the image contains values that are not finite"):
        migrate_shot(survey, smoothed, np.full_like(gather, 3e38), 1)


def test_migration_with_wrong_arguments_is_refused(shot, tmp_path):
    survey, smoothed, gather = shot
    for arguments, message in (
        ({"method": "memory"}, "method: 'memory' is not a migration method"),
        ({"method": "disk"}, "snapshot_dir: required by method disk"),
        ({"snapshot_dir": tmp_path}, "snapshot_dir: not supported by method snapshots"),
        ({"method": "revolver", "checkpoints": 0}, "checkpoints: must be at least 1 .got 0"),
        ({"shot": 2}, "shot: 2 is not in a survey of 2 shots"),
    ):
        with pytest.raises(ConfigError, match=message):
            migrate_shot(survey, smoothed, gather, **{"shot": 1, **arguments})
    with pytest.raises(ConfigError, match="not positive"):
        migrate_shot(survey, -smoothed, gather, 1)


def test_snapshot_folder_that_cannot_be_used_is_refused(shot, tmp_path):
    survey, smoothed, gather = shot
    (tmp_path / "file").touch()
    for folder in (tmp_path / "missing", tmp_path / "file"):
        with pytest.raises(NotFound, match="not a folder"):
            migrate_shot(survey, smoothed, gather, 1, "disk", snapshot_dir=folder)
    with pytest.raises(Denied, match="cannot be written"):
        migrate_shot(survey, smoothed, gather, 1, "disk", snapshot_dir="/sys")


def test_snapshot_file_without_space_says_how_much_it_needs(shot, tmp_path):
    survey, smoothed, gather = shot
    migrate_shot(survey, smoothed, gather, 1)  # compiles operators, which writes files
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))
    try:
        with pytest.raises(NoSpace, match="no space left for the snapshots") as caught:
            migrate_shot(survey, smoothed, gather, 1, "disk", snapshot_dir=tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.need == survey.plan.snapshot_bytes
    assert list(tmp_path.iterdir()) == []


def test_tree_sum_is_pairwise_in_the_order_given():
    rng = np.random.default_rng(1)
    arrays = [rng.normal(size=(3, 4)).astype(np.float32) * 10.0 ** rng.integers(-8, 8) for _ in range(7)]
    a, b, c, d, e, f, g = (each.astype(np.float64) for each in arrays)
    total = tree_sum(iter(arrays))
    assert total.dtype == np.float64
    assert (total == ((a + b) + (c + d)) + ((e + f) + g)).all()
    assert (tree_sum(arrays[:1]) == a).all()


def test_tree_sum_loses_less_than_a_running_sum():
    values = [np.full(1, 0.1) for _ in range(10_000)]
    assert abs(tree_sum(values)[0] - 1000) < 1e-10


def test_tree_sum_does_not_change_its_inputs():
    arrays = [np.ones((2, 2)) for _ in range(4)]
    assert tree_sum(arrays).tolist() == [[4, 4], [4, 4]]
    assert all((each == 1).all() for each in arrays)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ([], "no images"),
        ([np.ones(2), np.ones(3)], r"image 1: shape \[3\] differs from the earlier images' \[2\]"),
        ([np.ones(2), np.array([1, np.nan])], "image 1: contains values that are not finite"),
    ],
)
def test_tree_sum_of_unfit_arrays_is_refused(arrays, message):
    with pytest.raises(ConfigError, match=message):
        tree_sum(arrays)


def test_stack_compensates_for_illumination():
    z = np.arange(101)
    reflectors = np.exp(-0.5 * ((z - 30) / 2) ** 2) + np.exp(-0.5 * ((z - 70) / 2) ** 2)
    illumination = np.broadcast_to(np.exp(-z / 40), (20, 101))
    stacked = stack([reflectors * illumination] * 3, [illumination] * 3)
    assert stacked[10, 30] == pytest.approx(stacked[10, 70], rel=0.02)
    assert reflector_peaks(stacked, 2) == [30, 70]


def test_stack_of_unfit_arrays_is_refused():
    ones = np.ones((5, 9))
    for images, illuminations, message in (
        ([], [], "no images"),
        ([ones], [np.ones((5, 8))], "images have shape"),
        ([ones], [0 * ones], "illumination is 0 everywhere"),
        ([ones], [-ones], "or negative somewhere"),
    ):
        with pytest.raises(ConfigError, match=message):
            stack(images, illuminations)


def test_reflector_peaks_leave_out_the_marks_of_sources_at_the_top():
    z = np.arange(100)
    image = np.broadcast_to(5 * np.exp(-z / 2) + np.exp(-0.5 * ((z - 40) / 2) ** 2), (8, 100))
    assert reflector_peaks(image, 3) == pytest.approx([40], abs=1)


def test_reflector_peaks_are_apart_and_at_most_the_count():
    z = np.arange(200)
    trace = sum(size * np.cos(0.6 * (z - at)) * np.exp(-0.5 * ((z - at) / 4) ** 2) for at, size in ((50, 1), (120, -2)))
    image = np.broadcast_to(trace, (8, 200))
    assert reflector_peaks(image, 2) == pytest.approx([50, 120], abs=1)
    assert reflector_peaks(image, 1) == pytest.approx([120], abs=1)
    assert all(b - a >= 8 for a, b in pairwise(reflector_peaks(image, 50)))
    assert reflector_peaks(np.zeros((4, 9)), 3) == []
    for bad in (np.full((4, 9), np.nan), np.ones(9), np.zeros((0, 9))):
        with pytest.raises(ConfigError, match="image: "):
            reflector_peaks(bad, 3)
    with pytest.raises(ConfigError, match="must be at least 1"):
        reflector_peaks(image, 0)

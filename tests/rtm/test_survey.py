# SPDX-License-Identifier: Apache-2.0
"""Tests surveys: their computed values, their JSON form, and their validation."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from penstock.errors import ConfigError
from penstock.rtm.propagation import Survey, surface_spread, time_step_limit_s
from penstock.rtm.velocity_model import layered, smooth

MODEL = layered((61, 81), 0.01, [0.3, 0.5])
SURVEY = surface_spread(MODEL, 0.01, 3)


def test_survey_counts_samples_and_snapshots_from_its_times():
    survey = replace(SURVEY, time_step_s=0.001, record_s=0.8, snapshot_factor=8)
    assert (survey.samples, survey.snapshots, survey.shots) == (801, 101, 3)
    assert replace(survey, record_s=0.799).snapshots == 100
    assert survey.padded_shape == (141, 161)


def test_sponge_is_40_points_in_2d_and_20_in_3d_by_default():
    cube = surface_spread(layered((21, 21, 21), 0.01), 0.01, 1)
    assert (SURVEY.sponge_points, cube.sponge_points) == (40, 20)


def test_plan_contains_the_steps_and_the_memory_of_a_shot():
    survey = replace(SURVEY, time_step_s=0.001, record_s=0.8, snapshot_factor=8)
    plan = survey.plan
    assert (plan.steps, plan.snapshots, plan.grid_points) == (801, 101, 141 * 161)
    assert plan.gather_bytes == 4 * 801 * 61
    assert plan.image_bytes == 4 * 61 * 81
    assert plan.snapshot_bytes == 4 * 101 * 141 * 161
    assert plan.memory_bytes > plan.snapshot_bytes
    long = replace(survey, record_s=8.0).plan
    assert long.disk_memory_bytes < long.memory_bytes / 2
    assert long.revolver_memory_bytes < long.memory_bytes / 2


def test_survey_of_numpy_arrays_equals_that_of_tuples():
    arrays = replace(
        SURVEY,
        shape=np.array(SURVEY.shape),
        sources_km=np.array(SURVEY.sources_km),
        receivers_km=[list(each) for each in SURVEY.receivers_km],
    )
    assert arrays == SURVEY
    assert hash(arrays) == hash(SURVEY)


def test_json_of_a_survey_reads_back_as_the_same_survey():
    for survey in (SURVEY, surface_spread(layered((21, 22, 23), 0.01), 0.01, 4)):
        assert Survey.from_json(survey.to_json()) == survey
        assert Survey.from_json(survey.to_json().encode()) == survey
    assert json.loads(SURVEY.to_json())["schema_version"] == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema_version": 2}, r"schema_version must be 1 \(got 2\)"),
        ({"depth": 3}, "unknown key 'depth'"),
        ({"record_s": None}, "record_s: None is not a number"),
        ({"record_s": "1.0"}, "record_s: '1.0' is not a number"),
        ({"shape": 5}, "shape: 5 is not a list"),
        ({"shape": [61.5, 81]}, r"shape: 61.5 is not a whole number"),
        ({"sources_km": {"x": 1}}, "sources_km: .* is not a list"),
        ({"sources_km": [0.1]}, "sources_km: 0.1 is not a list"),
        ({"space_order": True}, "space_order: True is not a whole number"),
    ],
)
def test_json_of_an_invalid_survey_is_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        Survey.from_json(json.dumps({**json.loads(SURVEY.to_json()), **change}))


@pytest.mark.parametrize("text", ["", "{", "[]", "null", b"\xff", "[" * 100_000])
def test_json_that_holds_no_survey_is_refused(text):
    with pytest.raises(ConfigError, match="survey: not"):
        Survey.from_json(text)


def test_json_without_a_key_is_refused():
    document = json.loads(SURVEY.to_json())
    del document["receivers_km"]
    with pytest.raises(ConfigError, match="receivers_km is missing"):
        Survey.from_json(json.dumps(document))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shape": (61,)}, r"shape: must be \[x, z\] or \[x, y, z\] \(got \[61\]\)"),
        ({"shape": (61, 8)}, "every side must be longer than the stencil"),
        ({"shape": (61, -81)}, "shape: must be at least 1 .got -81"),
        ({"spacing_km": 0.0}, "spacing_km: must be finite and above 0 .got 0"),
        ({"time_step_s": float("nan")}, r"time_step_s: must be finite and above 0 \(got nan"),
        ({"record_s": float("inf")}, r"record_s: must be finite and above 0 \(got inf"),
        ({"record_s": 1e-9}, "must be 1 to 10,000,000 time steps"),
        ({"time_step_s": 1e-300}, "must be 1 to 10,000,000 time steps"),
        ({"frequency_hz": -15.0}, r"frequency_hz: must be finite and above 0 \(got -15"),
        ({"space_order": 7}, "space_order: must be an even number from 2 to 16 .got 7"),
        ({"space_order": 200}, "space_order: must be an even number from 2 to 16 .got 200"),
        ({"sponge_points": -1}, "sponge_points: must be at least 1 .got -1"),
        ({"snapshot_factor": 0}, "snapshot_factor: must be at least 1 .got 0"),
        ({"snapshot_factor": 100}, "snapshot every .* s is too infrequent for 15 Hz"),
        ({"sources_km": ()}, "sources: at least one position is required"),
        ({"receivers_km": ()}, "receivers: at least one position is required"),
        ({"sources_km": ((0.3, 0.02, 0.02),)}, "position 0 has 3 coordinates, but the grid has 2"),
        ({"sources_km": ((0.3, 0.02), (0.61, 0.02))}, r"position 1 \(0.61, 0.02 km\) is outside the grid"),
        ({"receivers_km": ((0.3, -0.01),)}, "receivers: position 0 .* is outside the grid"),
        ({"receivers_km": ((float("nan"), 0.0),)}, "is outside the grid"),
        ({"receivers_km": ((300.0, 20.0),)}, r"outside the grid \(0 to 0.6, 0.8 km\)"),
    ],
)
def test_survey_with_an_invalid_value_is_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        replace(SURVEY, **change)


def test_hint_for_rare_snapshots_gives_a_factor_that_is_accepted():
    with pytest.raises(ConfigError) as caught:
        replace(SURVEY, snapshot_factor=100)
    assert replace(SURVEY, snapshot_factor=int(caught.value.hint.split()[3])).snapshots > 0


def test_time_step_limit_is_the_factor_of_the_dimensions_times_h_over_vmax():
    assert time_step_limit_s(0.01, 3.5, 2) == pytest.approx(0.42 * 0.01 / 3.5)
    assert time_step_limit_s(0.01, 3.5, 3) == pytest.approx(0.38 * 0.01 / 3.5)
    # The centre weight of order 2 is 2: stable up to 1 / sqrt(dimensions), well above the factors.
    assert time_step_limit_s(0.01, 3.5, 3, space_order=2) == pytest.approx(0.38 * 0.01 / 3.5)
    assert time_step_limit_s(0.01, 3.5, 3, space_order=16) < 0.38 * 0.01 / 3.5 * 1.0001


@pytest.mark.parametrize("arguments", [(0.0, 3.5, 2), (0.01, -1, 2), (0.01, float("nan"), 2), (0.01, 3.5, 1)])
def test_time_step_limit_of_an_invalid_argument_is_refused(arguments):
    with pytest.raises(ConfigError):
        time_step_limit_s(*arguments)


def test_model_faster_than_the_time_step_allows_is_refused_with_a_step_that_works():
    fast = (MODEL * 1.5).astype(np.float32)
    with pytest.raises(
        ConfigError, match=r"time_step_s: 0.0012 s is too long for 5.25 km/s .* \(limit 0.0008 s\)"
    ) as caught:
        SURVEY.check_model(fast)
    replace(SURVEY, time_step_s=float(caught.value.hint.split()[3])).check_model(fast)


def test_grid_too_coarse_for_the_frequency_is_refused_with_a_frequency_that_works():
    survey = replace(SURVEY, frequency_hz=25.0, snapshot_factor=4)
    with pytest.raises(
        ConfigError, match=r"spacing_km: 0.01 km is too coarse for 25 Hz at 1.5 km/s \(2.4 points"
    ) as caught:
        survey.check_model(MODEL)
    replace(survey, frequency_hz=float(caught.value.hint.split()[-3])).check_model(MODEL)


def test_low_space_order_needs_more_points_in_a_wavelength():
    with pytest.raises(ConfigError, match="4 points in the shortest wavelength, 8 needed"):
        replace(SURVEY, space_order=2).check_model(MODEL)


def test_record_that_ends_before_the_deepest_reflector_is_refused_with_a_length_that_works():
    short = replace(SURVEY, record_s=0.5)
    with pytest.raises(ConfigError, match=r"record_s: 0.5 s ends before the echo of the deepest reflector") as caught:
        short.check_model(MODEL)
    replace(short, record_s=float(caught.value.hint.split()[3])).check_model(MODEL)
    short.check_model(MODEL, reflectors=False)
    short.check_model(smooth(MODEL, 10))


def test_model_of_another_shape_or_unit_is_refused():
    with pytest.raises(ConfigError, match=r"shape \[81, 61\] differs from the survey's \[61, 81\]"):
        SURVEY.check_model(MODEL.T)
    with pytest.raises(ConfigError) as caught:
        SURVEY.check_model(MODEL * 1000)
    assert "divide the model by 1000" in caught.value.hint


@pytest.mark.parametrize("shot", [-1, 3, 1.0, True, None])
def test_shot_that_is_not_in_the_survey_is_refused(shot):
    with pytest.raises(ConfigError, match="shot: "):
        SURVEY.check_shot(shot)


def test_surface_spread_places_shots_and_receivers_below_the_surface():
    assert [x for x, _ in SURVEY.sources_km] == pytest.approx([0.1, 0.3, 0.5])
    assert len(SURVEY.receivers_km) == 61
    assert {z for _, z in SURVEY.sources_km + SURVEY.receivers_km} == {0.02}
    cube = surface_spread(layered((21, 31, 21), 0.01), 0.01, 6)
    assert sorted({(round(x, 9), round(y, 9)) for x, y, _ in cube.sources_km}) == [
        (x, y) for x in (0.033333333, 0.1, 0.166666667) for y in (0.075, 0.225)
    ]
    assert len(cube.receivers_km) == 21 * 31


def test_surface_spread_records_the_echo_of_the_deepest_reflector():
    assert SURVEY.record_s == pytest.approx(2 * (0.3 / 1.5 + 0.2 / 2.5) + 2 / 15)
    with pytest.raises(ConfigError, match=r"record_s: 0\.3 s ends before"):
        surface_spread(MODEL, 0.01, 3, record_s=0.3)
    for shots in (0, -1, 1.5):
        with pytest.raises(ConfigError, match="shots: "):
            surface_spread(MODEL, 0.01, shots)

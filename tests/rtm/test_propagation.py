# SPDX-License-Identifier: Apache-2.0
"""Tests modelled waves: arrival times, decay, the absorbing layer, and Devito's settings."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from penstock.errors import ConfigError
from penstock.rtm.propagation import Survey, model_shot, propagator, ricker, surface_spread
from penstock.rtm.velocity_model import layered

PYTHON = Path(__file__).resolve().parents[2] / "python"
SMALL = """
from penstock.rtm.propagation import model_shot, surface_spread
from penstock.rtm.velocity_model import layered
model = layered((31, 31), 0.01)
gather = model_shot(surface_spread(model, 0.01, 1), model, 0)
"""


def around(samples, *, offsets_km, dimensions=2):
    """A constant model with a source in its centre, and receivers at the given offsets from it along x."""
    model = np.full((samples,) * dimensions, 2.0, dtype=np.float32)
    centre = (samples // 2) * 0.01
    survey = Survey(
        shape=model.shape,
        spacing_km=0.01,
        time_step_s=0.0015,
        record_s=0.45,
        frequency_hz=15.0,
        sources_km=((centre,) * dimensions,),
        receivers_km=tuple((centre + offset, *(centre,) * (dimensions - 1)) for offset in offsets_km),
    )
    return survey, model


def run(program, **environment):
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(PYTHON), **environment},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_ricker_peaks_one_period_after_the_start():
    wavelet = ricker(201, 0.001, 20)
    assert wavelet.argmax() == 50
    assert wavelet.max() == pytest.approx(1)
    assert abs(wavelet[[0, -1]]).max() < 2e-3
    spectrum = abs(np.fft.rfft(wavelet, 4000))
    assert np.fft.rfftfreq(4000, 0.001)[spectrum.argmax()] == pytest.approx(20, abs=0.5)


def test_gather_is_samples_by_receivers_in_float32():
    model = layered((61, 61), 0.01)
    survey = surface_spread(model, 0.01, 2)
    gather = model_shot(survey, model, 1)
    assert gather.shape == (survey.samples, 61)
    assert gather.dtype == np.float32
    assert type(gather) is np.ndarray
    assert np.isfinite(gather).all()


def test_direct_wave_in_2d_matches_the_analytic_solution():
    survey, model = around(121, offsets_km=[0.2, 0.4])
    survey = replace(survey, time_step_s=0.0005)
    gather = model_shot(survey, model, 0).astype(np.float64)
    t = np.arange(survey.samples) * survey.time_step_s
    wavelet = ricker(survey.samples, survey.time_step_s, survey.frequency_hz)
    for trace, distance in zip(gather.T, (0.2, 0.4), strict=True):
        # Green's function of m u_tt - laplace(u) = delta in 2-D: 1 / (2 pi sqrt(t^2 - r^2 / v^2)) from t = r / v on.
        # With t = r / v cosh(a) the singular arrival becomes a smooth integral over a.
        a = np.linspace(0, np.arccosh(t[-1] * 2.0 / distance), 4000)
        delay = distance / 2.0 * np.cosh(a)
        expected = np.interp(t[:, None] - delay, t, wavelet, left=0.0).sum(axis=1) * a[1] / (2 * np.pi)
        cell = survey.spacing_km**2  # a source at a grid point has its amplitude in the whole cell
        assert np.abs(trace / cell - expected).max() < 0.01 * np.abs(expected).max()


def test_direct_wave_in_3d_arrives_in_time_and_decays_with_distance():
    survey, model = around(41, offsets_km=[0.08, 0.16], dimensions=3)
    gather = model_shot(replace(survey, record_s=0.25), model, 0)
    arrival = gather.argmax(axis=0) * survey.time_step_s
    assert arrival == pytest.approx([1 / 15 + 0.04, 1 / 15 + 0.08], abs=0.003)
    assert gather[:, 0].max() / gather[:, 1].max() == pytest.approx(2, rel=0.05)


def test_sponge_absorbs_what_leaves_the_model():
    survey, model = around(61, offsets_km=[0.1, 0.2, -0.28])
    wide, wide_model = around(181, offsets_km=[0.1, 0.2, -0.28])
    gather, free = model_shot(survey, model, 0), model_shot(wide, wide_model, 0)
    assert (np.abs(gather - free).max(axis=0) < 0.01 * np.abs(free).max(axis=0)).all()


def test_source_and_receiver_exchanged_record_the_same():
    model = layered((61, 61), 0.01)
    survey = replace(surface_spread(model, 0.01, 1), sources_km=((0.1, 0.02), (0.5, 0.33)))
    there = model_shot(replace(survey, receivers_km=(survey.sources_km[1],)), model, 0)
    back = model_shot(replace(survey, receivers_km=(survey.sources_km[0],)), model, 1)
    assert np.abs(there - back).max() < 1e-4 * np.abs(back).max()


def test_shots_of_a_process_do_not_depend_on_those_before():
    model = layered((61, 61), 0.01)
    survey = surface_spread(model, 0.01, 3)
    first = model_shot(survey, model, 0)
    model_shot(survey, model, 2)
    model_shot(replace(survey, receivers_km=survey.receivers_km[:7]), model, 1)
    assert (model_shot(survey, model, 0) == first).all()


def test_propagator_is_the_same_for_the_next_shot_and_shares_operators():
    model = layered((61, 61), 0.01)
    survey = surface_spread(model, 0.01, 3)
    one = propagator(survey)
    one.prepare()
    assert propagator(Survey.from_json(survey.to_json())) is one
    larger = propagator(surface_spread(layered((71, 61), 0.01), 0.01, 1))
    assert larger is not one
    assert larger.operators is one.operators


def test_model_that_does_not_fit_the_survey_is_refused_before_it_is_modelled():
    model = layered((61, 61), 0.01)
    survey = surface_spread(model, 0.01, 3)
    hole = model.copy()
    hole[3, 4] = np.nan
    for bad in (-model, hole, model[:-1], model * 2):
        with pytest.raises(ConfigError):
            model_shot(survey, bad, 0)
    with pytest.raises(ConfigError, match="shot: 3"):
        model_shot(survey, model, 3)
    with pytest.raises(ConfigError, match="precision"):
        propagator(survey, "float16")


def test_import_of_the_package_does_not_import_devito():
    done = run("import sys, penstock.rtm.imaging; print('devito' in sys.modules, 'pyrevolve' in sys.modules)")
    assert (done.stdout, done.stderr) == ("False False\n", "")


def test_devito_settings_of_the_environment_are_kept_and_nothing_is_printed():
    program = SMALL + "import devito; print(devito.configuration['language'], gather.shape[1])"
    done = run(program, DEVITO_LANGUAGE="openmp", OMP_NUM_THREADS="1")
    assert (done.stdout, done.stderr) == ("openmp 31\n", "")


def test_missing_devito_names_the_extra(tmp_path):
    for name in ("numpy", "numpy.libs"):
        (tmp_path / name).symlink_to(Path(sysconfig.get_path("purelib")) / name)
    done = subprocess.run(
        [sys.executable, "-S", "-c", SMALL],
        env={**os.environ, "PYTHONPATH": f"{PYTHON}:{tmp_path}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr.splitlines()[-2:] == [
        "penstock.errors.MissingPackage: penstock.rtm requires devito, which is not installed",
        "pip install 'penstock[rtm]'",
    ]


def test_missing_compiler_is_an_error_with_a_hint(tmp_path):
    done = run(SMALL, PATH=str(tmp_path), TMPDIR=str(tmp_path))
    assert "penstock.errors.SystemFault: Devito: operator model does not compile" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("install gcc")


@pytest.mark.parametrize("method", ["snapshots", "revolver"])
def test_devito_leaves_subnormal_numbers_to_others(method):
    program = f"""
import numpy as np
from penstock.rtm.imaging import adjoint_test, migrate_shot
from penstock.rtm.propagation import model_shot, surface_spread
from penstock.rtm.velocity_model import layered
model = layered((31, 31), 0.01)
survey = surface_spread(model, 0.01, 1, frequency_hz=20)
migrate_shot(survey, model, model_shot(survey, model, 0), 0, method={method!r})
adjoint_test(survey, model)
print(float(np.float64(5e-324) * 1) > 0)
"""
    done = run(program)
    assert done.stdout == "True\n", done

# SPDX-License-Identifier: Apache-2.0
"""Tests the lines in the format of tf_cnn_benchmarks, with its formulas and with expressions of existing scripts."""

from __future__ import annotations

import re

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from penstock.cli.train import command
from penstock.errors import ConfigError
from penstock.train.tf_cnn_lines import perf_timing, tf_cnn_lines

LINE = re.compile(r"^(\d+)\timages/sec: (\d+\.\d) \+/- (\d+\.\d) \(jitter = (\d+\.\d)\)\t(\d+\.\d{3})$")


@given(st.lists(st.floats(1e-3, 10.0), min_size=1, max_size=40), st.integers(1, 512))
def test_figures_follow_the_published_formulas(times, batch):
    # The same quantities by NumPy: harmonic mean, standard error, scaled median absolute deviation.
    speeds = batch / np.array(times)
    expected = (
        batch / np.mean(times),
        np.std(speeds) / np.sqrt(len(speeds)),
        1.4826 * np.median(np.abs(speeds - np.median(speeds))),
    )
    assert perf_timing(batch, times) == pytest.approx(expected, rel=1e-9, abs=1e-6)


def test_lines_skip_the_warm_up_and_show_the_first_and_every_tenth_step():
    steps = [(n, 5.0 if n <= 10 else 0.5) for n in range(1, 36)]
    lines = list(tf_cnn_lines(steps, [n / 1000 for n in range(1, 36)], batch=64, workers=2, warm_up=10))
    assert lines[0] == "Step\tImg/sec\ttotal_loss"
    shown = [LINE.match(line) for line in lines[1:4]]
    assert [match.group(1) for match in shown] == ["1", "10", "20"]
    assert {match.group(2, 3, 4) for match in shown} == {("128.0", "0.0", "0.0")}
    assert shown[1].group(5) == "0.020"
    assert lines[4:] == ["-" * 64, "total images/sec: 256.00", "-" * 64]


def test_lines_of_a_long_run_use_every_nth_step():
    steps = [(n, 0.5) for n in range(4, 100, 4)]
    numbers = [line.split("\t")[0] for line in tf_cnn_lines(steps, [], batch=1, workers=1, warm_up=2)]
    assert numbers[1:4] == ["10", "22", "30"]
    assert numbers[-2] == "total images/sec: 2.00"


def test_run_shorter_than_the_warm_up_has_a_header_only():
    assert list(tf_cnn_lines([(1, 0.5)], [], batch=1, workers=1, warm_up=10)) == ["Step\tImg/sec\ttotal_loss"]


def train(*arguments):
    base = ["cosmoflow", "--voxels", "32", "--accelerator", "h100", "--no-save", "--batch-size", "1"]
    return CliRunner().invoke(command, [*base, "--synthetic", "--steps", "32", *arguments])


def test_cli_prints_the_lines_on_stdout_alone():
    lines = train("--format", "tf_cnn").stdout.splitlines()
    assert [LINE.match(line).group(1) for line in lines[1:4]] == ["1", "10", "20"]
    total = float(re.fullmatch(r"total images/sec: (\d+\.\d\d)", lines[5]).group(1))
    assert 10 < total < 2 / 0.0035  # an emulated step is shorter after a step that took too long


def test_cli_refuses_the_format_with_json():
    assert isinstance(train("--format", "tf_cnn", "--json").exception, ConfigError)

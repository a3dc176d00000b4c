# SPDX-License-Identifier: Apache-2.0
"""Tests that `penstock train` refuses options without effect, with hints that its user can follow."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from penstock.cli.train import command
from penstock.datasets import cosmoflow
from penstock.errors import ConfigError, Mismatch, NotFound

pytestmark = pytest.mark.needs_torch

EMULATED = ("cosmoflow", "--voxels", "32", "--accelerator", "h100", "--no-save", "--batch-size", "1")


def train(*arguments):
    return CliRunner().invoke(command, list(map(str, arguments)))


@pytest.mark.parametrize(
    ("steps", "options"), [(8, ("--format", "tf_cnn")), (10, ("--format", "tf_cnn")), (6, ("--warm-up", "10"))]
)
def test_steps_that_are_all_warm_up_are_refused_with_the_number_needed(steps, options):
    error = train(*EMULATED, "--synthetic", "--steps", steps, *options).exception
    assert isinstance(error, ConfigError)
    assert str(error) == f"--steps {steps} leaves no step to measure after 10 warm-up steps"
    assert error.hint == "use --steps 11 or more, or a smaller --warm-up"


def test_tf_cnn_of_an_epoch_that_is_all_warm_up_is_an_error():
    done = train(*EMULATED, "--data", "dummy://8", "--format", "tf_cnn")
    assert isinstance(done.exception, ConfigError)
    assert "the run had 8 steps" in str(done.exception)
    assert done.stdout == ""


def test_unknown_device_is_refused_by_its_name():
    done = train("trivial", "--synthetic", "--device", "foo")
    assert done.exit_code == 2
    assert "`foo` is not one of auto, cpu, cuda and cuda:N" in done.output


def test_checkpoint_that_is_a_file_is_refused_with_a_hint(tmp_path):
    (tmp_path / "file").touch()
    error = train("cosmoflow", "--synthetic", "--checkpoint", tmp_path / "file").exception
    assert isinstance(error, ConfigError)
    assert "is a file, not a folder" in str(error)
    assert error.hint == "use a folder, or the URL of a store"


def test_incomplete_torchrun_variables_get_a_hint_without_options_of_other_commands(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    error = train("trivial", "--synthetic").exception
    assert isinstance(error, ConfigError)
    assert error.hint == "start every rank with one launcher, such as torchrun or srun, or unset its variables"


def test_volumes_of_another_size_get_the_option_for_their_size(tmp_path):
    cosmoflow.generate(tmp_path, samples=4, voxels=32, seed=3)
    error = train(
        "cosmoflow", "--data", tmp_path, "--voxels", "64", "--filters", "2", "--threads", "1", "--no-save"
    ).exception
    assert isinstance(error, Mismatch)
    assert error.hint == "use --voxels 32"


def test_scale_with_mpi_but_no_mpirun_names_the_package_only(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    error = train("trivial", "--synthetic", "--scale", "ranks=1", "--launcher", "mpi", "--no-save").exception
    assert isinstance(error, NotFound)
    assert error.hint == "install openmpi-bin or mpich (Debian)"

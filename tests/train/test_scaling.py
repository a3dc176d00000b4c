# SPDX-License-Identifier: Apache-2.0
"""Tests of scaling measurements over ranks and nodes."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from penstock.bench.app.document import load
from penstock.cli.train import command
from penstock.errors import ConfigError
from penstock.train import TrainSpec
from penstock.train.scaling import measure_scaling, rate_figure, sized_spec


def spec(**fields):
    made = {
        "workload": "cosmoflow",
        "data": "dummy://16",
        "global_batch": 2,
        "settings": {"voxels": 32},
        "accelerator": "h100",
    }
    return TrainSpec(**{**made, **fields})


@pytest.mark.parametrize(
    ("scaling", "batches", "samples"), [("weak", [2, 4, 8], [16, 32, 64]), ("strong", [8, 8, 8], [16, 16, 16])]
)
def test_sizes_keep_the_batch_per_rank_or_the_global_batch(scaling, batches, samples):
    base = spec(global_batch=batches[0])
    made = [sized_spec(base, n, fewest=1, scaling=scaling) for n in (1, 2, 4)]
    assert [one.global_batch for one in made] == batches
    assert [one.ranks for one in made] == [1, 2, 4]
    assert [int(one.data.removeprefix("dummy://")) for one in made] == samples


def test_size_that_does_not_divide_the_batch_is_refused():
    with pytest.raises(ConfigError, match="cannot be divided equally among 3 ranks"):
        sized_spec(spec(global_batch=8), 3, fewest=1, scaling="strong")


@pytest.mark.parametrize(
    "fields",
    [
        {"compare_synthetic": True},
        {"validation": "dummy://4"},
        {"checkpoint": "kept"},
        {"trace": "trace.json"},
        {"mllog": "log"},
        {"archive": "s3://bucket/runs"},
    ],
)
def test_training_that_does_more_than_train_is_refused(fields):
    with pytest.raises(ConfigError, match=f"^{next(iter(fields))}: not supported with a scaling measurement"):
        measure_scaling(spec(**fields), [1, 2], scaling="weak", repeats=1)


@pytest.mark.needs_torch
@pytest.mark.parametrize(("workload", "unit"), [("resnet18", "images/s"), ("cosmoflow", "samples/s")])
def test_rate_has_the_unit_of_the_workload(workload, unit):
    assert rate_figure(spec(workload=workload, settings={}, accelerator=None)).name == unit


# One test runs all sizes, because each run starts processes that import torch.
@pytest.mark.needs_torch
def test_cli_measures_sizes_in_turn_and_a_failing_size_is_a_row(tmp_path):
    base = ["cosmoflow", "--voxels", "32", "--accelerator", "h100", "--synthetic", "--steps", "60"]
    flags = ["--scale", "ranks=1,2,3", "--scaling", "strong", "--global-batch", "8", "--repeats", "2"]
    done = CliRunner().invoke(command, [*base, *flags, "-o", str(tmp_path), "--json"])
    assert done.exit_code == 0, done.stderr
    assert "run 1 of 6: 1 rank," in done.stderr
    document = json.loads(done.stdout)
    cells = {cell["ranks"]: cell for cell in document["cells"]}
    assert [run["round"] for run in cells[1]["runs"]] == [0, 1]
    assert "cannot be divided equally" in cells[3]["error"]
    # An emulated step takes half the time with half the samples, so 2 ranks are faster, by less than twice.
    rates = {ranks: cells[ranks]["runs"][0]["value"] for ranks in (1, 2)}
    assert rates[1] < rates[2]
    summary = document["summary"]["variants"][0]["cells"]
    assert summary[0]["efficiency"]["value"] == pytest.approx(1.0)
    assert summary[1]["efficiency"]["low"] <= summary[1]["efficiency"]["value"] <= summary[1]["efficiency"]["high"]
    (folder,) = tmp_path.iterdir()
    assert load(folder).cells[0].runs[0].value == rates[1]


@pytest.mark.parametrize("given", ["ranks=", "ranks=1,x", "nodes=1,2", "ranks=0", "ranks=²"])
def test_cli_bad_list_of_ranks_is_a_usage_error(given):
    done = CliRunner().invoke(command, ["cosmoflow", "--synthetic", "--scale", given])
    assert done.exit_code == 2
    assert "ranks=1,2,4" in done.stderr


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--launcher", "mpi"], "--launcher needs --scale"),
        (["--scale", "ranks=1,2", "--nodes", "2"], "--nodes and --ranks-per-node need --launcher"),
    ],
)
def test_cli_nodes_need_a_sweep_and_a_launcher(flags, message):
    done = CliRunner().invoke(command, ["cosmoflow", "--synthetic", *flags])
    assert isinstance(done.exception, ConfigError)
    assert str(done.exception) == message


@pytest.mark.system
@pytest.mark.needs_torch
def test_cli_measures_sizes_over_nodes():
    """The launcher's two nodes are both this machine; their ranks meet over its network, as those of real nodes do."""
    base = ["cosmoflow", "--accelerator", "h100", "--synthetic", "--steps", "60", "--set", "voxels=32", "--no-save"]
    place = ["--launcher", "torchrun", "--nodes", "2", "--ranks-per-node", "1", "--repeats", "1"]
    sweep = ["--scale", "ranks=1,2", "--scaling", "strong", "--global-batch", "8"]
    done = CliRunner().invoke(command, [*base, *sweep, *place, "--json"])
    assert done.exit_code == 0, done.stderr
    assert "2 ranks on 2 nodes" in done.stderr
    cells = {cell["ranks"]: cell for cell in json.loads(done.stdout)["cells"]}
    assert [cells[ranks]["nodes"] for ranks in (1, 2)] == [1, 2]
    # The emulated accelerators of 2 ranks are faster, by less than twice. `world` in a result would show ranks alone.
    assert 0 < cells[1]["runs"][0]["value"] < cells[2]["runs"][0]["value"]

# SPDX-License-Identifier: Apache-2.0
"""Tests study E's sweep files: they are valid, and their variants give ranks the GPUs and CPUs that the study compares."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.bench.app.spec import load_spec
from penstock.cli.train import command as train

STUDY = Path(__file__).resolve().parents[2] / "studies/collectives-containers"


def test_affinity_compares_two_gpus_with_four_at_equal_ranks():
    spec = load_spec(STUDY / "affinity.toml")
    found = {
        v.name: ([(s.ranks, s.nodes) for s in spec.sizes(v)], v.bind, v.env["CUDA_VISIBLE_DEVICES"])
        for v in spec.variant
    }
    four, two = [(4, 1), (8, 2), (16, 4)], [(4, 2), (8, 4), (16, 8)]
    assert found == {
        "GPUs 0-3, CPUs near each GPU": (four, "near-gpu", "0,1,2,3"),
        "GPUs 0,1, CPUs near each GPU": (two, "near-gpu", "0,1"),
        "GPUs 0-3, CPUs near the adapter": (four, "near-nic", "0,1,2,3"),
        "GPUs 0,1, CPUs near the adapter": (two, "near-nic", "0,1"),
        "GPUs 2,3, CPUs near each GPU": (two, "near-gpu", "2,3"),
    }


def test_affinity_command_is_one_that_train_accepts():
    program, verb, *args = load_spec(STUDY / "affinity.toml").command
    assert (program, verb) == ("penstock", "train")
    with train.make_context("train", args) as context:
        given = context.params
    assert (given["workload"], given["synthetic"], given["steps"], given["batch_size"]) == ("resnet50", True, 100, 64)


@pytest.mark.parametrize(
    ("name", "flags"), [("affinity", ("--launcher", "local", "--nodes", 8)), ("affinity-rehearsal", ())]
)
def test_sweep_dry_run_prints_a_line_per_size_and_variant(name, flags, run_cli):
    file = STUDY / f"{name}.toml"
    done = run_cli("bench", "app", "--sweep", file, *flags, "--dry-run")
    assert done.code == 0, done.err
    spec = load_spec(file)
    cells = sum(len(spec.sizes(variant)) for variant in spec.variant)
    assert sum(line.startswith("# ") for line in done.out.splitlines()) == cells
    for variant in spec.variant:
        assert f'"bind": "{variant.bind}"' in done.out

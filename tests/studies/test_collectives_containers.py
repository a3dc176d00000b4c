# SPDX-License-Identifier: Apache-2.0
"""Tests study E: its sweep files give ranks the GPUs and CPUs that it compares, and its parts run end to end, tiny."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.bench.app.spec import load_spec
from penstock.cli.train import command as train
from penstock.study.result import read_result
from penstock.study.run import load_module
from penstock.study.spec import find_study

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


def run(tmp_path, parts, **environment):
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "study", "run", STUDY.name, "--size", "tiny", "--only", parts,
         "--output", tmp_path / "out", "--scratch", tmp_path],
        capture_output=True, text=True, check=False, env={**os.environ, "XDG_STATE_HOME": str(tmp_path / "state"), **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "out/results.json").read_text())
    assert not list(tmp_path.glob("penstock-study-*")), "scratch folders are left"
    return {part["name"]: part["result"] for part in found["parts"]}


def test_image_binds_each_folder_once_and_has_its_mount_points(tmp_path):
    sweeps = load_module(find_study(STUDY.name, STUDY.parent), "sweeps")
    folder, binds = sweeps.make_image(tmp_path / "image")
    paths = [bind.split(":")[0] for bind in binds]
    assert "/usr" in paths
    assert any(sys.prefix == path or sys.prefix.startswith(f"{path}/") for path in paths)
    assert all((folder / path.lstrip("/")).is_dir() for path in paths)
    assert (folder / "etc/openmpi").is_dir() == Path("/etc/openmpi").is_dir()
    assert not [a for a in paths for b in paths if a.startswith(f"{b}/")]


def test_stored_results_have_the_answer_of_this_version():
    stored = read_result(STUDY.parents[1] / "results/2026-11-28/studies" / STUDY.name)
    made = load_module(find_study(STUDY.name, STUDY.parent), "answer").answer(stored)
    assert made == stored.answer
    assert 'The runs differ too much to exclude a cost in "bandwidth, 1.05 MB".' in made


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_containers_at_tiny_size_compare_both_ways_of_each_program(tmp_path):
    (tmp_path / "tmp").mkdir()
    # ch-run mounts TMPDIR at /tmp, so a file below TMPDIR has another path in the container.
    found = run(tmp_path, "containers", TMPDIR=str(tmp_path / "tmp"))["containers"]
    assert not [text for part in found["claims"] if part["must"] for text in (part["claim"], part["found"])]
    what = ("latency", "allreduce", "bandwidth", "lammps", "resnet50")
    ids = {f"container-{one}{way}" for one in what for way in ("", "-inside")}
    assert set(found["measured"]) == ids
    assert all(value["low"] < value["value"] < value["high"] for value in found["measured"].values())
    variants = {row[1] for row in found["blocks"][0]["rows"]}
    assert variants == {"charliecloud, host mpirun", "charliecloud, mpirun inside"}
    assert "no significant cost" in (tmp_path / "out/report.md").read_text()


@pytest.mark.slow
@pytest.mark.needs_root
@pytest.mark.timeout(300)
def test_pairs_and_bindings_at_tiny_size_name_the_planted_link(tmp_path):
    found = run(tmp_path, "pairs,affinity")
    named = {claim["claim"]: claim["holds"] for claim in found["pairs"]["claims"]}
    assert named["the verdict names the host with the planted slow link"]
    assert found["pairs"]["measured"]["latency-memory"]["value"] > 0
    assert {row[1] for row in found["affinity"]["blocks"][0]["rows"]} == {"rank 0 on core 1", "not bound"}
    text = (tmp_path / "out/report.md").read_text()
    # Neither measured here nor modelled: these need GPUs.
    assert "| GPUs 2 and 3 | 2.82 us | – | – | not measured |" in text
    assert "GPUs 0,1 against GPUs 0-3" in text


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_applications_at_tiny_size_scale_and_say_what_needs_gpus(tmp_path):
    found = run(tmp_path, "applications")["applications"]
    assert {"resnet50-cpu", "resnet50-cpu-efficiency", "lammps-efficiency"} <= set(found["measured"])
    assert found["inverted"]["resnet50-16"]["value"] == 2320
    assert any("needs GPUs" in text for text in found["not_measured"])

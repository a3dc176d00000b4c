# SPDX-License-Identifier: Apache-2.0
"""Tests that a job file becomes valid specifications of other systems, which their own validators check.

Also tests one node's part of a job. Issue 5, point 1.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[2]
_PROGRAM = Path(sys.executable).with_name("penstock")
_JOB = """
name = "Train-1"
[cluster]
launcher = "{launcher}"
[stage]
source = "s3://frames/train"
destination = "/scratch/train"
[run]
argv = ["python", "train.py", "{{data}}", "it's $HOME \\\\ {{rank}}"]
ranks_per_node = 8
[submit]
nodes = 4
limit = "90min"
gpus_per_node = 8
image = "me/train:1"
machine = "Standard_ND40rs_v2"
compute = "gpus"
secret = "store"
{more}
"""


@pytest.fixture
def exported(run_cli, tmp_path):
    """`exported("k8s")` returns the output of `penstock run --export` for the job."""

    def export(form: str, *, launcher: str = "mpi", more: str = "", **replaced: str):
        text = _JOB.format(launcher=launcher, more=more)
        for old, new in replaced.items():
            assert old in text
            text = text.replace(old, new)
        (tmp_path / "job.toml").write_text(text)
        return run_cli("run", "job.toml", "--export", form, cwd=tmp_path)

    return export


@pytest.mark.needs_specs
@pytest.mark.parametrize("form", ["k8s", "azureml", "azure-batch"])
def test_specification_passes_the_systems_own_validator(form, exported, tmp_path):
    result = exported(form)
    assert result.code == 0, result.err
    script, python = Path(__file__).with_name("check_specs.py"), _ROOT / ".tools/specs/bin/python"
    (tmp_path / "spec.json").write_text(result.out)
    home = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}

    def check(path: Path) -> subprocess.CompletedProcess[str]:
        line = [python, "-W", "ignore", script, form, path, "4"]
        return subprocess.run(line, env=home, capture_output=True, text=True, timeout=100, check=False)

    taken = check(tmp_path / "spec.json")
    assert taken.returncode == 0, taken.stderr[-2000:]
    # Checks the validator itself: it must reject an unknown field.
    for old, new in (
        ("limits", "limitz"),
        ("activeDeadlineSeconds", "activeDeadlineSecondz"),
        ("maxWallClockTime", "maxWallClockTimes"),
    ):
        if old in result.out and form != {"limits": "k8s"}.get(old):
            (tmp_path / "bad.json").write_text(result.out.replace(f'"{old}"', f'"{new}"'))
            break
    refused = check(tmp_path / "bad.json")
    assert (refused.returncode != 0, new in refused.stderr) == (True, True), refused.stderr[-2000:]


def test_kubernetes_pods_carry_the_job_and_know_their_number_and_the_first(exported, tmp_path):
    items = {item["kind"]: item for item in json.loads(exported("k8s").out)["items"]}
    assert "ConfigMap" not in items
    assert base64.b64decode(items["Secret"]["data"]["job.toml"]) == (tmp_path / "job.toml").read_bytes()
    spec = items["Job"]["spec"]
    assert (spec["completions"], spec["parallelism"], spec["activeDeadlineSeconds"]) == (4, 4, 5400)
    [container] = spec["template"]["spec"]["containers"]
    words = container["command"]
    assert words[:3] == ["penstock", "run", "/etc/penstock/job.toml"]
    assert words[words.index("--node") + 1 :] == [
        "$(PENSTOCK_INDEX)",
        "--nodes",
        "4",
        "--rendezvous",
        "train-1-0.train-1:29500",
    ]
    assert items["Service"]["metadata"]["name"] == spec["template"]["spec"]["subdomain"] == "train-1"
    assert container["resources"] == {"limits": {"nvidia.com/gpu": "8"}}


@pytest.mark.parametrize("form", ["azureml", "azure-batch"])
def test_azure_lines_hold_no_credential_of_the_run(form, exported):
    env = '[run.env]\nNCCL_DEBUG = "INFO"\nHF_TOKEN = "hf_x"\nWANDB_API_KEY = "y"\n'
    result = exported(form, more=env)
    assert (result.code, result.out) == (2, "")
    assert "run.env: HF_TOKEN, WANDB_API_KEY would be readable by everyone who can see the job on Azure" in result.err
    assert exported(form, more=env, HF_TOKEN="HF_HOME", WANDB_API_KEY="TOKENIZERS_PARALLELISM").code == 0


@pytest.mark.parametrize("form", ["azureml", "azure-batch"])
def test_azure_lines_lay_down_the_very_file(form, exported, tmp_path):
    result = json.loads(exported(form).out)
    line = result["command"] if form == "azureml" else result["task"]["commandLine"]
    # Runs the command line in a system shell, with a stand-in `penstock` that only prints its arguments.
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/penstock").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "bin/penstock").chmod(0o755)
    (tmp_path / "there").mkdir()
    env = {
        "PATH": f"{tmp_path}/bin:{os.environ['PATH']}",
        "NODE_RANK": "3",
        "MASTER_ADDR": "h1",
        "MASTER_PORT": "29501",
    }
    ran = subprocess.run(
        ["sh", "-c", line], cwd=tmp_path / "there", env=env, capture_output=True, text=True, check=True
    )
    assert (tmp_path / "there/job.toml").read_bytes() == (tmp_path / "job.toml").read_bytes()
    own = " --node 3 --nodes 4 --rendezvous h1:29501" if form == "azureml" else ""
    assert ran.stdout == f"run job.toml --output runs{own}\n"


@pytest.mark.parametrize(
    ("form", "replaced", "more", "word"),
    [
        ("k8s", {'image = "me/train:1"': ""}, "", "submit.image"),
        ("k8s", {"nodes = 4": ""}, "", "submit.nodes"),
        ("k8s", {'name = "Train-1"': 'name = "1-train"'}, "", "`1-train` is not a valid Kubernetes name"),
        ("k8s", {'destination = "/scratch/train"': ""}, '[pool]\ndisk = "/d"', "which this system does not support"),
        ("k8s", {}, '[container]\nruntime = "docker"\nimage = "x"', "runs the whole job in one container"),
        (
            "k8s",
            {},
            '[provision]\nscript = "setup.sh"\nat = "/tmp/setup.sh"',
            "provision: setup.sh does not exist on",
        ),
        (
            "azureml",
            {},
            '[provision]\nscript = "setup.sh"\nat = "/tmp/setup.sh"',
            "provision: setup.sh does not exist on",
        ),
        (
            "azure-batch",
            {},
            '[provision]\nscript = "setup.sh"\nat = "/tmp/setup.sh"',
            "provision: setup.sh does not exist on",
        ),
        ("azureml", {'compute = "gpus"': ""}, "", "submit.compute"),
        ("azure-batch", {"mpi": "slurm"}, "", "launcher = mpi"),
        ("slurm", {"mpi": "ssh"}, "", "launcher = slurm or mpi"),
        ("slurm", {}, 'args = ["--a\\n#SBATCH --b"]', "must be a single line"),
        ("slurm-prolog", {}, "", "requires a [pool] in the job file"),
        ("pbs", {"nodes = 4": "nodes = 0"}, "", "submit.nodes: must be at least 1 (got 0)"),
        ("jcl", {}, "", "is not one of slurm"),
    ],
)
def test_job_that_a_system_cannot_say_is_refused(form, replaced, more, word, exported):
    result = exported(form, more=more, **replaced)
    assert (result.code, result.out) == (2, "")
    assert word in result.err


@pytest.mark.parametrize("form", ["k8s", "azureml"])
def test_job_on_fresh_nodes_goes_on_with_nothing(form, exported, run_cli, tmp_path):
    assert exported(form).code == 0
    result = run_cli("run", "job.toml", "--export", form, "--resume", cwd=tmp_path)
    assert (result.code, result.out, "--resume" in result.err) == (2, "", True)


def test_batch_scripts_are_shell_and_say_what_is_wanted(exported):
    for form, wanted in (
        (
            "slurm",
            ["#SBATCH --nodes=4", "#SBATCH --time=90", "#SBATCH --gpus-per-node=8", "#SBATCH --signal=B:TERM@120"],
        ),
        ("pbs", ["#PBS -l select=4:ncpus=1:mpiprocs=1:ngpus=8", "#PBS -l walltime=01:30:00", "#PBS -N Train-1"]),
    ):
        result = exported(form)
        assert result.code == 0, result.err
        lines = result.out.splitlines()
        assert [line for line in wanted if line not in lines] == []
        subprocess.run(["sh", "-n"], input=result.out, text=True, check=True)


def test_prolog_that_cannot_tell_the_nodes_takes_its_pool_down(exported, tmp_path):
    (tmp_path / "bin").mkdir()
    for name, text in {
        "scontrol": "printf 'h1\\nh2\\n'",
        "penstock": f'echo "$@" >> {tmp_path}/asked; [ "$1 $2" != "cluster copy" ]',
    }.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    output = {'destination = "/scratch/train"': "", "[stage]": f'penstock = ["{tmp_path}/bin/penstock"]\n[stage]'}
    more = '[pool]\ndisk = "/d"\nengine = "beeond"\nsettings = { tmpfs = true }'
    (tmp_path / "prolog").write_text(exported("slurm-prolog", more=more, **output).out)
    env = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "HOME": str(tmp_path)}
    env |= {"SLURM_JOB_ID": "7", "SLURM_JOB_COMMENT": "penstock", "SLURM_JOB_NODELIST": "h[1-2]"}
    ran = subprocess.run(["sh", tmp_path / "prolog"], env=env, capture_output=True, text=True, timeout=30, check=False)
    assert ran.returncode == 1, ran.stderr
    up, copied, down = (tmp_path / "asked").read_text().splitlines()
    assert up.startswith("pool up --json --engine beeond --disk /d --copies 1 --timeout 3min --engine-set tmpfs=true")
    assert copied.startswith("cluster copy --launcher ssh --nodes h1,h2 ")
    assert down == "pool down --name slurm-7"


def test_submit_dry_prints_the_script_and_the_line_and_hands_nothing_over(exported, run_cli, tmp_path):
    script = exported("slurm", launcher="slurm").out
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/sbatch").write_text(f"#!/bin/sh\ntouch {tmp_path}/handed-over\necho 7\n")
    (tmp_path / "bin/sbatch").chmod(0o755)
    path = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
    result = run_cli("run", "job.toml", "--submit", "--wait", "--dry-run", cwd=tmp_path, env=path)
    assert result.code == 0, result.err
    assert (
        result.out == f"# runs/Train-1/job.slurm\n{script}# submit\nsbatch --parsable --wait runs/Train-1/job.slurm\n"
    )
    plain = run_cli("run", "job.toml", "--submit", "--wait", "--dry-run", "--json", cwd=tmp_path, env=path)
    assert json.loads(plain.out) == {
        "schema_version": 2, "name": "Train-1", "script": "runs/Train-1/job.slurm", "text": script,
        "command": ["sbatch", "--parsable", "--wait", "runs/Train-1/job.slurm"],
    }  # fmt: skip
    assert not (tmp_path / "runs").exists()
    assert not (tmp_path / "handed-over").exists()
    assert run_cli("run", "job.toml", "--submit", cwd=tmp_path, env=path).out == "7\n"


@pytest.mark.parametrize("flags", [("--wait",), ("--submit", "--export", "slurm"), ("--wait", "--export", "slurm")])
def test_submit_flags_that_contradict_each_other_are_refused(flags, exported, run_cli, tmp_path):
    exported("slurm", launcher="slurm")
    result = run_cli("run", "job.toml", *flags, cwd=tmp_path)
    assert (result.code, flags[0] in result.err or flags[-2] in result.err) == (2, True), result.err
    assert not (tmp_path / "runs").exists()


def test_submit_without_the_systems_program_says_so(exported, run_cli, tmp_path):
    exported("slurm")
    bare = tmp_path / "empty"
    bare.mkdir()
    result = run_cli("run", "job.toml", "--submit", cwd=tmp_path, env={"PATH": str(bare)})
    assert (result.code, "submit.system" in result.err) == (2, True)
    (tmp_path / "job.toml").write_text((tmp_path / "job.toml").read_text().replace('"mpi"', '"slurm"'))
    result = run_cli("run", "job.toml", "--submit", cwd=tmp_path, env={"PATH": str(bare)})
    assert (result.code, "sbatch: No such file" in result.err, "--export slurm" in result.err) == (3, True, True)


_PART = """
name = "part"
[stage]
source = "{folder}/set"
destination = "{folder}/{{node}}"
[run]
argv = ["sh", "-c", "ls $1/*.bin | wc -l > {folder}/out/$2-of-$3-$LOCAL_RANK-$MASTER_ADDR-$MASTER_PORT", "sh", "{{data}}", "{{rank}}", "{{world}}"]
ranks_per_node = 2
[archive]
source = "{folder}/out"
to = "{folder}/kept"
"""


def test_nodes_that_each_do_their_part_make_the_whole_job(tmp_path):
    (tmp_path / "set").mkdir()
    (tmp_path / "out").mkdir()
    for at in range(9):
        (tmp_path / f"set/{at}.bin").write_bytes(b"x" * 100)
    (tmp_path / "job.toml").write_text(_PART.format(folder=tmp_path))
    # Node 2 gets its rank from the variables of a launcher that numbers processes itself, such as mpirun_rsh or
    # torchrun.
    own = {
        "MV2_COMM_WORLD_RANK": "2",
        "MV2_COMM_WORLD_SIZE": "3",
        "MV2_COMM_WORLD_LOCAL_RANK": "0",
        "MV2_COMM_WORLD_LOCAL_SIZE": "1",
    }
    for node in (2, 1, 0):
        words = ["--node-only"] if node == 2 else ["--node", str(node), "--nodes", "3"]
        line = [_PROGRAM, "run", "job.toml", *words, "--rendezvous", "h0:1234"]
        env = {**os.environ, **(own if node == 2 else {})}
        done = subprocess.run(line, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=100, check=False)
        assert done.returncode == 0, done.stderr
        assert ("archive" in done.stdout) == (node == 0)
    found = {path.name: int(path.read_text()) for path in (tmp_path / "kept").glob("*-h0-1234")}
    assert sorted(found) == [f"{rank}-of-6-{rank % 2}-h0-1234" for rank in range(6)]
    assert sum(found.values()) == 2 * 9


@pytest.mark.parametrize(
    ("words", "word"),
    [
        (["--node", "0"], "--nodes: not set, although --node is set"),
        (["--node", "3", "--nodes", "3", "--rendezvous", "h:1"], "got 3 of 3 nodes"),
        (["--node", "0", "--nodes", "2"], "--rendezvous"),
        (["--node", "0", "--nodes", "2", "--rendezvous", "h"], "not HOST:PORT"),
    ],
)
def test_part_that_cannot_be_is_refused(words, word, run_cli, tmp_path):
    (tmp_path / "job.toml").write_text(_PART.format(folder=tmp_path))
    result = run_cli("run", "job.toml", *words, cwd=tmp_path)
    assert (result.code, word in result.err) == (2, True), result.err

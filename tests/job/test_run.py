# SPDX-License-Identifier: Apache-2.0
"""Tests `penstock run`: a job file from pool to archive, with resume, display and errors. Issue 5, point 5."""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from penstock.cli import run_plan
from penstock.env import for_nodes
from penstock.job.run_steps import Execution
from penstock.job.spec import load
from penstock.pool import lifecycle

_JOB = """
name = "{name}"
[cluster]
nodes = 2
[provision]
script = "{folder}/setup.sh"
at = "{folder}/{{node}}-setup.sh"
[pool]
disk = "{folder}/disk-{{node}}"
[stage]
source = "{folder}/set"
decompress = true
[run]
argv = ["sh", "-c", "{command}", "sh", "{{data}}", "{{rank}}", "{{world}}"]
ranks_per_node = 2
[archive]
source = "{folder}/out"
to = "{folder}/kept"
"""
# Each rank counts the files on its node, so the test can add up the shares.
_COUNT = "mkdir -p {folder}/out; find $1 -name '*.bin' | wc -l > {folder}/out/$2-of-$3"


@pytest.fixture
def job(tmp_path, monkeypatch):
    """`job(command)` writes a job file over 12 gzip'd objects; its state folder is inside the test."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "set").mkdir()
    for at in range(12):
        (tmp_path / f"set/{at}.bin.gz").write_bytes(gzip.compress(random.Random(at).randbytes(5000), 1, mtime=0))
    (tmp_path / "setup.sh").write_text(f"echo x >> {tmp_path}/provisioned\n")

    def write(command: str = _COUNT, **replaced: str) -> Path:
        text = _JOB.format(name="job", folder=tmp_path, command=command.format(folder=tmp_path))
        # The two nodes share one machine's paths, so they use one script file.
        text = text.replace(f"{tmp_path}/{{node}}-setup.sh", f"{tmp_path}/node-setup.sh")
        for old, new in replaced.items():
            text = text.replace(old, new)
        (tmp_path / "job.toml").write_text(text)
        return tmp_path / "job.toml"

    return write


def _steps(text: str) -> dict[str, str]:
    return {row["name"]: row["state"] for row in json.loads(text.strip().splitlines()[-1])["steps"]}


def test_run_does_all_steps_and_leaves_no_pool(job, run_cli, tmp_path):
    ran = run_cli("run", job(), "--json", cwd=tmp_path, timeout_s=110)
    assert ran.code == 0, ran.err
    names = ["provision", "pool up", "stage", "ranks", "archive", "pool down"]
    assert _steps(ran.out) == dict.fromkeys(names, "done")
    result = {path.name: int(path.read_text()) for path in (tmp_path / "kept").glob("*-of-4")}
    assert sorted(result) == ["0-of-4", "1-of-4", "2-of-4", "3-of-4"]
    assert result["0-of-4"] == result["1-of-4"]
    assert result["0-of-4"] + result["2-of-4"] == 12
    assert lifecycle.names() == []
    assert list(tmp_path.glob("disk-*/*")) == []


def test_run_that_failed_is_torn_down_and_resumed(job, run_cli, tmp_path):
    gate = f"test -e {tmp_path}/gate || exit 9; " + _COUNT
    ran = run_cli("run", job(gate), cwd=tmp_path, timeout_s=110)
    assert (ran.code, "ranks: n0: exit code 9 (and 3 more of 4)" in ran.err) == (1, True), ran.err
    assert "pool down: done" in ran.out
    assert lifecycle.names() == []
    again = run_cli("run", job(gate), cwd=tmp_path)
    assert (again.code, "contains an earlier run" in again.err) == (2, True)
    (tmp_path / "gate").touch()
    resumed = run_cli("run", job(gate), "--resume", "--json", cwd=tmp_path, timeout_s=110)
    assert resumed.code == 0, resumed.err
    assert _steps(resumed.out) == {
        "provision": "skipped", "pool up": "done", "stage": "done", "ranks": "done", "archive": "done", "pool down": "done",
    }  # fmt: skip
    other = run_cli("run", job("true"), "--resume", cwd=tmp_path)
    assert (other.code, "a different job file" in other.err) == (2, True)


def test_second_run_of_a_job_that_runs_is_refused(job, tmp_path, run_cli):
    gate = f"touch {tmp_path}/begun; while [ ! -e {tmp_path}/gate ]; do sleep 0.1; done; " + _COUNT
    program = Path(sys.executable).with_name("penstock")
    first = subprocess.Popen([program, "run", job(gate), "--quiet"], cwd=tmp_path, stdin=subprocess.DEVNULL)
    try:
        while not (tmp_path / "begun").exists():
            assert first.poll() is None
            time.sleep(0.05)
        for arguments in ([], ["--resume"]):
            ran = run_cli("run", job(gate), *arguments, cwd=tmp_path)
            assert (ran.code, "another command is running this job" in ran.err) == (3, True), ran.err
        (tmp_path / "gate").touch()
        assert first.wait(100) == 0
    finally:
        first.kill()
        first.wait()
    assert lifecycle.names() == []


def test_run_that_is_killed_in_its_ranks_goes_on_with_the_pool_that_stands(job, tmp_path, run_cli):
    gate = f"touch {tmp_path}/begun; while [ ! -e {tmp_path}/gate ]; do sleep 0.1; done; " + _COUNT
    program = Path(sys.executable).with_name("penstock")
    first = subprocess.Popen(
        [program, "run", job(gate), "--quiet"], cwd=tmp_path, env=os.environ.copy(), stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    until = time.monotonic() + 90
    while not (tmp_path / "begun").exists() and time.monotonic() < until:
        time.sleep(0.05)
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert lifecycle.names() == ["job"]
    (tmp_path / "gate").touch()
    resumed = run_cli("run", job(gate), "--resume", "--json", cwd=tmp_path, timeout_s=110)
    assert resumed.code == 0, resumed.err
    assert (_steps(resumed.out)["stage"], _steps(resumed.out)["ranks"]) == ("skipped", "done")
    assert "was up" in resumed.out
    assert lifecycle.names() == []


def test_run_ctrl_c_ends_the_ranks_and_takes_the_pool_down(job, tmp_path):
    program = Path(sys.executable).with_name("penstock")
    line = f"touch {tmp_path}/begun-$2; exec sleep 300.{os.getpid()}"
    first = subprocess.Popen(
        [program, "run", job(line)], cwd=tmp_path, env=os.environ.copy(), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    until = time.monotonic() + 90
    while len(list(tmp_path.glob("begun-*"))) < 4 and time.monotonic() < until:
        time.sleep(0.05)
    first.send_signal(signal.SIGINT)
    out, err = first.communicate(timeout=100)
    assert first.returncode == 130, err
    assert "pool down: done" in out
    assert lifecycle.names() == []
    assert list(tmp_path.glob("disk-*/*")) == []
    left = subprocess.run(["pgrep", "-f", f"^sleep 300.{os.getpid()}"], capture_output=True, check=False)
    assert left.stdout == b""


# Issue 16, point 7.
def test_run_binds_each_rank_to_its_core(job, run_cli, tmp_path):
    show = "mkdir -p {folder}/out; sed -n s/Cpus_allowed_list:.//p /proc/self/status > {folder}/out/$2"
    ran = run_cli(
        "run", job(show, **{"ranks_per_node = 2": 'ranks_per_node = 2\nbind = "core"'}), "--quiet", cwd=tmp_path
    )
    assert ran.code == 0, ran.err
    first, second, *_ = sorted(os.sched_getaffinity(0))
    assert [(tmp_path / f"out/{rank}").read_text().strip() for rank in range(4)] == [str(first), str(second)] * 2


def test_run_dry_prints_every_line_and_starts_none(job, run_cli, tmp_path):
    ran = run_cli("run", job(), "--dry-run", cwd=tmp_path)
    assert ran.code == 0, ran.err
    heads = [line for line in ran.out.splitlines() if line.startswith("# ")]
    assert heads[:7] == ["# provision", "# pool up", "# stage", "# ranks", "# archive", "# pool down", "# money"]
    assert heads[7:] == [
        "# nodes: no price set; in [money], set node to an item of the price book, or usd_per_node_hour",
        "# stage: its requests are free",
        "# pool: break-even unknown; set source_rate in [demand] to the total bandwidth of the source",
    ]
    assert ran.out.count("<rank_wrapper.py>") == 2 + 2 + 4 + 1
    assert not (tmp_path / "runs").exists()


def test_run_dry_line_of_the_pool_brings_that_very_pool_up(job, run_cli, tmp_path):
    shown = run_cli("run", job(), "--dry-run", cwd=tmp_path).out.splitlines()
    line = shlex.split(shown[shown.index("# pool up") + 1])
    assert line[0] == "penstock"
    result = run_cli(*line[1:], "--json", cwd=tmp_path)
    try:
        assert result.code == 0, result.err
        assert [node["node"] for node in json.loads(result.out)["nodes"]] == ["n0", "n1"]
    finally:
        ended = run_cli("pool", "down", "--name", "job", cwd=tmp_path)
    assert ended.code == 0, ended.err


def test_run_dry_counts_the_money_of_nodes_and_requests(job, run_cli, emulator, tmp_path):
    store = emulator(folder=tmp_path)
    money = '[money]\nnode = "azure-vm-nd40rs_v2"\nregion = "South Central"\nhours = 11.5\n[stage]'
    file = job(**{"[stage]": money, f'source = "{tmp_path}/set"': f'source = "{store.url}set"'})
    ran = run_cli("run", file, "--dry-run", cwd=tmp_path, env=store.env)
    assert ran.code == 0, ran.err
    lines = ran.out[ran.out.index("# money") :].splitlines()
    assert lines[1] == "# nodes: 2 x 26.438 USD/h (azure-vm-nd40rs_v2, South Central US): $52.88 per hour"
    assert lines[2].startswith("# stage: 12 objects, 12 requests: < $0.01 (s3-standard; prices as of ")
    assert lines[3] == "# egress: 60.3 kB: $0.00 inside the cloud; < $0.01 for nodes outside it"
    assert lines[4] == "# job: 11.5 h on 2 nodes: $608.07"
    assert lines[5].startswith("# prices as of 2024-12")
    result = run_cli("run", file, "--dry-run", "--json", cwd=tmp_path, env=store.env)
    [row] = json.loads(result.out)["jobs"]
    assert [step["name"] for step in row["steps"]] == [
        "provision", "pool up", "stage", "ranks", "archive", "pool down",
    ]  # fmt: skip
    assert row["money"]["job_usd"] == pytest.approx(608.07, abs=0.01)
    assert row["money"]["stage_bytes"] == sum(path.stat().st_size for path in (tmp_path / "set").iterdir())
    assert 0 < row["money"]["egress_usd_outside"] < 0.01
    for bad, word in (('node = "x"', "does not contain `x`"), ("hours = 1", "usd_per_node_hour")):
        result = run_cli("run", job(**{"[stage]": f"[money]\n{bad}\n[stage]"}), "--dry-run", cwd=tmp_path)
        assert (result.code, word in result.err) == (2, True), result.err


def test_run_says_when_a_pool_starts_to_pay_before_it_does_anything(job, run_cli, tmp_path):
    # 60 kB per epoch of 0.1 s on 2 nodes is 0.3 MB/s per node. The source can feed 3 such nodes. The job has 10 epochs,
    # and two cards read 2.7 MB/s from the pool.
    demand = (
        '[demand]\nepochs = 10\nnode_rate = "0.3MB/s"\nsource_rate = "1MB/s"\nnic_rate = "8Mbit/s"\n'
        "compression_ratio = 2\n[archive]"
    )
    file = job("true", **{"[archive]": demand})
    want = r"pool: an epoch of 60.3 kB in 1\d\d ms is 300 kB/s per node, and the source delivers 1.00 MB/s"
    want += r" \(as given\): a pool pays off at 4 or more nodes; this job has 2"
    shown = run_cli("run", file, "--dry-run", cwd=tmp_path)
    assert re.search(want, shown.out), shown.out
    assert re.search(
        "10 epochs: streamed 1.0. s, from a pool .*: stream is faster; its stage never pays off", shown.out
    )
    pays = json.loads(run_cli("run", file, "--dry-run", "--json", cwd=tmp_path).out)["breakeven"]
    stored = sum(path.stat().st_size for path in (tmp_path / "set").iterdir())
    assert {name: pays[name] for name in ("nodes", "stored_bytes", "epochs", "from_nodes", "from_epochs", "faster")} == {
        "nodes": 2, "stored_bytes": stored, "epochs": 10, "from_nodes": 4, "from_epochs": None, "faster": "stream",
    }  # fmt: skip
    hungry = job(**{"[archive]": demand.replace("0.3MB/s", "3MB/s").replace("epochs = 10", "epochs = 100")})
    ran = run_cli("run", hungry, cwd=tmp_path, timeout_s=110)
    assert ran.code == 0, ran.err
    assert "pool: an epoch" in ran.err
    assert "pool is faster; its stage pays off after" in ran.err
    for bad, word in (
        ("epochs = 0", "must be above 0"), ('epoch = "0s"', "one of them"), ('source_rate = "fast"', "fast"), ("x = 1", "x"),
    ):  # fmt: skip
        result = run_cli(
            "run", job("true", **{"[archive]": f'[demand]\nnode_rate = "1MB/s"\n{bad}\n[archive]'}), cwd=tmp_path
        )
        assert (result.code, word in result.err) == (2, True), result.err


def test_run_dry_of_a_job_that_reads_nothing_known_lists_nothing(run_cli, tmp_path):
    text = '[cluster]\nnodes = 1\n[run]\nargv = ["true"]\n[money]\nusd_per_node_hour = 2\nhours = 3\ntier = "s3-standard"\n'
    (tmp_path / "job.toml").write_text(f'name = "job"\n{text}')
    ran = run_cli("run", tmp_path / "job.toml", "--dry-run", cwd=tmp_path)
    assert ran.code == 0, ran.err
    assert "# job: 3 h on 1 nodes: $6.00" in ran.out


def test_source_that_is_not_listed_soon_holds_no_job_up(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(run_plan, "_LISTING_TIMEOUT_S", 0.5)
    demand = '[demand]\nnode_rate = "1MB/s"\nsource_rate = "1MB/s"\nsource = "s3://set/of"\n'
    (tmp_path / "job.toml").write_text(f'name = "job"\n[cluster]\nnodes = 1\n[run]\nargv = ["true"]\n{demand}')
    job = load(tmp_path / "job.toml")
    # The server accepts connections, but never responds.
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for name, value in {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{silent.getsockname()[1]}", "AWS_ACCESS_KEY_ID": "x",
            "AWS_SECRET_ACCESS_KEY": "x", "AWS_REGION": "us-east-1",
        }.items():  # fmt: skip
            monkeypatch.setenv(name, value)
        result = run_plan.print_breakeven(
            job, lambda one: Execution(one, tmp_path / "run", for_nodes(), on_step=lambda _row: None), is_quiet=False
        )
    assert result is None
    assert capsys.readouterr().err.splitlines() == [
        "pool: listing s3://set/of to find the break-even of a pool",
        "pool: break-even unknown: s3://set/of was not listed within 0.5 s",
    ]


def test_job_file_old_keys_work_and_are_noted(job, run_cli, tmp_path):
    file = job(**{"decompress = true": 'inflate = true\ndeadline = "1h"'})
    ran = run_cli("run", file, "--dry-run", cwd=tmp_path)
    assert ran.code == 0, ran.err
    for old, new in (("[stage] inflate", "decompress"), ("[stage] deadline", "timeout")):
        assert f"note: {old} is now {new}; the next release removes {old}" in ran.err
    ran = run_cli("run", job(**{"decompress = true": "decompress = true\ninflate = true"}), "--dry-run", cwd=tmp_path)
    assert (ran.code, "the same key; give only decompress" in ran.err) == (2, True), ran.err


@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        ("nodes = 2", "nods = 2", "unknown field `nods`"),
        ("decompress = true", 'decompress = true\ndestination = "/x"', "both a destination and a [pool]"),
        ('argv = ["sh"', 'argv = []\nx = ["sh"', "x"),
        ("ranks_per_node = 2", "ranks_per_node = 0", "run.ranks_per_node: must be at least 1 (got 0)"),
        ("ranks_per_node = 2", 'bind = "socket"', "run.bind: `socket` is not one of none, show, core"),
        ('name = "job"', 'name = "../job"', "is not a valid name"),
        ("ranks_per_node = 2", 'timeout = "soon"', "`soon` is not a valid duration"),
        ("[run]", "[run", "Expected"),
    ],
)
def test_job_file_that_cannot_be_is_refused(old, new, word, job, run_cli, tmp_path):
    ran = run_cli("run", job(**{old: new}), cwd=tmp_path)
    assert ran.code == 2, ran.err
    assert word in ran.err
    assert not (tmp_path / "runs").exists()

# SPDX-License-Identifier: Apache-2.0
"""Tests one job file with every launcher on four hosts: ssh, sbatch and srun in a real Slurm, and mpirun.

Also tests containers. Acceptance test of issue 5.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "stage"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "launchers"))
from cluster_kit import HOSTS, Cluster, await_, remove, short_folder
from image_kit import PROGRAMS, make_image

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.needs_root, pytest.mark.timeout(240)]

_PROGRAM = Path(sys.executable).with_name("penstock")
_JOB = """
name = "{name}"
[cluster]
launcher = "{launcher}"
{cluster}
[provision]
script = "{folder}/setup.sh"
at = "{private}/setup-{name}.sh"
[pool]
disk = "{private}/{name}"
[stage]
source = "{folder}/set"
[run]
argv = ["sh", "-c", "cat $1/*.bin | wc -c > $4/$2-of-$3; {extra}", "sh", "{{data}}", "{{rank}}", "{{world}}", "{out}"]
ranks_per_node = 2
{container}
[archive]
source = "{folder}/out-{name}"
to = "{folder}/kept-{name}"
"""
_SIZES = {f"{at}.bin": 1000 + 7 * at for at in range(24)}


@pytest.fixture(scope="module")
def hosts():
    folder = short_folder()
    try:
        with Cluster(folder) as running:
            running.start_sshds()
            (folder / "set").mkdir()
            for name, size in _SIZES.items():
                (folder / "set" / name).write_bytes(b"x" * size)
            (folder / "setup.sh").write_text(f"echo provisioned > {running.private}/provisioned\n")
            yield running
    finally:
        remove(folder)


def _write(
    hosts: Cluster, name: str, launcher: str, *, cluster: str = "", container: str = "", extra: str = ":"
) -> Path:
    out = hosts.folder / f"out-{name}"
    out.mkdir()
    text = _JOB.format(
        name=name, launcher=launcher, cluster=cluster, container=container, folder=hosts.folder, private=hosts.private,
        out="/mnt/0" if "[container]" in container else out, extra=extra,
    )  # fmt: skip
    path = hosts.folder / f"{name}.toml"
    path.write_text(text)
    return path


def _check(hosts: Cluster, name: str, *, nodes: int = HOSTS) -> None:
    """Asserts that all steps are done, the shares add up to the whole dataset, and no pool is left."""
    kept = json.loads((hosts.folder / f"runs/{name}/job.json").read_text())
    steps = {row["name"]: row["state"] for row in kept["steps"]}
    assert steps == dict.fromkeys(["provision", "pool up", "stage", "ranks", "archive", "pool down"], "done")
    counted = {path.name: int(path.read_text()) for path in (hosts.folder / f"kept-{name}").glob(f"*-of-{2 * nodes}")}
    assert sorted(counted) == sorted(f"{rank}-of-{2 * nodes}" for rank in range(2 * nodes))
    # The two ranks of a node count the same share.
    assert sum(counted.values()) == 2 * sum(_SIZES.values())
    for host in range(1, nodes + 1):
        assert (hosts.held(host) / "provisioned").exists()
        assert list((hosts.held(host) / name).iterdir()) == []


def _penstock(hosts: Cluster, *words: object, before: tuple[object, ...] = ()):
    ran = hosts.run(1, *before, _PROGRAM, *words, timeout_s=220)
    assert ran.returncode == 0, (ran.stderr[-3000:], (hosts.folder / "daemons.log").read_text(errors="replace")[-1000:])
    return ran


def test_job_by_ssh(hosts):
    job = _write(hosts, "byssh", "ssh", cluster='nodes = "h1,h2,h3,h4"')
    ran = _penstock(hosts, "run", job, "--json", "--output", hosts.folder / "runs")
    _check(hosts, "byssh")
    assert json.loads(ran.stdout)["lost_nodes"] == []


@pytest.mark.needs_pool
def test_job_by_ssh_goes_on_without_a_host_that_hangs(hosts):
    run = 'lost_node = "restart"'
    wait = f"touch {hosts.folder}/begun-$2-of-$3; while [ ! -e {hosts.folder}/go-$3 ]; do sleep 0.1; done"
    job = _write(hosts, "hangs", "ssh", cluster='nodes = "h1,h2,h3"', container=run, extra=wait)
    line = hosts.line(1, _PROGRAM, "run", job, "--json", "--output", hosts.folder / "runs")
    running = subprocess.Popen(line, env=hosts.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        await_(lambda: len(list(hosts.folder.glob("begun-*-of-6"))) == 6, "ranks", hosts.folder, limit_s=90)
        hosts.cut(3)
        (hosts.folder / "go-6").touch()
        (hosts.folder / "go-4").touch()
        out, err = running.communicate(timeout=200)
    finally:
        hosts.cut(3, is_up=True)
        running.kill()
        running.wait()
    assert running.returncode == 0, err
    result = json.loads(out)
    assert result["lost_nodes"] == ["h3"]
    assert "h3" in (detail := next(row["detail"] for row in result["steps"] if row["name"] == "ranks"))
    assert "2 starts" in detail
    # No command can reach the lost host; its remote wrappers end the ranks there when their connection is lost.
    assert {path.name for path in (hosts.folder / "kept-hangs").glob("*-of-4")} == {f"{rank}-of-4" for rank in range(4)}


def test_job_by_sbatch(hosts):
    want = f'[submit]\nnodes = {HOSTS}\nlimit = "10min"\nargs = ["--comment=one of ours"]\nsetup = ["export MARK=set"]'
    job = _write(hosts, "bysbatch", "slurm", container=want, extra="test $MARK = set")
    ran = _penstock(hosts, "run", job, "--submit", "--wait", "--json", "--output", hosts.folder / "runs")
    number = json.loads(ran.stdout)["job_id"]
    assert f"JobId={number} " in (shown := hosts.run(1, "scontrol", "show", "job", number).stdout)
    assert "Comment=one of ours" in shown
    assert "TimeLimit=00:10:00" in shown
    _check(hosts, "bysbatch")


def test_slurm_rejected_job_shows_slurm_message(hosts):
    job = _write(hosts, "refused", "slurm", container=f'[submit]\nnodes = {HOSTS + 60}\nqueue = "nowhere"')
    ran = hosts.run(1, _PROGRAM, "run", job, "--submit", "--output", hosts.folder / "runs")
    assert (ran.returncode, "Invalid partition name" in ran.stderr) == (3, True), ran.stderr


@contextmanager
def _waited_for(hosts: Cluster, job: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Starts a submission that waits for its job; yields it and the job's number, once it has printed that."""
    line = hosts.line(1, _PROGRAM, "run", job, "--submit", "--wait", "--output", hosts.folder / "runs")
    output = job.with_suffix(".said")
    with output.open("w") as out:
        waiting = subprocess.Popen(line, env=hosts.env, stdout=out, stderr=subprocess.PIPE, text=True)
    try:
        await_(lambda: output.read_text().endswith("\n"), "the job's number", hosts.folder, limit_s=60)
        number = output.read_text().strip()
        assert number.isdecimal()
        yield waiting, number
    finally:
        waiting.kill()
        waiting.wait()


def test_job_that_is_waited_for_is_cancelled_with_ctrl_c(hosts):
    job = _write(hosts, "cancelled", "slurm", container=f"[submit]\nnodes = {HOSTS}", extra="exec sleep 300")
    with _waited_for(hosts, job) as (waiting, number):
        begun = hosts.folder / "out-cancelled"
        await_(lambda: len(list(begun.iterdir())) == 2 * HOSTS, "ranks", hosts.folder, limit_s=90)
        assert [list((hosts.held(host) / "cancelled").iterdir()) for host in range(1, HOSTS + 1)] != [[]] * HOSTS
        waiting.send_signal(signal.SIGINT)
        _, result = waiting.communicate(timeout=60)
    assert waiting.returncode == 130, result
    assert "JobState=FAILED" in hosts.run(1, "scontrol", "show", "job", number).stdout
    assert [list((hosts.held(host) / "cancelled").iterdir()) for host in range(1, HOSTS + 1)] == [[]] * HOSTS


def test_job_that_waits_in_the_queue_is_withdrawn_with_ctrl_c(hosts):
    want = f'[submit]\nnodes = {HOSTS}\nargs = ["--begin=now+1hour"]'
    job = _write(hosts, "queued", "slurm", container=want)
    with _waited_for(hosts, job) as (waiting, number):
        assert f"{number} PENDING" in hosts.run(1, "squeue", "-h", "-o", "%i %T").stdout
        waiting.send_signal(signal.SIGINT)
        _, result = waiting.communicate(timeout=60)
    assert waiting.returncode == 130, result
    assert "JobState=CANCELLED" in hosts.run(1, "scontrol", "show", "job", number).stdout


# Stand-in for PBS's qsub: checks the directives against the documented grammar, writes the node file, and runs the
# script on the first node.
_QSUB = r"""
import os, re, subprocess, sys
assert sys.argv[1:3] == ["-W", "block=true"], sys.argv
script = sys.argv[3]
lines = open(script).read().splitlines()
assert lines[0] == "#!/bin/sh"
found = [line.removeprefix("#PBS ") for line in lines if line.startswith("#PBS")]
rest = lines[1 + len(found):]
assert not any(line.startswith("#") for line in rest), "PBS reads no directive after a command"
rules = [r"-N [A-Za-z][A-Za-z0-9_.+-]{0,14}", r"-l select=(?P<n>\d+)(:[a-z]+=\d+)+", r"-l place=scatter:excl",
         r"-l walltime=\d\d+:\d\d:\d\d", r"-j oe", r"-o /\S+", r"-q \w+", r"-A \w+"]
for line in found:
    assert any(re.fullmatch(rule, line) for rule in rules), line
count = int(re.fullmatch(rules[1], next(line for line in found if "select" in line))["n"])
print("7.stand-in", flush=True)
nodes = script + ".nodes"
open(nodes, "w").write("".join(f"h{at}\n" * 2 for at in range(1, count + 1)))
log = next(line[3:] for line in found if line.startswith("-o "))
env = {**os.environ, "PBS_NODEFILE": nodes, "PBS_JOBID": "7.stand-in", "PBS_O_WORKDIR": os.getcwd()}
sys.exit(subprocess.run(["sh", script], env=env, stdout=open(log, "w"), stderr=subprocess.STDOUT).returncode)
"""


def test_job_by_qsubs_stand_in(hosts):
    tools = hosts.folder / "tools"
    tools.mkdir()
    (tools / "qsub.py").write_text(_QSUB)
    (tools / "qsub").write_text(f'#!/bin/sh\nexec {sys.executable} {tools}/qsub.py "$@"\n')
    (tools / "qsub").chmod(0o755)
    job = _write(
        hosts, "byqsub", "pbs", container='[submit]\nnodes = 2\nlimit = "90min"\nqueue = "work"\ngpus_per_node = 1'
    )
    ran = hosts.run(
        1, _PROGRAM, "run", job, "--submit", "--wait", "--output", hosts.folder / "runs", timeout_s=220,
        PATH=f"{tools}:{os.environ['PATH']}",
    )  # fmt: skip
    assert ran.returncode == 0, (ran.stderr, list((hosts.folder / "runs/byqsub").glob("*.log")))
    assert ran.stdout == "7.stand-in\n"
    _check(hosts, "byqsub", nodes=2)


_SITE = """
name = "site"
[cluster]
launcher = "ssh"
settings = {{ key = "{folder}/home/.ssh/id_ed25519", known_hosts = "{folder}/home/.ssh/known_hosts" }}
[pool]
disk = "{folder}/private/here"
[stage]
source = "/nowhere"
[run]
argv = ["true"]
[submit]
setup = ["export HOME={folder}/home PATH={path} SLURM_CONF={folder}/slurm.conf"]
"""


@pytest.mark.needs_pool
def test_slurm_gives_jobs_that_ask_a_pool_of_their_own(run_cli):
    folder = short_folder()
    job = folder / "site.toml"
    job.write_text(_SITE.format(folder=folder, path=os.environ["PATH"]))
    conf = ""
    for name, form in (("PrologSlurmctld", "slurm-prolog"), ("EpilogSlurmctld", "slurm-epilog")):
        text = run_cli("run", job, "--export", form).out
        (folder / form).write_text(text.replace("#!/bin/sh\n", f"#!/bin/sh\nexec 2> {folder}/{form}.log\n"))
        (folder / form).chmod(0o755)
        conf += f"{name}={folder}/{form}\n"
    see = f"ls {folder}/private/here; cat /run/penstock-pool-$SLURM_JOB_ID.json"
    try:
        with Cluster(folder, slurm=conf) as hosts:
            hosts.start_sshds()
            asks = hosts.run(1, "salloc", "-Q", "-N2", "--comment=penstock", "srun", "-N1", "-n1", "sh", "-c", see)
            assert asks.returncode == 0, (asks.stderr, (folder / "slurm-prolog.log").read_text())
            name, result = asks.stdout.split("\n", 1)
            assert name.startswith("penstock-pool-slurm-")
            assert [node["node"] for node in json.loads(result)["nodes"]] == ["h1", "h2"]
            await_(lambda: list(hosts.held(1).iterdir()) == list(hosts.held(2).iterdir()) == [], "the epilog", folder)
            plain = hosts.run(1, "salloc", "-Q", "-N2", "ls", folder / "private/here")
            assert (plain.returncode, plain.stdout) == (0, "")
            assert not list(Path("/run").glob(f"{name.replace('slurm-', '')}.json"))
    finally:
        remove(folder)


@pytest.mark.needs_pool
def test_job_by_mpirun(hosts):
    job = _write(
        hosts, "bympi", "mpi", cluster='settings = { args = "--mca btl tcp,self --mca btl_tcp_if_include e0" }'
    )
    _penstock(hosts, "run", job, "--quiet", "--output", hosts.folder / "runs", before=("salloc", "-Q", f"-N{HOSTS}"))
    _check(hosts, "bympi")


def test_job_with_its_ranks_in_containers_by_srun(hosts, tmp_path):
    image = make_image(tmp_path / "image")
    part = f"""
[container]
runtime = "charliecloud"
image = "{image}"
binds = ["{PROGRAMS}", "{hosts.folder}/out-boxed:/mnt/0"]
"""
    job = _write(hosts, "boxed", "slurm", container=part, extra="test -e /inside")
    _penstock(hosts, "run", job, "--quiet", "--output", hosts.folder / "runs", before=("salloc", "-Q", f"-N{HOSTS}"))
    _check(hosts, "boxed")


# All ranks have failed, as happens when one of mpirun's hosts goes away.
_WHO_IS_LOST = """
import sys, time
from pathlib import Path
from penstock.cluster import Cluster
from penstock.job import node_loss_recovery
from penstock.protocols import Exit
node_loss_recovery._PROBE_TIMEOUT_S = 12.0
with Cluster.open(sys.argv[1], {}) as cluster:
    Path(sys.argv[2], "asks").touch()
    until = time.monotonic() + 60
    while not Path(sys.argv[2], "is-cut").exists() and time.monotonic() < until:
        time.sleep(0.05)
    bad = [Exit(node.name, rank, 1, b"", b"", 1.0) for rank, node in enumerate(cluster.nodes)]
    print(node_loss_recovery.unreachable_nodes(cluster, bad))
"""


@pytest.mark.parametrize("launcher", ["slurm", pytest.param("mpi", marks=pytest.mark.needs_pool)])
def test_lost_host_is_separated_from_responding_hosts(launcher, hosts, tmp_path):
    line = hosts.line(1, "salloc", "-Q", "-N3", sys.executable, "-c", _WHO_IS_LOST, launcher, tmp_path)
    asking = subprocess.Popen(line, env=hosts.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        await_((tmp_path / "asks").exists, "an allocation", hosts.folder, limit_s=60)
        hosts.cut(3)
        (tmp_path / "is-cut").touch()
        out, err = asking.communicate(timeout=100)
    finally:
        hosts.cut(3, is_up=True)
        asking.kill()
        asking.wait()
    assert out.strip() == "['h3']", err


# Runs mpirun's ranks in a container on each host: its daemons start by ssh, and then enter the container.
_INSIDE = """
import json, os, sys
from dataclasses import replace
from penstock import plugins
from penstock.launchers import mpi
from penstock.protocols import Container, ContainerSpec, RunRequest

image, shared, programs = sys.argv[1:]
ssh = "ssh -i /mnt/0/home/.ssh/id_ed25519 -o UserKnownHostsFile=/mnt/0/home/.ssh/known_hosts"
args = f"--mca btl tcp,self --mca btl_tcp_if_include e0 --mca oob_tcp_if_include e0 --mca plm_rsh_agent '{ssh}'"
made = mpi.launcher({"nodes": "h1,h2,h3", "program": "mpirun.openmpi", "python": "/usr/bin/python3", "args": args}, os.environ)
prefix = plugins.load("penstock.containers", "charliecloud", Container, lambda factory: factory()).rank_prefix(
    ContainerSpec(image, (programs, f"{shared}:/mnt/0"))
)
argv = ["sh", "-c", "ls /inside; cat /proc/sys/kernel/hostname; exit {rank}"]
request = RunRequest(argv, made.nodes(), 2, timeout_s=90, expand_placeholders=True, rank_prefix=replace(prefix, is_outermost=True))
print(json.dumps([[e.node, e.code, e.out.decode(), str(e.fault), e.err.decode()[-500:]] for e in made.run(request)]))
"""


@pytest.mark.needs_pool
def test_mpirun_inside_containers_starts_ranks_on_every_host(hosts, tmp_path):
    image = make_image(tmp_path / "image")
    ran = hosts.run(1, sys.executable, "-c", _INSIDE, image, hosts.folder, PROGRAMS, timeout_s=120)
    assert ran.returncode == 0, ran.stderr
    exits = json.loads(ran.stdout)
    want = [[f"h{1 + rank // 2}", rank, f"/inside\nh{1 + rank // 2}\n"] for rank in range(6)]
    assert [each[:3] for each in exits] == want, exits

# SPDX-License-Identifier: Apache-2.0
"""One job file by every launcher on four hosts: ssh to real sshds, sbatch and srun in a real Slurm, mpirun; and its ranks in
containers. Issue 5, its proof."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "stage"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "launchers"))
from cluster_kit import HOSTS, Cluster, remove, short_folder
from image_kit import PROGRAMS, make_image

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
        out="/mnt/0" if container else out, extra=extra,
    )  # fmt: skip
    path = hosts.folder / f"{name}.toml"
    path.write_text(text)
    return path


def _check(hosts: Cluster, name: str, told: str, *, nodes: int = HOSTS) -> None:
    """Every step is done, every rank has counted what its node holds, the whole dataset was there once, and no pool is left."""
    steps = {row["name"]: row["state"] for row in json.loads(told.strip().splitlines()[-1])["steps"]}
    assert steps == dict.fromkeys(["provision", "pool up", "stage", "ranks", "archive", "pool down"], "done")
    counted = {path.name: int(path.read_text()) for path in (hosts.folder / f"kept-{name}").glob(f"*-of-{2 * nodes}")}
    assert sorted(counted) == sorted(f"{rank}-of-{2 * nodes}" for rank in range(2 * nodes))
    # Two ranks a node count the same share.
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
    ran = _penstock(hosts, "run", job, "--json", "--runs", hosts.folder / "runs")
    _check(hosts, "byssh", ran.stdout)


def test_job_by_sbatch(hosts):
    job = _write(hosts, "bysbatch", "slurm")
    line = f"{_PROGRAM} run {job} --json --runs {hosts.folder}/runs"
    ran = hosts.run(
        1, "sbatch", "--wait", f"-N{HOSTS}", f"--output={hosts.folder}/bysbatch.log", "--wrap", line, timeout_s=220
    )
    said = (hosts.folder / "bysbatch.log").read_text()
    assert ran.returncode == 0, (ran.stderr, said)
    _check(hosts, "bysbatch", said)


@pytest.mark.needs_pool
def test_job_by_mpirun(hosts):
    job = _write(
        hosts, "bympi", "mpi", cluster='settings = { args = "--mca btl tcp,self --mca btl_tcp_if_include e0" }'
    )
    ran = _penstock(hosts, "run", job, "--json", "--runs", hosts.folder / "runs", before=("salloc", "-Q", f"-N{HOSTS}"))
    _check(hosts, "bympi", ran.stdout)


def test_job_with_its_ranks_in_containers_by_srun(hosts, tmp_path):
    image = make_image(tmp_path / "image")
    part = f"""
[container]
runtime = "charliecloud"
image = "{image}"
binds = ["{PROGRAMS}", "{hosts.folder}/out-boxed:/mnt/0"]
"""
    job = _write(hosts, "boxed", "slurm", container=part, extra="test -e /inside")
    ran = _penstock(hosts, "run", job, "--json", "--runs", hosts.folder / "runs", before=("salloc", "-Q", f"-N{HOSTS}"))
    _check(hosts, "boxed", ran.stdout)

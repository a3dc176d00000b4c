# SPDX-License-Identifier: Apache-2.0
"""Tests what a launcher does if a rank, its wrapper or Penstock itself is killed: no process is left, and no run waits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from penstock.errors import ConfigError, Interrupted
from penstock.launchers import local, mpi, ssh
from penstock.protocols import RunRequest
from tests.launchers.sshd_kit import Sshds

_PROGRAMS = ["mpirun.openmpi", "mpiexec.hydra"]


def _opened(launcher):
    if launcher == "local":
        return local.launcher({"nodes": 1}, os.environ)
    return mpi.launcher({"nodes": "localhost", "program": launcher}, os.environ)


def _run(made, text, *args, world=2, timeout_s=60, **options):
    argv = ["sh", "-c", text, "sh", *args]
    return made.run(RunRequest(argv, made.nodes(), world, timeout_s=timeout_s, expand_placeholders=True, **options))


def _has_ended(pid):
    """Whether a process ends within ten seconds. A zombie, whose parent is not this process, has ended."""
    for _ in range(100):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.1)
    return False


@pytest.mark.parametrize("launcher", ["local", *_PROGRAMS])
def test_launcher_stops_the_other_ranks_soon_after_a_rank_is_killed(launcher):
    with closing(_opened(launcher)) as made:
        exits = _run(made, "[ {rank} = 1 ] && kill -9 $$; echo waiting; exec sleep 50")
    assert exits[1].code == 128 + signal.SIGKILL
    assert (exits[0].code, type(exits[0].fault), exits[0].out) == (None, Interrupted, b"waiting\n")


@pytest.mark.needs_root
def test_ssh_stops_the_other_ranks_soon_after_a_rank_is_killed(tmp_path):
    with closing(Sshds(tmp_path, 2)) as running, closing(ssh.launcher(running.settings(), os.environ)) as made:
        exits = _run(
            made, 'echo $$ > "$1"; [ {rank} = 1 ] && kill -9 $$; exec sleep 50', f"{tmp_path}/pid{{rank}}", world=1
        )
        assert exits[1].code == 128 + signal.SIGKILL
        assert (exits[0].code, type(exits[0].fault)) == (None, Interrupted)
        assert _has_ended((tmp_path / "pid0").read_text().strip())


def test_launcher_lets_the_other_ranks_finish_after_a_rank_fails():
    with closing(_opened("local")) as made:
        exits = _run(made, "[ {rank} = 1 ] && exit 3; sleep 5; echo done")
    assert [(each.code, each.out) for each in exits] == [(0, b"done\n"), (3, b"")]


@pytest.mark.parametrize("launcher", ["local", *_PROGRAMS])
def test_launcher_stops_the_other_ranks_after_a_rank_fails_if_the_request_says_so(launcher):
    with closing(_opened(launcher)) as made:
        exits = _run(made, "[ {rank} = 1 ] && exit 3; exec sleep 50", stops_on_failure=True)
    assert [(each.code, type(each.fault)) for each in exits] == [(None, Interrupted), (3, type(None))]


@pytest.mark.parametrize("launcher", ["local", *_PROGRAMS])
def test_command_is_killed_with_its_wrapper(launcher, tmp_path):
    with closing(_opened(launcher)) as made:
        # Open MPI's mpirun reports the killed wrapper only at the time limit.
        _run(made, 'echo $$ > "$1"; kill -9 $PPID; exec sleep 50', str(tmp_path / "pid"), world=1, timeout_s=5)
    assert _has_ended((tmp_path / "pid").read_text().strip())


@pytest.mark.parametrize("program", _PROGRAMS)
def test_ranks_of_mpirun_end_with_a_killed_penstock(program, tmp_path):
    argv = [sys.executable, "-m", "penstock", "cluster", "run", "--launcher", "mpi", "--set", f"program={program}"]
    argv += ["--nodes", "localhost", "--ranks-per-node", "2", "--"]
    argv += ["sh", "-c", 'echo $$ > "$1.new"; mv "$1.new" "$1"; exec sleep 50', "sh", f"{tmp_path}/pid{{rank}}"]
    files = [tmp_path / "pid0", tmp_path / "pid1"]
    running = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(300):
            if all(file.exists() for file in files):
                break
            time.sleep(0.1)
    finally:
        running.kill()
        running.wait()
    children = [file.read_text().strip() for file in files]
    assert all(_has_ended(pid) for pid in children)


@pytest.mark.parametrize("name", ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE"])
def test_mpi_launcher_inside_mpirun_is_refused(name):
    with pytest.raises(ConfigError, match=rf"already one of the 2 ranks of an mpirun \({name}\)") as raised:
        mpi.launcher({"nodes": "localhost"}, {**os.environ, name: "2"})
    assert "omit --launcher" in raised.value.hint

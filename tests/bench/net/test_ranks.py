# SPDX-License-Identifier: Apache-2.0
"""Tests `bench net` with real ranks: Gloo, Open MPI, MPICH, torchrun, and bad input. Issue 16, point 4."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from penstock import __version__
from penstock.bench.net import NetPlan, parse_nccl, parse_osu
from penstock.bench.net.launch import run_on_cluster
from penstock.bench.rows import read_results
from penstock.cluster import Cluster
from tests.launchers.sshd_kit import Sshds

pytestmark = [pytest.mark.system, pytest.mark.needs_torch]

PENSTOCK = str(Path(sys.executable).with_name("penstock"))
QUICK = ["--iterations", "3", "--warm-up", "1"]
# Open MPI refuses root without these; several ranks share the cores of a small machine.
_OPEN_MPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
}


def net(*arguments, before=(), code=0, timeout=100, **variables):
    done = subprocess.run(
        [*before, PENSTOCK, "bench", "net", *arguments],
        env={**os.environ, **_OPEN_MPI, **variables}, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=timeout, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stderr[-3000:]
    return done


def mpi(program, *arguments, **options):
    return net("--launcher", "mpi", "--set", f"program={program}", *arguments, **options)


@pytest.mark.parametrize("program", ["mpirun.openmpi", "mpiexec.hydra"])
@pytest.mark.parametrize("ranks", ["2", "3"])
def test_osu_tests_run_over_mpi_and_validate_their_data(program, ranks, tmp_path):
    done = mpi(program, "--ranks", ranks, "--max-size", "1KiB", "-o", str(tmp_path), *QUICK)
    tables = parse_osu(done.stdout)
    assert [table.operation for table in tables] == [
        "latency", "bw", "bibw", "allreduce", "allgather", "reduce-scatter", "bcast", "alltoall", "barrier",
    ]  # fmt: skip
    assert [len(table.rows) for table in tables] == [12, 11, 11, 9, 11, 9, 11, 11, 1]
    rows = read_results(tmp_path).rows
    assert all(row.last.time_s > 0 for row in rows)
    assert len(rows) == 86
    assert {row.raw["ranks"] for row in rows if row.operation == "osu_bcast"} == {ranks}
    library = "Open MPI" if program == "mpirun.openmpi" else "MPICH"
    assert library in rows[0].raw["library"]


def test_osu_tests_run_over_gloo_with_uneven_parts_named():
    done = net("--ranks", "3", "--max-size", "64", "reduce-scatter", "alltoall", "barrier", *QUICK)
    scatter, alltoall, barrier = parse_osu(done.stdout)
    assert f"# Penstock {__version__}, gloo of torch " in done.stdout
    # torch scatters equal parts only, and no number of floats here is a multiple of 3.
    assert (len(scatter.rows), len(alltoall.rows), len(barrier.rows)) == (0, 7, 1)
    assert "osu_reduce_scatter: gloo cannot run 4, 8, 16, 32, 64 bytes on 3 ranks" in done.stderr


@pytest.mark.parametrize("arguments", [[], ["--launcher", "mpi", "--set", "program=mpirun.openmpi"]])
def test_bind_core_gives_each_rank_one_core(arguments):
    found = json.loads(net(*arguments, "barrier", "--bind", "core", "--json", *QUICK).stdout)
    assert [len(place["cores"]) for place in found["places"]] == [1, 1]


def test_nccl_convention_has_its_columns_and_no_wrong_element():
    done = net("--convention", "nccl", "--min-size", "4KiB", "--max-size", "8KiB", *QUICK)
    texts = done.stdout.split("# Collective test starting:")[1:]
    tables = [parse_nccl("# Collective test starting:" + text) for text in texts]
    assert [table.program for table in tables] == [
        "all_reduce_perf", "all_gather_perf", "reduce_scatter_perf", "broadcast_perf", "alltoall_perf", "sendrecv_perf",
    ]  # fmt: skip
    for table in tables:
        assert [row.size_bytes for row in table.rows] == [4096, 8192]
        assert {row.out_of_place.wrong for row in table.rows} == {0}
        assert table.out_of_bounds == 0


def test_nccl_convention_over_mpi_runs_in_place_too():
    done = mpi("mpirun.openmpi", "--convention", "nccl", "--max-size", "8KiB", "reduce-scatter", "allgather", *QUICK)
    for text in done.stdout.split("# Collective test starting:")[1:]:
        [row] = parse_nccl(text).rows
        assert row.in_place.wrong == 0


def test_json_has_places_tables_pairs_and_findings():
    done = net("--ranks", "3", "latency", "--max-size", "8", "--pairs", "--rounds", "1", "--json", *QUICK)
    found = json.loads(done.stdout)
    assert [place["rank"] for place in found["places"]] == [0, 1, 2]
    assert [row["size_bytes"] for row in found["tables"][0]["rows"]] == [0, 1, 2, 4, 8]
    assert found["tables"][0]["unit"] == "us"
    assert [(pair["a"], pair["b"]) for pair in found["pairs"]] == [(0, 1), (0, 2), (1, 2)]
    assert "osu_latency" in found["verdict"]["fits"]
    assert len(found["verdict"]["pairs"]) == 3


def test_pairs_draw_a_heat_map(tmp_path):
    file = tmp_path / "pairs.svg"
    done = net("--ranks", "3", "--pairs", "--rounds", "1", "--pairs-size", "64KiB", "--chart", str(file))
    assert done.stdout.count("\n") == 10
    text = file.read_text()
    assert "Bandwidth from row to column (MB/s); darker is slower" in text
    assert "One-way latency (µs); darker is slower" in text
    assert "rank" in text


@pytest.mark.parametrize(
    "before",
    [
        ["torchrun", "--nproc-per-node", "2", "--no-python"],
        ["mpirun.openmpi", "-np", "2"],
        ["mpiexec.hydra", "-np", "2"],
    ],
)
def test_ranks_of_an_outer_launcher_print_once(before):
    if before[0] == "torchrun":
        before = [str(Path(sys.executable).with_name("torchrun")), *before[1:]]
    done = net("bw", "barrier", "--max-size", "16", *QUICK, before=before)
    assert [table.operation for table in parse_osu(done.stdout)] == ["bw", "barrier"]


def shell_python(folder, script):
    """A shell script that stands for a node's Python; with `exec PYTHON "$@"`, it becomes it."""
    python = folder / "python"
    python.write_text("#!/bin/sh\n" + script.replace("PYTHON", sys.executable) + "\n")
    python.chmod(0o755)
    return str(python)


def changed_rank(folder, change):
    """A Python of the nodes whose rank program runs the lines of `change` first."""
    program = folder / "changed.py"
    program.write_text(
        f"import os, signal, sys, time\nfrom penstock.bench.net import measure, rank\n{change}\n"
        "sys.exit(rank.main(sys.argv[1:]))\n"
    )
    return shell_python(folder, f'shift 2\nexec PYTHON {program} "$@"')


_IS_RANK_1 = "'1' in (os.environ.get('RANK'), os.environ.get('OMPI_COMM_WORLD_RANK'))"


def test_rank_that_does_not_join_is_named(tmp_path):
    """Rank 1 starts with an interpreter that never begins, as on a node that hangs."""
    python = shell_python(tmp_path, '[ "$RANK" = 1 ] && exec sleep 30\nexec PYTHON "$@"')
    done = net("barrier", "--node-python", python, "--join-timeout", "3s", "--timeout", "60s", code=3)
    assert "error[deadline]: rank 1 of 2: did not join within 3 s" in done.stderr


def test_rank_that_does_not_join_over_mpi_is_named_within_the_limit(tmp_path):
    python = shell_python(tmp_path, '[ "$OMPI_COMM_WORLD_RANK" = 1 ] && sleep 30\nexec PYTHON "$@"')
    done = mpi("mpirun.openmpi", "barrier", "--node-python", python, "--join-timeout", "3s", *QUICK, code=3)
    assert "error[deadline]: rank 1 of 2: did not join within 3 s" in done.stderr


@pytest.mark.parametrize("program", ["mpirun.openmpi", "mpiexec.hydra"])
def test_rank_inside_mpirun_does_not_wait_for_a_missing_rank_beyond_the_limit(program):
    before = ["sh", "-c", '[ "$OMPI_COMM_WORLD_RANK$PMI_RANK" = 1 ] && exec sleep 60\nexec "$@"', "sh"]
    done = subprocess.run(
        [program, "-np", "2", *before, PENSTOCK, "bench", "net", "barrier", "--join-timeout", "3s", *QUICK],
        env={**os.environ, **_OPEN_MPI}, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=40, check=False,
    )  # fmt: skip
    assert done.returncode == 3
    assert "error[deadline]: rank 0: still joining the other ranks after the limit of 3 s" in done.stderr


def test_rank_of_torchrun_whose_first_rank_is_missing_reports_only_its_error():
    done = net(
        "barrier", "--join-timeout", "2s", code=3, MASTER_ADDR="127.0.0.1", MASTER_PORT="29", WORLD_SIZE="2", RANK="1",
        LOCAL_RANK="1", LOCAL_WORLD_SIZE="2",
    )  # fmt: skip
    assert done.stderr.startswith("error[unreachable]: rank 1: no response from rank 0 at 127.0.0.1:29 within 2 s")
    assert done.stderr.count("\n") == 2


@pytest.mark.parametrize("launcher", ["local", "mpi"])
def test_stopped_rank_is_named_by_the_time_limit(launcher, tmp_path):
    """Rank 1 stops in a test in which rank 0 waits for it, as a process that hangs in a driver."""
    stop = f"if {_IS_RANK_1}: measure.expected = lambda *of, **more: os.kill(os.getpid(), signal.SIGSTOP)"
    python = changed_rank(tmp_path, stop)
    set_program = ["--set", "program=mpirun.openmpi"] if launcher == "mpi" else []
    done = net(
        "--launcher", launcher, *set_program, "bcast", "--node-python", python, "--timeout", "10s", *QUICK, code=3
    )
    assert "bench net: rank 1 of 2 did not respond during bcast of 1 bytes, and the other ranks waited" in done.stderr
    assert "--timeout" not in done.stderr


@pytest.mark.parametrize("launcher", ["local", "mpi"])
def test_rank_that_ends_with_an_unforeseen_error_is_named(launcher, tmp_path):
    """Rank 1 raises an error in a test in which rank 0 waits for it."""
    python = changed_rank(tmp_path, f"if {_IS_RANK_1}: measure.expected = lambda *of, **more: 1 / 0")
    set_program = ["--set", "program=mpirun.openmpi"] if launcher == "mpi" else []
    done = net(
        "--launcher", launcher, *set_program, "bcast", "--node-python", python, "--timeout", "60s", *QUICK, code=1
    )
    assert "error[rank-failed]: rank 1 during bcast of 1 bytes" in done.stderr
    assert "ZeroDivisionError" in done.stderr


def test_ranks_that_never_start_are_named_by_the_time_limit(tmp_path):
    done = net("barrier", "--node-python", shell_python(tmp_path, "exec sleep 30"), "--timeout", "2s", code=3)
    assert "ranks 0, 1 of 2 did not start within 2 s" in done.stderr


def test_late_rank_is_named_by_the_time_limit(tmp_path):
    """Rank 1 stops once it has joined, as a process that hangs in its file system."""
    python = changed_rank(tmp_path, f"if {_IS_RANK_1}: rank.read_place = lambda *_, **__: time.sleep(30)")
    done = net("barrier", "--node-python", python, "--timeout", "12s", code=3)
    assert (
        "rank 1 of 2 stopped at joining the other ranks, and the other ranks waited until the time limit of 12 s"
        in done.stderr
    )


def test_mpi_that_does_not_speak_with_the_launcher_is_named():
    """MPICH starts the ranks, and mpi4py loads Open MPI."""
    done = net(
        "barrier", "--backend", "mpi", before=["mpiexec.hydra", "-np", "2"], code=2, MPI4PY_MPIABI="openmpi",
        PENSTOCK_MPICH_LINK="/nonexistent",
    )  # fmt: skip
    assert "pmi started 2 ranks, but mpi4py loaded Open MPI" in done.stderr
    assert "--set program=mpirun.openmpi" in done.stderr


def test_missing_mpi4py_names_the_package(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util as u\nfound = u.find_spec\nu.find_spec = lambda name, *a: None if name == 'mpi4py' else found(name, *a)\n"
    )
    done = net("barrier", "--backend", "mpi", before=["mpirun.openmpi", "-np", "2"], code=3, PYTHONPATH=str(tmp_path))
    assert "--backend mpi requires mpi4py, which is not installed" in done.stderr
    assert "pip install 'penstock[mpi]'" in done.stderr


_ONE_GPU = ["--backend", "nccl", "--device", "cuda", "--convention", "nccl", "--ranks", "1"]


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--backend", "mpi"], "launcher local does not start MPI ranks"),
        (["--backend", "nccl"], "backend nccl: supports only GPU buffers"),
        (["--backend", "nccl", "--device", "cuda"], "this node has no CUDA device"),
        ([*_ONE_GPU, "all_reduce_perf"], "this node has no CUDA device"),
        ([*_ONE_GPU, "all_reduce_perf", "sendrecv_perf"], "--ranks: 1 is below 2"),
        (["--backend", "nccl", "--device", "cuda", "--ranks", "1"], "--ranks: 1 is below 2"),
        (["--ranks", "1"], "--ranks: 1 is below 2"),
        (["--ranks", "3", "--nodes", "2"], "3 cannot be spread evenly over 2 nodes"),
        (["--max-size", "1TiB"], "exceeds the limit"),
        (["--min-size", "8", "--max-size", "4"], "exceeds the largest"),
        (["--pair", "0,5"], "must be two different ranks"),
        (["all_reduce_perf"], "a test of convention nccl"),
        (["--chart", "x.svg"], "requires --pairs"),
        (["--pairs", "--chart", "x.pdf"], "must end in .svg or .png"),
        (["--osu-dir", "/tmp"], "cannot be compared with backend gloo"),
    ],
)
def test_bad_input_has_one_clear_error(arguments, part):
    done = net(*arguments, code=2)
    assert part in done.stderr
    assert "Traceback" not in done.stderr


def test_installed_programs_run_beside_ours(tmp_path):
    """A program of OSU's cannot be installed here, so a script prints its format from the ranks that we start."""
    (tmp_path / "osu_barrier").write_text(
        "#!/bin/sh\n[ ${OMPI_COMM_WORLD_RANK} = 0 ] || exit 0\n"
        "printf '\\n# OSU MPI Barrier Latency Test v5.3\\n# Avg Latency(us)\\n             2.50\\n'\n"
    )
    (tmp_path / "osu_bcast").write_text("#!/bin/sh\necho cannot open fabric >&2\nexit 9\n")
    for name in ("osu_barrier", "osu_bcast"):
        (tmp_path / name).chmod(0o755)
    done = mpi("mpirun.openmpi", "barrier", "bcast", "--max-size", "8", "--osu-dir", str(tmp_path), *QUICK, code=1)
    assert [table.operation for table in parse_osu(done.stdout)] == ["barrier", "bcast", "barrier"]
    assert f"osu_barrier, beside {tmp_path}/osu_barrier" in done.stderr
    assert "cannot open fabric" in done.stderr
    done = mpi("mpirun.openmpi", "barrier", "--osu-dir", str(tmp_path), "--json", *QUICK)
    [compared] = json.loads(done.stdout)["compared"]
    assert (compared["program"], compared["theirs"], compared["unit"]) == ("osu_barrier", 2.5, "us")


def test_ranks_over_ssh_meet_on_the_first_node(tmp_path):
    with closing(Sshds(tmp_path, 2)) as running, Cluster.open("ssh", running.settings()) as cluster:
        plan = NetPlan(operations=("barrier",), iterations=3, matrix=True, rounds=1, matrix_bytes=4096)
        found = run_on_cluster(plan, cluster, ranks_per_node=1, timeout_s=60)
    assert [place.rank for place in found.places] == [0, 1]
    assert (len(found.tables[0].rows), len(found.pairs)) == (1, 1)


def test_wrong_data_on_one_rank_ends_all_ranks_and_is_named(tmp_path):
    """Rank 1 expects other data than rank 0 sends, as if the network had changed it."""
    python = changed_rank(
        tmp_path,
        f"right = measure.expected\nif {_IS_RANK_1}: measure.expected = lambda *of, **more: right(*of, **more) + 1",
    )
    done = mpi("mpirun.openmpi", "bcast", "--max-size", "4", "--node-python", python, *QUICK, code=1)
    assert "error[corrupt]" in done.stderr
    assert "bcast of 1 bytes: wrong data on 1 of 2 ranks: 1 (1 elements)" in done.stderr


@pytest.mark.parametrize("launcher", ["local", "mpi"])
def test_killed_rank_ends_all_ranks_and_is_named(launcher, tmp_path):
    """Rank 1 is killed in a test, as by the kernel if memory is short."""
    python = changed_rank(tmp_path, f"if {_IS_RANK_1}: measure.expected = lambda *of, **more: os.kill(os.getpid(), 9)")
    program = ["--set", "program=mpirun.openmpi"] if launcher == "mpi" else []
    done = net(
        "--launcher", launcher, *program, "bcast", "barrier", "--node-python", python, "--timeout", "90s", *QUICK,
        code=1, timeout=60,
    )  # fmt: skip
    assert "error[rank-failed]: rank 1 during bcast of 1 bytes: " in done.stderr
    assert "killed by signal 9 (SIGKILL)" in done.stderr

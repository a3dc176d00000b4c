# SPDX-License-Identifier: Apache-2.0
"""Tests `bench app` on real programs: MPI, LAMMPS, torchrun, Charliecloud, failures and interruptions. Issue 16.

Machines of the tests are shared, so no test checks a rate; they check what ran, and how it is reported.
"""

from __future__ import annotations

import ctypes.util
import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.bench.app_program import FOLDERS, build
from tests.launchers.image_kit import PROGRAMS, make_image

_FIGURE = ("--figure", r"Mterms/s=^rate: ([0-9.]+)", "--world", r"on (\d+) ranks")
_OPEN = ("--set", "program=mpirun.openmpi")


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """A small program of Open MPI; see app_kit.c."""
    return build(tmp_path_factory.mktemp("app"))


@pytest.fixture
def app(run_cli):
    """`app(FLAGS..., "--", COMMAND...)` runs `bench app --json`; returns its exit code, its document and its messages."""

    def run(*args):
        at = args.index("--")
        done = run_cli("bench", "app", "--warm-up", "0", *args[:at], "--json", *args[at:], timeout_s=100)
        assert done.out, done.err
        return done.code, json.loads(done.out), done.err

    return run


def _cells(document):
    return {(c["variant"], c["ranks"]): c for c in document["cells"]}


def test_strong_scaling_of_an_mpi_program_has_efficiency_and_fit(app, program):
    code, found, messages = app(
        "--ranks", "1,2", "--repeats", 2, *_OPEN, *_FIGURE, "--bind", "core", "--", program, 3_000_000
    )
    assert code == 0, found
    cells = _cells(found)
    assert [len(cell["runs"]) for cell in cells.values()] == [2, 2]
    assert all(run["value"] > 0 and run["wall_s"] > 0 for cell in cells.values() for run in cell["runs"])
    assert "Open MPI" in cells["native", 2]["mpi"]
    cpus = cells["native", 2]["runs"][0]["cpus"]
    assert len(cpus) == len(set(cpus)) == 2, "ranks are bound to one core each"
    [variant] = found["summary"]["variants"]
    assert variant["fit"]["law"] == "Amdahl"
    assert variant["cells"][1]["efficiency"]["low"] < variant["cells"][1]["efficiency"]["value"]
    assert "run 4 of 4: native, 1 rank: " in messages
    assert found["complete"]
    assert found["machine"]["machine"]["cores"] >= 1


def test_weak_scaling_with_mpi4py_grows_the_problem(app, tmp_path):
    script = tmp_path / "sum.py"
    script.write_text(
        "import sys\nfrom mpi4py import MPI\n"
        "world = MPI.COMM_WORLD\n"
        "total = world.allreduce(sum(range(world.rank, int(sys.argv[1]), world.size)))\n"
        "if world.rank == 0:\n    print(f'sum {total} of {sys.argv[1]} on {world.size} ranks')\n"
    )
    code, found, _ = app(
        "--ranks", "1,2", "--repeats", 1, *_OPEN, "--scaling", "weak", "--size", 1000, "--figure", r"terms=of (\d+)",
        "--world", r"on (\d+) ranks", "--", sys.executable, script, "{size}",
    )  # fmt: skip
    assert code == 0, found
    assert [cell["runs"][0]["value"] for cell in found["cells"]] == [1000, 2000]
    assert found["summary"]["variants"][0]["fit"]["law"] == "Gustafson"


def test_size_that_fails_is_a_row_and_the_sweep_goes_on(app, program):
    code, found, _ = app("--ranks", "1,2,3", "--repeats", 2, *_OPEN, *_FIGURE, "--", program, 1000, 2)
    assert code == 1
    cells = _cells(found)
    assert "exit code 3: not enough memory on 2 ranks" in cells["native", 2]["error"]
    assert cells["native", 2]["runs"] == []
    assert [len(cells["native", ranks]["runs"]) for ranks in (1, 3)] == [2, 2]
    assert found["summary"]["failed"] == 1


@pytest.mark.parametrize(
    ("args", "command", "message"),
    [
        (("--figure", "x=no such line (.*)"), ("echo", "hello"), "matches nothing in 7 characters"),
        (("--figure", "x=([0-9])"), ("echo", "1 2"), "matches 2 times: 1, 2"),
        (("--figure", "x=(h.*)"), ("echo", "hello"), "matched 'hello', which is not a number"),
        (("--timeout", "500ms"), ("sleep", "60"), "stopped after its limit of 0.5 s"),
        ((), ("/no/such/program",), "No such file or directory"),
        ((), ("sh", "-c", "echo ERROR: no input script; exit 1"), "rank 0 on n0: exit code 1: ERROR: no input script"),
        (("--bind", "near-nic:mlx5_99"), ("true",), "no adapter `mlx5_99`"),
    ],
)
def test_run_that_cannot_be_read_or_started_is_a_row_with_the_reason(app, args, command, message):
    code, found, _ = app("--launcher", "local", "--ranks", 1, "--repeats", 1, *args, "--", *command)
    assert code == 1
    assert message in found["cells"][0]["error"]


def test_killed_rank_is_named(app):
    command = ("sh", "-c", "[ $RANK = 1 ] && kill -9 $$; exec sleep 50")
    _, found, _ = app("--launcher", "local", "--ranks", 2, "--repeats", 1, "--timeout", "60s", "--", *command)
    assert "rank 1 on n0: killed by signal 9 (SIGKILL)" in found["cells"][0]["error"]


def test_ranks_of_another_mpi_family_are_named(app, program):
    code, found, _ = app(
        "--ranks", "1,2", "--repeats", 1, "--set", "program=mpiexec.hydra", *_FIGURE, "--", program, 1000
    )
    assert code == 1
    cells = _cells(found)
    assert cells["native", 1]["error"] is None
    text = cells["native", 2]["error"]
    assert "Open MPI v4" in text
    assert "MPICH's Hydra" in text
    assert "every rank reports world size 1 instead of 2" in text
    assert "--set program=mpirun.openmpi for Open MPI" in cells["native", 2]["hint"]


def test_mpi4py_of_mpich_forms_one_job_under_its_own_launcher(app, tmp_path, monkeypatch):
    """MPICH's ranks find each other over a socket that the check has to pass on to the command's interpreter."""
    loaded = ctypes.util.find_library("mpich")
    if loaded is None:
        pytest.fail("libmpich is not here; `make setup-peers` installs MPICH", pytrace=False)
    folder = next(Path(each) for each in FOLDERS if Path(each, loaded).exists())
    (tmp_path / "libmpi.so.12").symlink_to(folder / loaded)  # the name that mpi4py's wheels load
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    monkeypatch.setenv("MPI4PY_MPIABI", "mpich")
    code, found, _ = app(
        "--ranks", "2", "--repeats", 1, "--set", "program=mpiexec.hydra", "--world", r"on (\d+) ranks",
        "--", sys.executable, "-c", "from mpi4py import MPI; print(f'on {MPI.COMM_WORLD.size} ranks')",
    )  # fmt: skip
    assert code == 0, found["cells"][0]["error"]
    assert "MPICH" in found["cells"][0]["mpi"]


def test_world_expression_finds_separate_jobs_without_the_check(app, program):
    code, found, _ = app(
        "--ranks", "2", "--repeats", 1, "--launcher", "local", "--no-mpi-check", *_FIGURE, "--", program, 1000
    )
    assert code == 1
    assert "2 ranks each report world size 1 instead of 2" in found["cells"][0]["error"]


@pytest.fixture
def charliecloud(tmp_path, program):
    """Arguments that add the container: this machine's programs under another root."""
    folder = make_image(tmp_path / "image")
    shutil.copy(program, folder / "data/app_kit")
    return ("--container", f"charliecloud:{folder}", "--container-bind", PROGRAMS)


def test_native_and_container_are_interleaved_by_both_ways(app, program, charliecloud):
    code, found, messages = app(
        "--ranks", "1,2", "--repeats", 2, *_OPEN, *_FIGURE, *charliecloud, "--ways", "host-mpirun,inside", "--", program, 100_000,
    )  # fmt: skip
    assert code == 0, found
    names = ["native", "charliecloud, host mpirun", "charliecloud, mpirun inside"]
    assert [variant["variant"] for variant in found["summary"]["variants"]] == names
    assert {(o["variant"], o["ranks"]) for o in found["summary"]["overheads"]} == {
        (n, r) for n in names[1:] for r in (1, 2)
    }
    for overhead in found["summary"]["overheads"]:
        assert overhead["cost"]["low"] < overhead["cost"]["value"] < overhead["cost"]["high"]
        assert overhead["sentence"].startswith(("no difference shown, ≤", "costs", "saves", "no conclusion"))
    order = [line.partition(": ")[2].rpartition(": ")[0] for line in messages.splitlines() if line.startswith("run ")]
    one_round = [f"{name}, {ranks}" for ranks in ("1 rank", "2 ranks") for name in names]
    assert order == [*one_round, *reversed(one_round)]


def test_program_runs_in_the_container_and_not_outside(app, charliecloud):
    code, found, _ = app(
        "--ranks",
        2,
        "--repeats",
        1,
        *_OPEN,
        *_FIGURE,
        *charliecloud,
        "--ways",
        "host-mpirun,inside",
        "--",
        "/data/app_kit",
        1000,
    )
    assert code == 1
    errors = {cell["variant"]: cell["error"] for cell in found["cells"]}
    assert "No such file" in errors.pop("native")
    assert errors == {"charliecloud, host mpirun": None, "charliecloud, mpirun inside": None}


_LARGE = """
from mpi4py import MPI
world = MPI.COMM_WORLD
data = bytearray(4 << 20)
world.Recv(data, 0) if world.rank else world.Send(data, 1)
print(f"on {world.size} ranks")
"""


def test_large_messages_arrive_between_containers_of_their_own(app, charliecloud):
    """Linux refuses direct copies between user namespaces, and Open MPI then waits forever."""
    python = [f"--container-bind={path}:{path}" for path in {sys.base_prefix, sys.prefix}]
    code, found, _ = app(
        "--ranks", 2, "--repeats", 1, *_OPEN, "--timeout", "60s", "--world", r"on (\d+) ranks", *charliecloud, *python,
        "--", sys.executable, "-c", _LARGE,
    )  # fmt: skip
    assert code == 0, found["cells"]
    assert any("OMPI_MCA_btl_vader_single_copy_mechanism=none" in note for note in found["summary"]["notes"])


def test_ranks_in_a_container_start_in_the_current_folder(app, charliecloud, tmp_path, monkeypatch):
    folder = Path("/mnt/penstock-test-cwd")  # outside /tmp, which ch-run mounts itself
    image = Path(charliecloud[1].partition(":")[2])
    flags = ("--launcher", "local", "--ranks", 1, "--repeats", 1)
    (tmp_path / "job").mkdir()
    (tmp_path / "job/input").touch()
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # ch-run mounts it at /tmp
    monkeypatch.chdir(tmp_path / "job")
    assert app(*flags, *charliecloud, "--", "test", "-e", "input")[0] == 0
    # The image's folder is mounted on a folder that it lacks.
    monkeypatch.chdir("/")
    monkeypatch.setenv("TMPDIR", "/tmp")
    bound = (*charliecloud, "--container-bind", f"{tmp_path}/job:{folder}", "--cwd", f"{tmp_path}/job")
    code, found, _ = app(*flags, *bound, "--", "sh", "-c", "test -e input && pwd")
    assert code == 0, found["cells"]
    assert (image / "mnt/penstock-test-cwd").is_dir()


def test_preset_runs_in_a_container_if_tmpdir_is_set(app, charliecloud, tmp_path, monkeypatch):
    """ch-run mounts TMPDIR at /tmp, so a file below TMPDIR has another path in the container."""
    if shutil.which("lmp") is None:
        pytest.fail("lmp is not here; `make setup-peers` installs LAMMPS", pytrace=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    code, found, _ = app(
        "--preset", "lammps-lj", "--size", 0.1, "--ranks", 2, "--repeats", 1, *_OPEN, *charliecloud, "--ways", "host-mpirun,inside", "--",
    )  # fmt: skip
    assert code == 0, found["cells"]


def test_container_with_another_mpi_than_the_host_is_named(app, program, charliecloud):
    _, found, _ = app(
        "--ranks", 2, "--repeats", 1, "--set", "program=mpiexec.hydra", *charliecloud, "--", program, 1000
    )
    text = _cells(found)["charliecloud, host mpirun", 2]["error"]
    assert "the MPI of charliecloud:" in text
    assert "(Open MPI v4" in text
    assert "every rank reports world size 1 instead of 2" in text


def test_lammps_scales_over_one_and_two_cores(app):
    if shutil.which("lmp") is None:
        pytest.fail("lmp is not here; `make setup-peers` installs LAMMPS", pytrace=False)
    code, found, _ = app(
        "--preset",
        "lammps-lj",
        "--size",
        0.25,
        "--ranks",
        "1,2",
        "--repeats",
        1,
        *_OPEN,
        "--bind",
        "core",
        "--",
    )
    assert code == 0, found
    assert [cell["runs"][0]["value"] > 0 for cell in found["cells"]] == [True, True]
    assert found["summary"]["quantity"] == "timesteps/s"
    assert "Open MPI" in _cells(found)["native", 2]["mpi"]


@pytest.mark.needs_torch
def test_torchrun_starts_the_ranks_with_their_variables(app):
    show = "import os; print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])"
    code, found, _ = app(
        "--launcher", "torchrun", "--ranks", 2, "--repeats", 1, "--world", r"of (\d+)", "--figure", r"world=of (\d+)", "--pick", "sum",
        "--", sys.executable, "-c", show,
    )  # fmt: skip
    assert code == 0, found
    assert found["cells"][0]["runs"][0]["value"] == 4


def test_two_bindings_of_a_sweep_file_are_compared(app, tmp_path, program):
    file = tmp_path / "sweep.toml"
    file.write_text(
        f"command = ['{program}', '100000']\nlauncher = 'mpi'\nranks = [2]\nrepeats = 2\nwarm-up = 0\n"
        "[set]\nprogram = 'mpirun.openmpi'\n"
        "[figure]\nname = 'Mterms/s'\npattern = '^rate: ([0-9.]+)'\n"
        "[[variant]]\nname = 'apart'\nbind = 'cpus:0/1'\n"
        "[[variant]]\nname = 'together'\nbind = 'cpus:0'\n"
    )
    code, found, _ = app("--sweep", file, "--repeats", 3, "--")
    assert code == 0, found
    cells = _cells(found)
    assert cells["apart", 2]["runs"][0]["cpus"] == ["0", "1"]
    assert cells["together", 2]["runs"][0]["cpus"] == ["0", "0"]
    assert cells["together", 2]["notes"] == ["2 ranks share 1 CPU"]
    assert len(cells["apart", 2]["runs"]) == 3, "the flag overrides the file"
    assert [o["variant"] for o in found["summary"]["overheads"]] == ["together"]


def test_dry_run_prints_every_command_line_and_starts_nothing(run_cli, tmp_path):
    marker = tmp_path / "started"
    done = run_cli(
        "bench", "app", "--dry-run", "--ranks", 2, *_OPEN, "--container", "apptainer:md.sif", "--bind", "core", "--", "touch", marker
    )  # fmt: skip
    assert done.code == 0, done.err
    native, contained = [line for line in done.out.splitlines() if line.startswith("mpirun.openmpi")]
    assert "--bind-to core:overload-allowed" in native
    assert '"prefix": ["apptainer", "exec", "md.sif"]' in contained
    assert not marker.exists()


def test_dry_run_has_arguments_and_folders_of_each_runtime(run_cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    flags = ("bench", "app", "--dry-run", "--json", "--launcher", "local", "--ranks", 1)

    def prefix(runtime, *more):
        done = run_cli(*flags, "--container", f"{runtime}:md.sif", "--container-arg=--x", *more, "--", "true")
        assert done.code == 0, done.err
        return done.out

    for runtime in ("docker", "podman"):
        text = prefix(runtime)
        assert f"--volume={tmp_path}:{tmp_path}" in text
        assert f"--workdir={tmp_path}" in text
        assert '"--x\\", \\"md.sif' in text
    assert "--workdir=/data/deep" in prefix("docker", "--cwd", "deep", "--container-bind", f"{tmp_path}:/data")
    assert "--pwd" not in prefix("apptainer")
    assert f"--pwd={tmp_path}/deep" in prefix("apptainer", "--cwd", "deep")


def test_preset_takes_the_users_program_and_pick(app):
    code, found, _ = app(
        "--launcher", "local", "--ranks", 1, "--repeats", 1, "--preset", "gromacs", "--pick", "last",
        "--", "printf", r"Performance: 1.0\nPerformance: 2.0\n",
    )  # fmt: skip
    assert code == 0, found
    assert found["cells"][0]["runs"][0]["value"] == 2.0
    assert found["spec"]["figure"]["kind"] == "step-rate"


def test_nodes_setting_of_mpirun_is_kept(run_cli):
    done = run_cli(
        "bench", "app", "--dry-run", "--ranks", 2, *_OPEN, "--set", "nodes=h1,h2", "--node-counts", 2, "--", "true"
    )
    assert done.code == 0, done.err
    assert "h1:1,h2:1" in done.out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--ranks", "2,x", "--", "true"), "not a valid integer"),
        (("--figure", "x", "--", "true"), "is not NAME=REGEX"),
        (("--container", "image.sif", "--", "true"), "is not RUNTIME:IMAGE"),
        (("--container", "docker:i", "--ways", "inside", "--", "true"), "does not support mpirun inside"),
        (
            ("--launcher", "local", "--container", "charliecloud:i", "--ways", "inside", "--", "true"),
            "cannot run inside",
        ),
        (("--ways", "inside", "--", "true"), "--ways needs --container"),
        (("--container-bind", "/a:/b", "--", "true"), "--container-bind needs --container"),
        (("--container-gpus", "--", "true"), "--container-gpus needs --container"),
        (("--container-arg", "-w", "--", "true"), "--container-arg needs --container"),
        (("--container", "charliecloud:/no/image", "--", "true"), "the image /no/image does not exist"),
        (("--container", "apptainer:md.sif", "--", "true"), "apptainer is not installed hint: install Apptainer"),
        (
            ("--container", "charliecloud:i", "--cwd", "/no/folder", "--", "true"),
            "charliecloud:i cannot see the folder /no/folder",
        ),
        (
            ("--ranks", "4", "--node-counts", "2", "--nodes", "localhost", "--", "true"),
            "needs 2 nodes, but the launcher has 1",
        ),
        (("--bind", "socket", "--", "true"), "bind: `socket`"),
        (("--set", "program=no-such-mpirun", "--", "true"), "install openmpi-bin or mpich"),
        ((), "give a command after --"),
        (("--sweep", "/no/such.toml"), "does not exist"),
        (("--sweep", "/x", "--bind", "core"), "--bind cannot be combined"),
        (("--sweep", "/x", "--ways", "inside"), "--ways cannot be combined"),
        (("--sweep", "/x", "--container-gpus"), "--container-gpus cannot be combined"),
        (("--pick", "last", "--", "true"), "--pick and --figure-kind need --figure"),
        (("--launcher", "slurm", "--", "true"), "not in a Slurm allocation"),
    ],
)
def test_bad_input_is_one_clear_error(run_cli, args, message):
    done = run_cli("bench", "app", *args)
    assert done.code in (2, 3), done.out
    assert message in " ".join(done.err.split())


def test_interrupted_sweep_ends_its_ranks_and_keeps_its_results(tmp_path):
    script = 'if [ -e "$0" ]; then echo $$ > "$0.pid"; sleep 60; else touch "$0"; fi'
    argv = [sys.executable, "-m", "penstock", "bench", "app", "--launcher", "local", "--ranks", "1", "--warm-up", "0"]
    argv += ["--repeats", "5", "-o", str(tmp_path), "--", "sh", "-c", script, str(tmp_path / "mark")]
    running = subprocess.Popen(argv, stderr=subprocess.DEVNULL)
    pid = tmp_path / "mark.pid"
    for _ in range(300):
        if pid.exists() and pid.read_text().strip():
            break
        time.sleep(0.1)
    running.send_signal(signal.SIGINT)
    assert running.wait(30) == 130
    found = json.loads((tmp_path / "scaling.json").read_text())
    assert not found["complete"]
    assert len(found["cells"][0]["runs"]) == 1
    assert not Path(f"/proc/{pid.read_text().strip()}").exists()

# SPDX-License-Identifier: Apache-2.0
import socket
import time
from dataclasses import replace

import pytest

from penstock.errors import ConfigError
from penstock.ranks import Rank, await_server, detect, global_rank, local_rendezvous, place
from tests.ports import free_port

SLURM = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "2",
    "SLURM_NTASKS": "6",
    "SLURM_NNODES": "3",
    "SLURM_NTASKS_PER_NODE": "2",
    "SLURM_PROCID": "3",
    "SLURM_NODEID": "1",
    "SLURM_LOCALID": "1",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "6",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "n1",
}
HYDRA = {"PMI_RANK": "3", "PMI_SIZE": "6", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2", "PMI_JOBID": "j"}
PALS = {
    "PMI_RANK": "3",
    "PMI_SIZE": "6",
    "PALS_NODEID": "1",
    "PALS_LOCAL_RANKID": "1",
    "PALS_LOCAL_SIZE": "2",
    "PALS_APID": "a",
}
TORCHRUN = {
    "RANK": "3", "WORLD_SIZE": "6", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1", "GROUP_WORLD_SIZE": "3",
    "TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": "h", "MASTER_PORT": "29500",
}  # fmt: skip
HOROVOD = {
    "HOROVOD_RANK": "3", "HOROVOD_SIZE": "6", "HOROVOD_LOCAL_RANK": "1", "HOROVOD_LOCAL_SIZE": "2",
    "HOROVOD_CROSS_RANK": "1", "HOROVOD_CROSS_SIZE": "3",
}  # fmt: skip
MVAPICH = {
    "MV2_COMM_WORLD_RANK": "3", "MV2_COMM_WORLD_SIZE": "6", "MV2_COMM_WORLD_LOCAL_RANK": "1", "MV2_COMM_WORLD_LOCAL_SIZE": "2",
    "MPIRUN_ID": "77",
}  # fmt: skip
FLUX = {
    "FLUX_TASK_RANK": "3", "FLUX_JOB_SIZE": "6", "FLUX_TASK_LOCAL_ID": "1", "FLUX_JOB_NNODES": "3", "FLUX_JOB_ID": "f1",
}  # fmt: skip
LAUNCHERS = {
    "slurm": SLURM, "openmpi": OPEN_MPI, "pmi": HYDRA, "torchrun": TORCHRUN, "horovod": HOROVOD, "mvapich": MVAPICH,
    "flux": FLUX,
}  # fmt: skip


@pytest.mark.parametrize(("launcher", "env"), [*LAUNCHERS.items(), ("pmi", PALS)])
def test_rank_under_each_launcher_is_the_same_place(launcher, env):
    found = detect(env)
    assert (found.node, found.nodes, found.local_rank, found.rank, found.world) == (1, 3, 1, 3, 6)
    assert found.launcher == launcher
    assert (found.launch_id is None) == (launcher == "horovod")


def test_rank_without_a_launcher_is_single():
    assert detect({}) == Rank()
    # An interactive shell inside salloc.
    assert detect({k: v for k, v in SLURM.items() if k in ("SLURM_JOB_ID", "SLURM_NNODES", "SLURM_NTASKS")}) == Rank()
    assert detect({"RANK": "captain"}) == Rank()


@pytest.mark.parametrize(
    ("env", "launcher"),
    [
        ({**SLURM, **TORCHRUN}, "torchrun"),
        ({**SLURM, **OPEN_MPI}, "openmpi"),
        ({**OPEN_MPI, **HOROVOD}, "horovod"),
        ({**SLURM, **HYDRA}, "slurm"),  # srun --mpi=pmi2
        ({**SLURM, **HYDRA, "SLURM_NTASKS": "3", "SLURM_PROCID": "1", "SLURM_LOCALID": "0"}, "pmi"),  # Hydra over srun
    ],
)
def test_rank_under_nested_launchers_is_the_inner_ones(env, launcher):
    assert detect(env).launcher == launcher


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_rank_from_half_set_variables_is_refused_by_name(launcher):
    env = LAUNCHERS[launcher]
    needed = {
        "slurm": ["SLURM_NTASKS", "SLURM_NODEID", "SLURM_NNODES", "SLURM_LOCALID"],
        "openmpi": [n for n in env if n.startswith("OMPI")],
        "pmi": ["PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"],
        "torchrun": ["RANK", "WORLD_SIZE", "LOCAL_RANK"],
        "mvapich": [n for n in env if n.startswith("MV2")],
        "flux": ["FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID", "FLUX_JOB_NNODES"],
        "horovod": ["HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_CROSS_SIZE"],
    }[launcher]
    for name in needed:
        with pytest.raises(ConfigError, match=name):
            detect({k: v for k, v in env.items() if k != name})
        with pytest.raises(ConfigError, match=name):
            detect({**env, name: "many"})


@pytest.mark.parametrize(
    ("env", "named"),
    [
        ({**SLURM, "SLURM_NODEID": "3"}, "SLURM_NODEID"),
        ({**SLURM, "SLURM_PROCID": "6"}, "SLURM_PROCID"),
        ({**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_RANK": "0"}, "LOCAL_RANK"),  # --map-by node
        ({**OPEN_MPI, "OMPI_COMM_WORLD_SIZE": "7"}, "LOCAL_RANK"),  # uneven nodes
        ({**TORCHRUN, "GROUP_RANK": "3"}, "GROUP_RANK"),
        ({**HOROVOD, "HOROVOD_RANK": "6"}, "HOROVOD_RANK"),
        ({**PALS, "PALS_NODEID": "2"}, "PALS_NODEID"),
        ({**MVAPICH, "MV2_COMM_WORLD_LOCAL_RANK": "0"}, "LOCAL_RANK"),
        ({**FLUX, "FLUX_JOB_NNODES": "4"}, "FLUX_JOB_SIZE"),  # 6 tasks on 4 nodes
        ({**FLUX, "FLUX_TASK_LOCAL_ID": "0"}, "FLUX_TASK_LOCAL_ID"),  # cyclic
    ],
)
def test_rank_from_contradictory_variables_is_refused_by_name(env, named):
    with pytest.raises(ConfigError, match=named) as caught:
        detect(env)
    assert "--node" in (caught.value.hint or "")


def test_rank_placed_in_blocks_or_refused_on_some_rank():
    # For any other placement than blocks, at least one rank must raise an error.
    nodes, size = 3, 2

    def env(rank, local):
        return {
            "OMPI_COMM_WORLD_RANK": str(rank),
            "OMPI_COMM_WORLD_SIZE": "6",
            "OMPI_COMM_WORLD_LOCAL_RANK": str(local),
            "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
        }

    assert [detect(env(r, r % size)).node for r in range(6)] == [0, 0, 1, 1, 2, 2]
    refused = 0
    for r in range(6):
        try:
            detect(env(r, r // nodes))
        except ConfigError:
            refused += 1
    assert refused


def test_flags_win_over_launchers_and_keep_the_local_rank():
    found = place(SLURM, 0, 5)
    assert (found.node, found.nodes, found.local_rank) == (0, 5, 1)
    assert place({"SLURM_PROCID": "x"}, 2, 3).node == 2
    assert place(SLURM, None, None) == detect(SLURM)


@pytest.mark.parametrize(("node", "nodes"), [(1, None), (None, 3), (3, 3), (-1, 3), (0, 0)])
def test_flags_that_cannot_be_are_refused(node, nodes):
    with pytest.raises(ConfigError, match="--node"):
        place({}, node, nodes)


def test_rank_zero_without_a_step_is_told_about_srun():
    batch = {**SLURM, "SLURM_PROCID": "0", "SLURM_NODEID": "0", "SLURM_LOCALID": "0"}
    del batch["SLURM_STEP_ID"]
    assert "srun" in (detect(batch).note or "")
    assert detect(SLURM).note is None


def _pbs(tmp_path, lines, **more):
    (tmp_path / "nodes").write_text("".join(f"{line}\n" for line in lines))
    return {"PBS_NODEFILE": str(tmp_path / "nodes"), "PBS_JOBID": "9.head", **more}


def test_rank_under_pbs_is_found_by_host_or_by_pbsdsh(tmp_path):
    lines = ["n1.lab", "n1.lab", "n2.lab", "n2.lab", "n3.lab", "n3.lab"]
    found = detect(_pbs(tmp_path, lines), host="n2")
    assert (found.node, found.nodes, found.local_rank, found.world, found.launcher) == (1, 3, 0, 3, "pbs")
    each = [detect(_pbs(tmp_path, lines, PBS_NODENUM=str(at // 2), PBS_VNODENUM=str(at)), host="x") for at in range(6)]
    assert [(r.node, r.local_rank, r.rank, r.world) for r in each] == [(at // 2, at % 2, at, 6) for at in range(6)]
    assert {r.launch_id for r in each} == {"pbs-9.head"}
    # A batch script runs on the first node only.
    assert "pbsdsh" in (detect(_pbs(tmp_path, lines, PBS_ENVIRONMENT="PBS_BATCH"), host="n1").note or "")


def test_rank_under_pbs_unknown_number_is_refused(tmp_path):
    for env, host in [
        (_pbs(tmp_path, ["n1", "n2"]), "elsewhere"),
        ({"PBS_NODEFILE": str(tmp_path / "none")}, "n1"),
        (_pbs(tmp_path, ["n1", "n2"], PBS_NODENUM="7"), "elsewhere"),
    ]:
        with pytest.raises(ConfigError, match="PBS_NODE"):
            detect(env, host=host)


def test_uneven_ranks_are_refused_on_some_rank():
    # With mpirun -H a:3,b:1, no rank can derive the number of nodes from its variables.
    names = ["RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"]
    uneven = [(0, 4, 0, 3), (1, 4, 1, 3), (2, 4, 2, 3), (3, 4, 0, 1)]
    refused = 0
    for values in uneven:
        env = {f"OMPI_COMM_WORLD_{name}": str(value) for name, value in zip(names, values, strict=True)}
        try:
            detect(env)
        except ConfigError:
            refused += 1
    assert refused == 3


def test_allocation_of_another_size_than_its_ranks_is_told_on_the_first_rank(tmp_path):
    first = {**OPEN_MPI, "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}
    assert "Slurm gave this job 4 nodes, but openmpi started its ranks on 3" in (
        detect({**first, "SLURM_JOB_NUM_NODES": "4"}).note or ""
    )
    assert detect({**first, "SLURM_JOB_NUM_NODES": "3"}).note is None
    assert detect({**OPEN_MPI, "SLURM_JOB_NUM_NODES": "4"}).note is None
    assert "PBS gave this job 1 node, but" in (detect({**first, **_pbs(tmp_path, ["n1", "n1"])}).note or "")


@pytest.mark.parametrize("more", [{}, {"LOCAL_RANK": "1"}, SLURM])
def test_global_rank_needs_only_the_variables_of_env_init(more):
    assert global_rank({**more, "RANK": "3", "WORLD_SIZE": "6", "MASTER_ADDR": "h", "MASTER_PORT": "1"}) == (3, 6)


@pytest.mark.parametrize(("variables", "missing"), [({"RANK": "1"}, "WORLD_SIZE"), ({"WORLD_SIZE": "2"}, "RANK")])
def test_global_rank_from_one_of_the_two_variables_is_refused(variables, missing):
    with pytest.raises(ConfigError, match=f"{missing}: not set, although {next(iter(variables))} is ") as caught:
        global_rank(variables)
    assert "pass rank= and world=" in str(caught.value.__notes__)
    assert global_rank({**variables, "SLURM_JOB_ID": "7", **SLURM}) == (3, 6)


@pytest.mark.parametrize("variables", [{"RANK": "captain"}, {"WORLD_SIZE": "1"}, {"WORLD_SIZE": "large"}])
def test_global_rank_ignores_variables_that_show_no_job(variables):
    assert global_rank(variables) == (0, 1)


def test_global_rank_of_contradictory_variables_names_the_arguments_of_a_loader():
    assert global_rank({}) == (0, 1)
    for variables in (
        {"RANK": "6", "WORLD_SIZE": "6"},
        {**TORCHRUN, "LOCAL_RANK": "0"},
        {"WORLD_SIZE": "2", "LOCAL_RANK": "0", "RANK": "x"},
    ):
        with pytest.raises(ConfigError, match="RANK") as caught:
            global_rank({key: value for key, value in variables.items() if not key.startswith("GROUP")})
    with pytest.raises(ConfigError, match="PMI_SIZE") as caught:
        global_rank({"PMI_RANK": "1"})
    assert "pass rank= and world=" in str(caught.value.__notes__)


def test_local_rendezvous_is_the_same_on_all_ranks_of_a_launch_and_none_over_nodes():
    first, second = (Rank(rank=rank, world=2, launch_id="ompi-7") for rank in (0, 1))
    address, port = local_rendezvous(first)
    assert local_rendezvous(second) == (address, port)
    assert address == "127.0.0.1"
    assert 20000 <= port < 32000
    assert local_rendezvous(replace(first, launch_id="ompi-8")) != (address, port)
    assert local_rendezvous(replace(first, launch_id=None)) == ("127.0.0.1", 29500)
    assert local_rendezvous(replace(first, nodes=2)) is None


def test_await_server_returns_once_a_server_listens_and_ends_by_the_deadline():
    port = free_port()
    began = time.monotonic()
    with pytest.raises(ConnectionRefusedError):
        await_server("127.0.0.1", port, began + 0.3)
    assert time.monotonic() - began >= 0.2
    with socket.create_server(("127.0.0.1", port)):
        await_server("127.0.0.1", port, time.monotonic() + 5)

# SPDX-License-Identifier: Apache-2.0
"""Tests the binding of ranks to CPUs: the choice near devices, and what each launcher gives its ranks. Issue 16, point 7."""

from __future__ import annotations

import ctypes
import json
import os
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import cpu_binding
from penstock.cpu_binding import allowed_cpus, format_cpus, parse_cpus, rank_cpus
from penstock.errors import ConfigError, Unsupported
from penstock.launchers import mpi
from penstock.launchers.local import launcher
from penstock.launchers.slurm import SlurmLauncher
from penstock.protocols import Node, RunRequest

_SHOW = ["sh", "-c", "sed -n 's/Cpus_allowed_list:[[:space:]]*//p' /proc/self/status"]
_ALL = list(range(8))


@given(st.sets(st.integers(0, 200)))
def test_cpu_list_round_trips(cpus):
    assert parse_cpus(format_cpus(cpus)) == sorted(cpus)


@pytest.fixture(autouse=True)
def without_nvml(monkeypatch):
    def missing():
        raise OSError("libnvidia-ml.so.1: cannot open shared object file")

    monkeypatch.setattr(cpu_binding, "_nvml", missing)


def nvml(*gpus):
    """NVML of a process that may use GPUs of these (address, UUID)."""

    def count(out):
        out._obj.value = len(gpus)
        return 0

    def handle(index, out):
        out._obj.value = index.value + 1
        return 0

    def pci(at, out):
        out._obj.address = f"00000000:{gpus[at.value - 1][0]}".encode()
        return 0

    def uuid(at, out, size):
        out.value = gpus[at.value - 1][1].encode()
        return 0

    return lambda: SimpleNamespace(
        nvmlInit_v2=lambda: 0,
        nvmlDeviceGetCount_v2=count,
        nvmlDeviceGetHandleByIndex_v2=handle,
        nvmlDeviceGetPciInfo_v3=pci,
        nvmlDeviceGetUUID=uuid,
    )


@pytest.fixture
def two_sockets(tmp_path):
    """Sysfs of a node with CPUs 0-3 and 4-7: two GPUs at each socket, the adapter mlx5_0 at socket 1."""
    for at, cpus in enumerate(("0-3", "4-7")):
        node = tmp_path / f"devices/system/node/node{at}"
        node.mkdir(parents=True)
        (node / "cpulist").write_text(cpus + "\n")
    devices = [("05:00.0", "0x030200", "0x10de", "0-3"), ("06:00.0", "0x030200", "0x10de", "0-3")]
    devices += [("84:00.0", "0x030200", "0x10de", "4-7"), ("85:00.0", "0x030200", "0x10de", "4-7")]
    devices += [("01:00.0", "0x030000", "0x8086", "0-3"), ("86:00.0", "0x020700", "0x15b3", "4-7")]
    for address, kind, vendor, cpus in devices:
        folder = tmp_path / f"bus/pci/devices/0000:{address}"
        folder.mkdir(parents=True)
        for name, text in (("class", kind), ("vendor", vendor), ("local_cpulist", cpus)):
            (folder / name).write_text(text + "\n")
    adapter = tmp_path / "class/infiniband/mlx5_0"
    adapter.mkdir(parents=True)
    (adapter / "device").symlink_to(tmp_path / "bus/pci/devices/0000:86:00.0")
    return tmp_path


@pytest.mark.parametrize(
    ("binding", "variables", "expected"),
    [
        ("near-gpu", {}, ["0-3", "0-3", "4-7", "4-7"]),
        ("near-gpu", {"CUDA_VISIBLE_DEVICES": "0,2"}, ["0-3", "4-7", "0-3", "4-7"]),
        ("near-gpu", {"CUDA_VISIBLE_DEVICES": "3"}, ["4-7"] * 4),
        # A task of `srun --gpus-per-task=1`, and a job that holds GPUs 2 and 3, with and without constrained devices
        ("near-gpu", {"CUDA_VISIBLE_DEVICES": "0", "SLURM_STEP_GPUS": "3", "SLURM_STEP_ID": "0"}, ["4-7"] * 4),
        ("near-gpu", {"CUDA_VISIBLE_DEVICES": "0,1", "SLURM_JOB_GPUS": "1,2"}, ["0-3", "4-7", "0-3", "4-7"]),
        ("near-gpu", {"CUDA_VISIBLE_DEVICES": "1,2", "SLURM_JOB_GPUS": "1,2"}, ["0-3", "4-7", "0-3", "4-7"]),
        ("near-gpu", {"SLURM_JOB_GPUS": "2,3"}, ["4-7"] * 4),
        ("near-gpu", {"CUDA_VISIBLE_DEVICES": "2,0", "SLURM_JOB_GPUS": "0,1,2,3"}, ["4-7", "0-3", "4-7", "0-3"]),
        ("near-gpu", {"CUDA_VISIBLE_DEVICES": "2,1", "SLURM_JOB_GPUS": "1,2"}, ["4-7", "0-3", "4-7", "0-3"]),
        ("near-nic", {}, ["4-7"] * 4),
        ("near-nic:mlx5_0", {}, ["4-7"] * 4),
        ("numa", {}, ["0-3", "4-7", "0-3", "4-7"]),
        ("core", {}, ["0", "1", "2", "3"]),
        ("cpus:0-1/6,7", {}, ["0-1", "6-7", "0-1", "6-7"]),
        ("none", {}, ["0-7"] * 4),
    ],
)
def test_rank_cpus_follow_gpu_adapter_and_socket(two_sockets, binding, variables, expected):
    chosen = [format_cpus(rank_cpus(binding, local, variables, _ALL, two_sockets)) for local in range(4)]
    assert chosen == expected


def test_rank_cpus_stay_within_the_allowed_ones(two_sockets):
    assert rank_cpus("near-nic", 0, {}, [1, 5], two_sockets) == [5]
    assert rank_cpus("numa", 1, {}, [1, 2], two_sockets) == [1, 2]
    with pytest.raises(LookupError, match="CPUs 4-7 of mlx5_0 are not among the allowed CPUs 0-1"):
        rank_cpus("near-nic", 0, {}, [0, 1], two_sockets)


@pytest.mark.parametrize(
    ("binding", "variables", "message"),
    [
        ("near-gpu", {"CUDA_VISIBLE_DEVICES": "9"}, "=9 is not among the 4 usable GPUs by number; use"),
        (
            "near-gpu",
            {"CUDA_VISIBLE_DEVICES": "MIG-4a"},
            "=MIG-4a is not among .* by number; use --bind cpus:",
        ),
        ("near-gpu", {"CUDA_VISIBLE_DEVICES": ""}, "the rank has no GPU \\(CUDA_VISIBLE_DEVICES=\\)"),
        ("near-gpu", {"CUDA_VISIBLE_DEVICES": "1", "SLURM_STEP_GPUS": "1,2"}, "ambiguous, as Slurm lists the GPUs 1,2"),
        ("near-gpu", {"CUDA_VISIBLE_DEVICES": "0", "SLURM_JOB_GPUS": "7"}, "GPU 7 of Slurm is not among"),
        ("near-nic:mlx5_7", {}, "no adapter `mlx5_7`; found mlx5_0"),
    ],
)
def test_rank_cpus_missing_device_is_named(two_sockets, binding, variables, message):
    with pytest.raises(LookupError, match=message):
        rank_cpus(binding, 0, variables, _ALL, two_sockets)


def test_near_gpu_number_that_ranks_may_share_is_refused(two_sockets):
    alone = {"CUDA_VISIBLE_DEVICES": "0"}
    assert rank_cpus("near-gpu", 0, alone, _ALL, two_sockets) == [0, 1, 2, 3]
    for local in (1, 2, 3):
        with pytest.raises(LookupError, match=f"no GPU of its own for local rank {local}, .* which has 4 GPUs"):
            rank_cpus("near-gpu", local, alone, _ALL, two_sockets)


def test_near_gpu_in_a_container_follows_nvml(two_sockets, monkeypatch):
    monkeypatch.setattr(cpu_binding, "_nvml", nvml(("84:00.0", "GPU-8c"), ("85:00.0", "GPU-8d")))
    for variables in ({}, {"CUDA_VISIBLE_DEVICES": "0"}, {"CUDA_VISIBLE_DEVICES": "GPU-8d"}):
        assert rank_cpus("near-gpu", 1, variables, _ALL, two_sockets) == [4, 5, 6, 7]
    with pytest.raises(LookupError, match="GPU-8 is not among the 2 usable GPUs by number or UUID"):
        rank_cpus("near-gpu", 0, {"CUDA_VISIBLE_DEVICES": "GPU-8"}, _ALL, two_sockets)
    assert ctypes.sizeof(cpu_binding._PciInfo) == 16 + 5 * 4 + 32


def test_near_gpu_of_amd_follows_both_variables(two_sockets):
    for vendor in two_sockets.glob("bus/pci/devices/*/vendor"):
        vendor.write_text(vendor.read_text().replace("0x10de", "0x1002"))
    for variables in ({"HIP_VISIBLE_DEVICES": "2"}, {"ROCR_VISIBLE_DEVICES": "1,3", "HIP_VISIBLE_DEVICES": "1"}):
        assert rank_cpus("near-gpu", 0, variables, _ALL, two_sockets) == [4, 5, 6, 7]
    with pytest.raises(LookupError, match="no GPU \\(HIP_VISIBLE_DEVICES"):
        rank_cpus("near-gpu", 0, {"HIP_VISIBLE_DEVICES": ""}, _ALL, two_sockets)


def test_near_gpu_of_several_models_requires_the_order_of_addresses(two_sockets):
    (two_sockets / "bus/pci/devices/0000:84:00.0/device").write_text("0x2330\n")
    with pytest.raises(LookupError, match="several models; set CUDA_DEVICE_ORDER=PCI_BUS_ID"):
        rank_cpus("near-gpu", 0, {}, _ALL, two_sockets)
    assert rank_cpus("near-gpu", 2, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, _ALL, two_sockets) == [4, 5, 6, 7]


def test_cpu_list_with_a_missing_cpu_is_refused(two_sockets):
    with pytest.raises(LookupError, match="CPUs 2-99 of local rank 0 are not among the allowed CPUs 0-1"):
        rank_cpus("cpus:0-99/1", 0, {}, [0, 1], two_sockets)


def test_near_gpu_without_gpu_is_an_error_of_the_node(tmp_path):
    with pytest.raises(LookupError, match="no GPU found"):
        rank_cpus("near-gpu", 0, {}, _ALL, tmp_path)


@pytest.mark.parametrize("text", ["socket", "core:1", "cpus", "cpus:a", "cpus:3-0", "near-nic:", "near-nic:../x", ""])
def test_launcher_rejects_invalid_binding(text):
    made = launcher({}, os.environ)
    with pytest.raises(ConfigError, match="bind: "):
        made.run(RunRequest(["true"], made.nodes(), bind=text))


def _ran(made, bind, ranks=2):
    exits = made.run(RunRequest(_SHOW, made.nodes(), ranks, timeout_s=60, bind=bind))
    assert [e.code for e in exits] == [0] * ranks, exits
    # The reported CPUs are those that the command really had.
    assert [e.cpus for e in exits] == [e.out.decode().strip() for e in exits]
    return [e.cpus for e in exits]


def test_local_ranks_get_the_cpus_of_their_binding():
    made, cpus = launcher({}, os.environ), allowed_cpus()[:2]
    assert _ran(made, None) == [format_cpus(allowed_cpus())] * 2
    assert _ran(made, "core") == [str(cpu) for cpu in cpus]
    assert _ran(made, f"cpus:{cpus[1]}/{cpus[0]}") == [str(cpus[1]), str(cpus[0])]


@pytest.mark.parametrize("program", ["mpirun.openmpi", "mpiexec.hydra"])
def test_mpirun_ranks_get_the_cpus_of_their_binding(program):
    made = mpi.launcher({"nodes": "localhost", "program": program}, os.environ)
    assert _ran(made, "none") == [format_cpus(allowed_cpus())] * 2
    first, second = _ran(made, "core")
    assert first != second, "both ranks on one core"
    assert parse_cpus(first)
    assert len(parse_cpus(first)) == 1
    assert _ran(made, f"cpus:{allowed_cpus()[1]}") == [str(allowed_cpus()[1])] * 2


def test_missing_adapter_is_unsupported_on_its_node():
    made = launcher({}, os.environ)
    [ended] = made.run(RunRequest(["true"], made.nodes(), bind="near-nic:mlx5_99"))
    assert isinstance(ended.fault, Unsupported)
    assert "n0: near-nic: no adapter `mlx5_99`" in str(ended.fault)


@pytest.mark.parametrize(
    ("bind", "option"),
    [(None, None), ("show", None), ("none", "none"), ("core", "cores"), ("numa", "ldoms"), ("near-gpu", "none")],
)
def test_srun_line_has_its_documented_option(bind, option):
    made = SlurmLauncher({}, [Node("h1", "h1")], srun=[], python="")
    [line] = made.line(RunRequest(["true"], made.nodes(), 2, bind=bind))
    found = [word.partition("=")[2] for word in line if word.startswith("--cpu-bind")]
    assert found == ([option] if option else [])


def test_cluster_run_binds_and_reports_the_cpus_of_each_rank(run_cli):
    done = run_cli("cluster", "run", "--ranks-per-node", 2, "--bind", "core", "--json", "--", *_SHOW)
    assert done.code == 0, done.err
    rows = json.loads(done.out)["exits"]
    assert [row["cpus"] for row in rows] == [row["stdout"].strip() for row in rows]
    assert len({row["cpus"] for row in rows}) == 2
    assert run_cli("cluster", "run", "--bind", "socket", "--", "true").code == 2

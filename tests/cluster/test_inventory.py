# SPDX-License-Identifier: Apache-2.0
"""Tests a node's inventory: parsing of the GPU topology matrix, and NUMA nodes. Issue 5, point 2."""

from __future__ import annotations

import os
import shutil
from collections import namedtuple

from hypothesis import given
from hypothesis import strategies as st

from penstock.cluster import inventory

# The matrix as in NVIDIA's documentation, with the terminal formatting of newer drivers.
_MATRIX = (
    "\t\x1b[4mGPU0\tGPU1\tNIC0\tmlx5_1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    "GPU0\t X \tNV12\tPXB\tSYS\t0-23,48-71\t0\t\tN/A\n"
    "GPU1\tNV12\t X \tSYS\tPIX\t24-47,72-95\t1\t\tN/A\n"
    "NIC0\tPXB\tSYS\t X \tSYS\t\t\n"
    "mlx5_1\tSYS\tPIX\tSYS\t X \n"
    "\n"
    "Legend:\n\n  X    = Self\n  SYS  = Connection traversing PCIe as well as the SMP interconnect\n\n"
    "NIC Legend:\n\n  NIC0: mlx5_0\n"
)


def test_topology_matrix_is_taken_apart():
    found = inventory.topology(_MATRIX)
    assert found == {
        "links": {
            "GPU0": {"GPU1": "NV12", "NIC0": "PXB", "mlx5_1": "SYS"},
            "GPU1": {"GPU0": "NV12", "NIC0": "SYS", "mlx5_1": "PIX"},
            "NIC0": {"GPU0": "PXB", "GPU1": "SYS", "mlx5_1": "SYS"},
            "mlx5_1": {"GPU0": "SYS", "GPU1": "PIX", "NIC0": "SYS"},
        },
        "cpus": {"GPU0": "0-23,48-71", "GPU1": "24-47,72-95"},
        "numa": {"GPU0": "0", "GPU1": "1"},
        "nics": {"NIC0": "mlx5_0"},
    }


@given(
    st.one_of(
        st.none(),
        st.text(),
        st.text(alphabet="GPU01NIC\t\n X:"),
        st.just(_MATRIX).map(lambda text: text[: len(text) // 2]),
    )
)
def prop_topology_of_anything_is_a_matrix_or_none(text):
    found = inventory.topology(text)
    assert found is None or set(found) == {"links", "cpus", "numa", "nics"}


test_topology_of_anything_is_a_matrix_or_none = prop_topology_of_anything_is_a_matrix_or_none


def test_devices_are_told_at_their_numa_nodes(tmp_path, monkeypatch):
    # sysfs of a machine with two sockets. The second has a GPU, a network card and an NVMe disk; the disk's NUMA node
    # is in its controller's folder.
    pci = tmp_path / "devices/pci0000:80"
    for at, cores in enumerate(("0-3", "4-7")):
        node = tmp_path / f"devices/system/node/node{at}"
        node.mkdir(parents=True)
        (node / "cpulist").write_text(f"{cores}\n")
        (node / "meminfo").write_text(f"Node {at} MemTotal:       2048 kB\n")
        (node / "distance").write_text("10 21\n" if at == 0 else "21 10\n")
    for name in ("0000:81:00.0", "0000:82:00.0", "0000:83:00.0"):
        (pci / name).mkdir(parents=True)
        (pci / name / "numa_node").write_text("1\n")
    (pci / "0000:83:00.0/nvme/nvme0/nvme0n1").mkdir(parents=True)
    links = {
        "bus/pci/devices/0000:81:00.0": pci / "0000:81:00.0",
        "class/net/ib0/device": pci / "0000:82:00.0",
        "block/nvme0n1/device": pci / "0000:83:00.0/nvme/nvme0",
        "block/loop0/device": tmp_path / "nowhere",
    }
    for name, target in links.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).symlink_to(target)
    (tmp_path / "class/net/ib0/operstate").write_text("up\n")
    card = tmp_path / "gpus/0000:81:00.0/information"
    card.parent.mkdir(parents=True)
    card.write_text("Model: \t\t NVIDIA H200\n")
    monkeypatch.setattr(inventory, "SYS", tmp_path)
    monkeypatch.setattr(inventory, "GPUS", tmp_path / "gpus")
    first, second = inventory.numa()
    assert first == {
        "node": 0, "cores": "0-3", "memory_bytes": 2 << 20, "distances": [10, 21], "nics": [], "disks": [], "gpus": [],
    }  # fmt: skip
    assert (second["nics"], second["disks"], second["gpus"]) == (["ib0"], ["nvme0n1"], ["0000:81:00.0"])
    assert inventory.gpus() == ["NVIDIA H200"]


def test_numa_nodes_hold_all_cores_and_memory_of_this_machine():
    found = inventory.numa()
    assert found
    assert [each["node"] for each in found] == sorted(each["node"] for each in found)
    assert all(len(each["distances"]) == len(found) for each in found)
    # If a hypervisor adds or removes memory, one of the two figures may change before the other.
    assert sum(each["memory_bytes"] for each in found) >= 0.5 * inventory.memory_bytes()
    cores = set()
    for each in found:
        for span in filter(None, each["cores"].split(",")):
            first, _, last = span.partition("-")
            cores |= set(range(int(first), int(last or first) + 1))
    assert os.sched_getaffinity(0) <= cores


def test_disks_are_those_that_hold_data(tmp_path, monkeypatch):
    (tmp_path / "mounts").write_text("".join(f"{kind}-{at} {tmp_path}/{at} {kind} rw 0 0\n" for at, kind in enumerate(
        ["ext4", "tmpfs", "tmpfs", "proc"]
    )))  # fmt: skip
    sizes = [512 << 20, 64 << 20, 8 << 30, 0]
    for at in range(4):
        (tmp_path / str(at)).mkdir()
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(sizes[int(path[-1])], 0, 9))
    monkeypatch.setattr(inventory, "MOUNTS", tmp_path / "mounts")
    assert [disk["path"][-1] for disk in inventory.disks()] == ["0", "2"]

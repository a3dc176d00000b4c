# SPDX-License-Identifier: Apache-2.0
"""What a node says of itself: the GPUs' matrix taken apart, its NUMA nodes. Issue 5, point 2."""

from __future__ import annotations

import os

from hypothesis import given
from hypothesis import strategies as st

from penstock.cluster import survey

# As NVIDIA's documentation prints it, with the paint of newer drivers.
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
    found = survey.topology(_MATRIX)
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
    found = survey.topology(text)
    assert found is None or set(found) == {"links", "cpus", "numa", "nics"}


test_topology_of_anything_is_a_matrix_or_none = prop_topology_of_anything_is_a_matrix_or_none


def test_numa_nodes_hold_all_cores_and_memory_of_this_machine():
    found = survey.numa()
    assert found
    assert [each["node"] for each in found] == sorted(each["node"] for each in found)
    assert sum(each["memory_bytes"] for each in found) >= 0.9 * survey.memory_bytes()
    cores = set()
    for each in found:
        for span in filter(None, each["cores"].split(",")):
            first, _, last = span.partition("-")
            cores |= set(range(int(first), int(last or first) + 1))
    assert os.sched_getaffinity(0) <= cores

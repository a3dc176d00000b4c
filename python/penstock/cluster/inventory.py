# SPDX-License-Identifier: Apache-2.0
"""Hardware inventory of a machine, read from its kernel.

Runs on nodes as `python3 -c SOURCE NAME...`, and on this machine for machine cards. Needs only Python and does
not import Penstock. Values that cannot be read are left out, never guessed. Each NAME is a host name that the machine
tries to resolve.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

# Types of file systems that hold data. Other types are virtual file systems of the kernel.
_DISKS = {
    "ext2",
    "ext3",
    "ext4",
    "xfs",
    "btrfs",
    "zfs",
    "tmpfs",
    "overlay",
    "nfs",
    "nfs4",
    "lustre",
    "beegfs",
    "ceph",
    "f2fs",
}
# A tmpfs smaller than this size is not meant for data. Containers have several such mounts.
_MIN_TMPFS_BYTES = 1 << 30
_COMMAND_TIMEOUT_S = 10
SYS = Path("/sys")
MOUNTS = Path("/proc/self/mounts")
GPUS = Path("/proc/driver/nvidia/gpus")
# Newer NVIDIA drivers print the header of the topology matrix underlined.
_ANSI_CODES = re.compile(r"\x1b\[[0-9;]*m")
# Programs that engines and launchers start.
_PROGRAMS = (
    "mfsmaster", "mfschunkserver", "mfsmount", "mfscli", "mfssetgoal", "mfsfileinfo",
    "rclone",
    "s3fs",
    "mount-s3",
    "gcsfuse",
    "blobfuse2", "beeond", "lfs", "srun", "mpirun",
)  # fmt: skip


def after_colon(path: Path, name: str) -> str | None:
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.partition(":")[0].strip() == name), None)


def cpu() -> str:
    return after_colon(Path("/proc/cpuinfo"), "model name") or platform.machine()


def cores() -> int:
    """Number of cores that this process may use; the machine may have more."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory_bytes() -> int:
    """Memory of the machine in bytes, or the limit of the control group if the limit is smaller."""
    kib = (after_colon(Path("/proc/meminfo"), "MemTotal") or "0 kB").split()[0]
    total = int(kib) * 1024
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
    except OSError:
        return total
    return min(total, int(limit)) if limit.isdigit() else total


def gpus() -> list[str]:
    """Model of each GPU, as the driver lists them."""
    found = sorted(GPUS.glob("*/information"))
    return [after_colon(card, "Model") or "unknown" for card in found]


def nics() -> dict[str, int | None]:
    """Network interfaces that are up, except the loopback, with their Mbit/s if the driver reports the speed."""
    found: dict[str, int | None] = {}
    for folder in sorted((SYS / "class/net").glob("*")):
        try:
            if folder.name == "lo" or (folder / "operstate").read_text().strip() not in ("up", "unknown"):
                continue
        except OSError:
            continue
        try:
            speed = int((folder / "speed").read_text())
        except (OSError, ValueError):
            speed = -1
        found[folder.name] = speed if speed > 0 else None
    return found


def disks() -> list[dict[str, Any]]:
    """Mounted file systems that hold data: path, kind, size and free space. Each device appears once."""
    found: dict[str, dict[str, Any]] = {}
    try:
        lines = MOUNTS.read_text(errors="replace").splitlines()
    except OSError:
        return []
    for line in lines:
        device, path, kind = [field.encode().decode("unicode_escape") for field in line.split()[:3]]
        if kind not in _DISKS or device in found:
            continue
        try:
            usage = shutil.disk_usage(path)
        except OSError:
            continue
        if kind == "tmpfs" and (usage.total < _MIN_TMPFS_BYTES or path.startswith(("/run", "/sys", "/proc"))):
            continue
        if usage.total and Path(path).is_dir():
            found[device] = {"path": path, "kind": kind, "size_bytes": usage.total, "free_bytes": usage.free}
    return list(found.values())


def output_of(*argv: str) -> str | None:
    """Stdout and stderr of a program; None if the program is missing, fails or hangs."""
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_COMMAND_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(errors="replace")


def topology(text: str | None) -> dict[str, Any] | None:
    """Parsed output of `nvidia-smi topo -m`: `links` (device -> device -> NV12, PIX, SYS, ...), `cpus` and `numa` of
    the GPUs, `nics` (NIC0 -> mlx5_0). None if the output contains no matrix.
    """
    rows = [[cell.strip() for cell in _ANSI_CODES.sub("", line).split("\t")] for line in (text or "").splitlines()]
    head = next((row for row in rows if len(row) > 1 and not row[0] and row[1].startswith("GPU")), None)
    if head is None:
        return None
    found: dict[str, Any] = {"links": {}, "cpus": {}, "numa": {}, "nics": {}}
    devices = [name for name in head[1:] if re.fullmatch(r"[A-Za-z]+[0-9_]*[0-9]", name)]
    for row in rows:
        if row[0] in devices:
            of = dict(zip(head[1:], row[1:]))  # noqa: B905 - rows of NICs end early
            found["links"][row[0]] = {name: of[name] for name in devices if name != row[0] and of.get(name)}
            for key, column in (("cpus", "CPU Affinity"), ("numa", "NUMA Affinity")):
                if of.get(column):
                    found[key][row[0]] = of[column]
        elif named := re.fullmatch(r"(NIC[0-9]+): (\S+)", row[0]):
            found["nics"][named[1]] = named[2]
    return found


def numa() -> list[dict[str, Any]]:
    """NUMA nodes: number, cores, memory, distances to all nodes, and the network interfaces, disks and GPUs (by PCI
    address) attached to them. Devices without a NUMA node in the firmware's tables, as in most virtual machines, are
    left out.
    """
    devices = {
        "nics": {nic: SYS / f"class/net/{nic}/device" for nic in nics()},
        "disks": {disk.name: disk / "device" for disk in sorted((SYS / "block").glob("*"))},
        "gpus": {
            card.parent.name: SYS / f"bus/pci/devices/{card.parent.name}" for card in sorted(GPUS.glob("*/information"))
        },
    }
    places = {kind: {name: _numa_node(path) for name, path in found.items()} for kind, found in devices.items()}
    found = []
    for folder in (SYS / "devices/system/node").glob("node[0-9]*"):
        number = int(folder.name[4:])
        try:
            cores = (folder / "cpulist").read_text().strip()
            memory = re.search(r"MemTotal:\s*(\d+) kB", (folder / "meminfo").read_text())
            distances = [int(field) for field in (folder / "distance").read_text().split()]
        except (OSError, ValueError):
            continue
        near = {kind: [name for name, at in known.items() if at == number] for kind, known in places.items()}
        memory_bytes = int(memory[1]) * 1024 if memory else 0
        found.append({"node": number, "cores": cores, "memory_bytes": memory_bytes, "distances": distances, **near})
    return sorted(found, key=lambda each: each["node"])


def _numa_node(device: Path) -> int | None:
    """NUMA node of a device, or of its nearest parent device that has a NUMA node; for an NVMe disk, this is the
    controller.
    """
    try:
        path = device.resolve(strict=True)
    except OSError:
        return None
    for folder in (path, *path.parents):
        try:
            return int((folder / "numa_node").read_text())
        except (OSError, ValueError):
            continue
    return None


def collect(names: list[str]) -> dict[str, Any]:
    """The whole inventory. `unresolved` lists the `names` that this machine cannot resolve to an address."""
    unresolved = []
    for name in names:
        try:
            socket.getaddrinfo(name, None)
        except OSError:
            unresolved.append(name)
    java = output_of("java", "-version")
    matrix = output_of("nvidia-smi", "topo", "-m")
    return {
        "host": socket.gethostname(),
        "time_s": time.time(),
        "user": os.geteuid(),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "cpu": cpu(),
        "cores": cores(),
        "memory_bytes": memory_bytes(),
        "gpus": gpus(),
        "topology": matrix,
        "links": topology(matrix),
        "numa": numa(),
        "nics": nics(),
        "disks": disks(),
        "java": java.splitlines()[0] if java else None,
        "fuse": os.access("/dev/fuse", os.R_OK | os.W_OK),
        "programs": {name: shutil.which(name) for name in _PROGRAMS},
        "unresolved": unresolved,
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(collect(sys.argv[1:])))

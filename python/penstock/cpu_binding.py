# SPDX-License-Identifier: Apache-2.0
"""CPU binding of a rank: chooses the CPUs near its GPU or network adapter, and reads the CPUs that it may use.

The rank wrapper runs this module on the node, so the module imports only the standard library. mpirun and srun bind
ranks to cores and NUMA nodes by their own options, but cannot map a rank to a PCI device. The launchers of mpirun and
srun use this module only for `near-gpu`, `near-nic` and `cpus`.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["KINDS", "allowed_cpus", "bind_rank", "binding_kind", "format_cpus", "parse_cpus", "rank_cpus"]

KINDS = ("none", "show", "core", "numa", "near-gpu", "near-nic", "cpus")
SYS = Path("/sys")
_LISTS = re.compile(r"\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*")
# PCI class codes: VGA and 3D controllers (NVIDIA), display controllers and processing accelerators (AMD, Intel).
_GPU_CLASSES = ("0x0300", "0x0302", "0x0380", "0x1200")
_GPU_VENDORS = ("0x10de", "0x1002", "0x8086")


def binding_kind(text: str) -> tuple[str, str]:
    """Split a binding such as `near-nic:mlx5_0` or `cpus:0-3/4-7` into its kind and argument.

    Raises:
        ValueError: The kind is unknown, or its argument is missing or not allowed.
    """
    kind, colon, argument = text.partition(":")
    if kind not in KINDS:
        raise ValueError(f"bind: `{text}` is not one of {', '.join(KINDS[:-1])}, near-nic:DEVICE, cpus:LIST/LIST")
    if kind == "cpus":
        if not all(_LISTS.fullmatch(part) and parse_cpus(part) for part in argument.split("/")):
            raise ValueError(f"bind: `{text}` needs one CPU list per local rank, such as cpus:0-3/4-7")
    elif kind == "near-nic":
        if colon and not re.fullmatch(r"[A-Za-z0-9_.-]+", argument):
            raise ValueError(f"bind: `{argument}` is not the name of a network adapter, such as mlx5_0 or eth0")
    elif colon:
        raise ValueError(f"bind: `{kind}` takes no argument (got `{argument}`)")
    return kind, argument


def parse_cpus(text: str) -> list[int]:
    """CPU numbers of a kernel list such as `0-3,8`; empty for an empty list."""
    found: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        low, _, high = part.partition("-")
        found.update(range(int(low), int(high or low) + 1))
    return sorted(found)


def format_cpus(cpus: Iterable[int]) -> str:
    """Format CPU numbers as the kernel does.

    Example:
        >>> format_cpus([0, 1, 2, 8])
        '0-2,8'
    """
    runs: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if runs and runs[-1][1] == cpu - 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


def allowed_cpus() -> list[int]:
    """CPUs that this process may use; empty on systems that do not report them (macOS)."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _numa_nodes(allowed: list[int], root: Path) -> list[list[int]]:
    """Allowed CPUs of each NUMA node, in the order of node numbers. Nodes without an allowed CPU are left out."""
    folders = [p for p in (root / "devices/system/node").glob("node*") if p.name[4:].isdecimal()]
    nodes = [parse_cpus(_text(p / "cpulist")) for p in sorted(folders, key=lambda p: int(p.name[4:]))]
    return [found for node in nodes if (found := [cpu for cpu in node if cpu in allowed])] or [allowed]


def _gpus(root: Path) -> list[Path]:
    """PCI folders of the node's GPUs by bus address, as nvidia-smi and CUDA_DEVICE_ORDER=PCI_BUS_ID number them.

    If the node has NVIDIA or AMD GPUs, Intel GPUs (often only for the console) are left out.
    """
    found = [
        p
        for p in sorted((root / "bus/pci/devices").glob("*"))
        if _text(p / "class").startswith(_GPU_CLASSES) and _text(p / "vendor") in _GPU_VENDORS
    ]
    own = [p for p in found if _text(p / "vendor") != "0x8086"]
    return own or found


def _gpu_cpus(local_rank: int, environment: Mapping[str, str], root: Path) -> tuple[list[int], str]:
    gpus = _gpus(root)
    if not gpus:
        raise LookupError(f"near-gpu: no GPU found in {root}/bus/pci/devices")
    visible = environment.get("CUDA_VISIBLE_DEVICES") or environment.get("ROCR_VISIBLE_DEVICES") or ""
    numbers = [part.strip() for part in visible.split(",") if part.strip()]
    if numbers and not all(part.isdecimal() for part in numbers):
        raise LookupError(
            "near-gpu: CUDA_VISIBLE_DEVICES or ROCR_VISIBLE_DEVICES must contain GPU numbers, not names"
            f" (got {visible})"
        )
    chosen = [int(part) for part in numbers] or list(range(len(gpus)))
    number = chosen[local_rank % len(chosen)]
    if number >= len(gpus):
        raise LookupError(f"near-gpu: GPU {number} is not among the {len(gpus)} GPUs of this node")
    device = gpus[number]
    return parse_cpus(_text(device / "local_cpulist")), f"GPU {number} ({device.name})"


def _nic_cpus(name: str, root: Path) -> tuple[list[int], str]:
    """CPUs near a network adapter. The default adapter is the first InfiniBand device or, without one, the first
    Ethernet device on a bus.
    """
    folders = [root / "class/infiniband", root / "class/net"]
    devices = [p for folder in folders for p in sorted(folder.glob(name or "*")) if (p / "device").exists()]
    if not devices:
        known = sorted(p.name for folder in folders for p in folder.glob("*"))
        raise LookupError(
            f"near-nic: {f'no adapter `{name}`' if name else 'no adapter on a bus'}; found {', '.join(known) or 'none'}"
        )
    return parse_cpus(_text(devices[0] / "device/local_cpulist")), devices[0].name


def rank_cpus(
    binding: str, local_rank: int, environment: Mapping[str, str], allowed: list[int], root: Path = SYS
) -> list[int]:
    """CPUs for a local rank.

    Args:
        binding: See `KINDS`. `none` and `show` return all allowed CPUs.
        environment: Variables of the rank; CUDA_VISIBLE_DEVICES selects GPUs, which are assigned to local ranks
            round-robin.
        allowed: CPUs to which a container or batch job limits the rank.
        root: Folder of sysfs.
    Raises:
        LookupError: The device is missing, or none of its CPUs is allowed.
        ValueError: The binding is not valid.
    """
    kind, argument = binding_kind(binding)
    if kind in ("none", "show") or not allowed:
        return allowed
    if kind == "core":
        # One CPU per rank. If ranks outnumber CPUs, several share one, as with mpirun's overload-allowed.
        return [allowed[local_rank % len(allowed)]]
    if kind == "numa":
        nodes = _numa_nodes(allowed, root)
        return nodes[local_rank % len(nodes)]
    if kind == "cpus":
        lists = argument.split("/")
        wanted, what = parse_cpus(lists[local_rank % len(lists)]), f"local rank {local_rank}"
    elif kind == "near-gpu":
        wanted, what = _gpu_cpus(local_rank, environment, root)
    else:
        wanted, what = _nic_cpus(argument, root)
    if not wanted:
        raise LookupError(f"{kind}: the kernel reports no CPUs near {what}")
    found = [cpu for cpu in wanted if cpu in allowed]
    if not found:
        raise LookupError(
            f"{kind}: CPUs {format_cpus(wanted)} of {what} are not among the allowed CPUs {format_cpus(allowed)}"
        )
    return found


def bind_rank(binding: str, local_rank: int, environment: Mapping[str, str]) -> str:
    """Bind this process, and the processes that it starts, as `rank_cpus` states. Returns the CPUs that it may now use.

    Raises:
        LookupError, ValueError: As `rank_cpus`.
    """
    allowed = allowed_cpus()
    chosen = rank_cpus(binding, local_rank, environment, allowed)
    if chosen != allowed:
        os.sched_setaffinity(0, chosen)
    return format_cpus(allowed_cpus())

# SPDX-License-Identifier: Apache-2.0
"""CPU binding of a rank: chooses the CPUs near its GPU or network adapter, and reads the CPUs that it may use.

The rank wrapper runs this module on the node, so the module imports only the standard library. mpirun and srun bind
ranks to cores and NUMA nodes by their own options, but cannot map a rank to a PCI device. The launchers of mpirun and
srun use this module only for `near-gpu`, `near-nic` and `cpus`.
"""

from __future__ import annotations

import ctypes
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["KINDS", "allowed_cpus", "bind_rank", "binding_kind", "format_cpus", "parse_cpus", "rank_cpus"]

KINDS = ("none", "show", "core", "numa", "near-gpu", "near-nic", "cpus")
SYS = Path("/sys")
_LISTS = re.compile(r"\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*")
# PCI class codes: VGA and 3D controllers (NVIDIA), display controllers and processing accelerators (AMD, Intel).
_GPU_CLASSES = ("0x0300", "0x0302", "0x0380", "0x1200")
_GPU_VENDORS = ("0x10de", "0x1002", "0x8086")
_OTHERWISE = "use --bind cpus:LIST/LIST"


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


class _PciInfo(ctypes.Structure):
    """nvmlPciInfo_t of nvml.h."""

    _fields_ = (
        ("legacy", ctypes.c_char * 16),
        ("numbers", ctypes.c_uint * 5),  # domain, bus, device, device ID, subsystem ID
        ("address", ctypes.c_char * 32),
    )


def _nvml() -> Any:
    return ctypes.CDLL("libnvidia-ml.so.1")


def _nvml_gpus(root: Path) -> dict[Path, str]:
    """PCI folder -> UUID of the NVIDIA GPUs that this process may use, by bus address; empty without NVML.

    In a container or a job with constrained devices, sysfs shows all GPUs of the node, but NVML only the usable ones.
    """
    try:
        library = _nvml()
        count = ctypes.c_uint()
        if library.nvmlInit_v2() != 0 or library.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
            return {}
        found = {}
        for index in range(count.value):
            handle, pci, uuid = ctypes.c_void_p(), _PciInfo(), ctypes.create_string_buffer(96)
            if (
                library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle)) == 0
                and library.nvmlDeviceGetPciInfo_v3(handle, ctypes.byref(pci)) == 0
                and library.nvmlDeviceGetUUID(handle, uuid, ctypes.c_uint(96)) == 0
            ):
                # NVML writes the domain with 8 digits, sysfs with 4.
                folder = root / "bus/pci/devices" / pci.address.decode().lower()[-12:]
                found[folder] = uuid.value.decode()
    except (OSError, AttributeError):
        return {}
    return dict(sorted(found.items())) if all(folder.exists() for folder in found) else {}


def _rank_gpus(local_rank: int, environment: Mapping[str, str], root: Path) -> list[Path]:
    """PCI folders of the GPUs that a rank may use, in the order of the rank's own GPU numbers.

    The numbers in CUDA_VISIBLE_DEVICES are those of the usable GPUs, so they start from 0 if devices are constrained.
    The usable GPUs are those of NVML or else those of Slurm, which lists them by their numbers on the node. Without both,
    they are assumed to be all GPUs of the node. If Slurm does not constrain devices, CUDA_VISIBLE_DEVICES has numbers of
    the node, too.
    """
    gpus, uuids = _gpus(root), _nvml_gpus(root)
    if not gpus:
        raise LookupError(f"near-gpu: no GPU found in {root}/bus/pci/devices")
    # Steps inherit SLURM_JOB_GPUS of the first node.
    in_job = "" if "SLURM_STEP_ID" in environment else environment.get("SLURM_JOB_GPUS", "")
    listed = environment.get("SLURM_STEP_GPUS") or in_job
    slurm = listed if not uuids and _LISTS.fullmatch(listed) else ""
    usable = list(uuids) or gpus
    numberings = [dict(enumerate(usable))]
    if slurm:
        numbers = parse_cpus(slurm)
        if max(numbers) >= len(gpus):
            raise LookupError(f"near-gpu: GPU {max(numbers)} of Slurm is not among the {len(gpus)} GPUs of this node")
        usable = [gpus[number] for number in numbers]
        numberings = [dict(enumerate(usable)), dict(zip(numbers, usable, strict=True))]
    vendor = _text(gpus[0] / "vendor")
    of_amd = [name for name in ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES") if name in environment]
    names = of_amd if of_amd and vendor == "0x1002" else ["CUDA_VISIBLE_DEVICES"]
    if (
        vendor == "0x10de"
        and len({_text(gpu / "device") for gpu in usable}) > 1
        and environment.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID"
        and not environment.get("CUDA_VISIBLE_DEVICES", "").startswith("GPU-")
    ):
        # CUDA's default order is by speed. It equals the order of addresses only for GPUs of one model.
        raise LookupError("near-gpu: the GPUs are of several models; set CUDA_DEVICE_ORDER=PCI_BUS_ID for all ranks")
    chosen = usable
    for name in names:
        if name not in environment:
            continue
        setting = f"{name}={environment[name]}"
        words = [word.strip() for word in environment[name].split(",")]
        if words[0] in ("", "-1", "NoDevFiles"):
            raise LookupError(f"near-gpu: the rank has no GPU ({setting})")
        readings: list[list[Path]] = []
        for numbering in numberings:
            found = [_gpu(word, numbering, uuids) for word in words]
            known = [gpu for gpu in found if gpu is not None]
            if len(known) == len(found) and known not in readings:
                readings.append(known)
        if not readings:
            by = "number or UUID" if uuids else "number"
            raise LookupError(f"near-gpu: {setting} is not among the {len(chosen)} usable GPUs by {by}; {_OTHERWISE}")
        if len(readings) > 1:
            raise LookupError(f"near-gpu: {setting} is ambiguous, as Slurm lists the GPUs {slurm}; {_OTHERWISE}")
        is_renumbered = words == [str(number) for number in range(len(words))] and len(words) < len(gpus)
        if is_renumbered and not uuids and not slurm and local_rank >= len(words):
            raise LookupError(
                f"near-gpu: {setting} has no GPU of its own for local rank {local_rank}, and may not be a number of the"
                f" node, which has {len(gpus)} GPUs; {_OTHERWISE}"
            )
        chosen = readings[0]
        numberings = [dict(enumerate(chosen))]
    return chosen


def _gpu(word: str, numbering: Mapping[int, Path], uuids: Mapping[Path, str]) -> Path | None:
    """GPU of a number or of the start of a UUID, as CUDA accepts them; None if it is unknown or not unique."""
    if word.isdecimal():
        return numbering.get(int(word))
    found = [gpu for gpu in numbering.values() if word and uuids.get(gpu, "").startswith(word)]
    return found[0] if len(found) == 1 else None


def _gpu_cpus(local_rank: int, environment: Mapping[str, str], root: Path) -> tuple[list[int], str]:
    chosen = _rank_gpus(local_rank, environment, root)
    device = chosen[local_rank % len(chosen)]
    return parse_cpus(_text(device / "local_cpulist")), f"GPU {device.name}"


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
        environment: Variables of the rank; CUDA_VISIBLE_DEVICES (or ROCR_VISIBLE_DEVICES and HIP_VISIBLE_DEVICES)
            selects GPUs, which are assigned to local ranks round-robin.
        allowed: CPUs to which a container or batch job limits the rank.
        root: Folder of sysfs.
    Raises:
        LookupError: The device is missing or unknown, none of its CPUs is allowed, or a CPU of `cpus` is not allowed.
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
        if missing := set(wanted) - set(allowed):
            raise LookupError(
                f"cpus: CPUs {format_cpus(missing)} of {what} are not among the allowed CPUs {format_cpus(allowed)}"
            )
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

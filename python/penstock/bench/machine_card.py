# SPDX-License-Identifier: Apache-2.0
"""The machine that a result came from, read from the kernel. Imports no framework: a GPU is what its driver lists."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import msgspec

__all__ = ["MachineCard", "read"]


class MachineCard(msgspec.Struct, frozen=True):
    """What a row's figures depend on. Holds no host name: results are shared.

    Attributes:
        cpu: Model name.
        cores: That this process may use, not those that the machine has.
        memory_bytes: Of the machine, or of the control group where that is less.
        gpus: Model of each, as the driver lists them.
    """

    cpu: str
    cores: int
    memory_bytes: int
    kernel: str
    python: str
    gpus: tuple[str, ...] = ()


def _after_colon(path: Path, name: str) -> str | None:
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.partition(":")[0].strip() == name), None)


def _memory_bytes() -> int:
    kib = (_after_colon(Path("/proc/meminfo"), "MemTotal") or "0 kB").split()[0]
    total = int(kib) * 1024
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
    except OSError:
        return total
    return min(total, int(limit)) if limit.isdigit() else total


def _gpus() -> tuple[str, ...]:
    found = sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
    return tuple(_after_colon(card, "Model") or "unknown" for card in found)


def read() -> MachineCard:
    """The card of this machine, as this process sees it."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return MachineCard(
        cpu=_after_colon(Path("/proc/cpuinfo"), "model name") or platform.machine(),
        cores=cores,
        memory_bytes=_memory_bytes(),
        kernel=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        gpus=_gpus(),
    )

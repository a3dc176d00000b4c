# SPDX-License-Identifier: Apache-2.0
"""Machine card: CPU, memory and GPUs of the measuring machine, read from the kernel. Imports no framework."""

from __future__ import annotations

import platform

import msgspec

from penstock.cluster import inventory

__all__ = ["MachineCard", "read"]


class MachineCard(msgspec.Struct, frozen=True):
    """Properties of the machine that affect a row's figures. Contains no host name, because results are shared.

    Attributes:
        cpu: Model name.
        cores: Number of cores that this process may use, which may be fewer than the machine has.
        memory_bytes: Memory of the machine, or of the control group if that is smaller.
        gpus: Model of each GPU, as the driver lists them.
    """

    cpu: str
    cores: int
    memory_bytes: int
    kernel: str
    python: str
    gpus: tuple[str, ...] = ()


def read() -> MachineCard:
    """Read the card of this machine."""
    return MachineCard(
        cpu=inventory.cpu(),
        cores=inventory.cores(),
        memory_bytes=inventory.memory_bytes(),
        kernel=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        gpus=tuple(inventory.gpus()),
    )

# SPDX-License-Identifier: Apache-2.0
"""Machine card: CPU, memory and GPUs of the machine that measured, read from the kernel. Imports no framework."""

from __future__ import annotations

import platform

import msgspec

from penstock.cluster import inventory

__all__ = ["MachineCard", "read"]


class MachineCard(msgspec.Struct, frozen=True):
    """Facts about the machine that a row's figures depend on. Contains no host name, because results are shared.

    Attributes:
        cpu: Model name.
        cores: Cores that this process may use, not all of the machine.
        memory_bytes: Memory of the machine, or of the control group where that is less.
        gpus: Model of each GPU, as the driver lists them.
    """

    cpu: str
    cores: int
    memory_bytes: int
    kernel: str
    python: str
    gpus: tuple[str, ...] = ()


def read() -> MachineCard:
    """The card of this machine, as this process sees it."""
    return MachineCard(
        cpu=inventory.cpu(),
        cores=inventory.cores(),
        memory_bytes=inventory.memory_bytes(),
        kernel=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        gpus=tuple(inventory.gpus()),
    )

# SPDX-License-Identifier: Apache-2.0
"""The machine that a result came from, read from the kernel. Imports no framework: a GPU is what its driver lists."""

from __future__ import annotations

import platform

import msgspec

from penstock.cluster import inventory

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

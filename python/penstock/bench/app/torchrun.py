# SPDX-License-Identifier: Apache-2.0
"""Command line of torchrun: one torchrun per node, which starts the ranks of its node."""

from __future__ import annotations

import shutil
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.protocols import Node

__all__ = ["rendezvous_port", "torchrun_argv"]


def rendezvous_port() -> int:
    """A port from 20000 to 31999 that changes every millisecond. Whether it is free on the first node is not checked."""
    return 20000 + time.time_ns() // 1_000_000 % 12000


def torchrun_argv(argv: Sequence[str], nodes: Sequence[Node], ranks_per_node: int) -> list[str]:
    """Arguments of torchrun for any command. `{rank}`, which the launcher replaces, is the number of the node.

    On one node, torchrun chooses a free port. On several, the port changes with the time, and is not checked.
    """
    program = (
        [shutil.which("torchrun") or ""]
        if shutil.which("torchrun")
        else [sys.executable, "-m", "torch.distributed.run"]
    )
    if len(nodes) == 1:
        place = ["--standalone"]
    else:
        place = ["--node-rank={rank}", f"--master-addr={nodes[0].address}", f"--master-port={rendezvous_port()}"]
    return [*program, f"--nnodes={len(nodes)}", *place, f"--nproc-per-node={ranks_per_node}", "--no-python", *argv]

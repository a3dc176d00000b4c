# SPDX-License-Identifier: Apache-2.0
"""Command line of torchrun: one torchrun per node, which starts the ranks of its node."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

from penstock.ranks import rendezvous_port

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.protocols import Node

__all__ = ["torchrun_argv"]


def torchrun_argv(argv: Sequence[str], nodes: Sequence[Node], ranks_per_node: int) -> list[str]:
    """Arguments of torchrun for any command, or for what torchrun itself accepts: a Python script or `-m MODULE`.
    `{rank}`, which the launcher replaces, is the number of the node.

    On one node, torchrun chooses a free port; on several nodes, see `rendezvous_port`.
    """
    found = shutil.which("torchrun")
    program = [sys.executable, "-m", "torch.distributed.run"] if found is None else [found]
    if len(nodes) == 1:
        place = ["--standalone"]
    else:
        place = ["--node-rank={rank}", f"--master-addr={nodes[0].address}", f"--master-port={rendezvous_port()}"]
    kind = [] if argv[0] == "-m" or argv[0].endswith(".py") else ["--no-python"]
    return [*program, f"--nnodes={len(nodes)}", *place, f"--nproc-per-node={ranks_per_node}", *kind, *argv]

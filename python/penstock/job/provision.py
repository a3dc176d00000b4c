# SPDX-License-Identifier: Apache-2.0
"""Provisioning: runs a job's script once on every node. Each node stores the digest of the script that it has run."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.cluster.exits import raise_for_failures
from penstock.errors import NotFound

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.cluster.cluster import Cluster
    from penstock.job.spec import ProvisionSection
    from penstock.protocols import Exit, Node

__all__ = ["provision"]


def provision(cluster: Cluster, part: ProvisionSection, start: Callable[[Sequence[Node]], list[Exit]]) -> str:
    """Copy the script to the nodes that have not run it yet, and run the script on these nodes with `start`; return a
    status message.

    Raises:
        NotFound: The script does not exist on this machine.
        PenstockError: Copying the script to a node failed, or the script failed on a node.
    """
    script = Path(part.script)
    try:
        digest = hashlib.sha256(script.read_bytes()).hexdigest()
    except OSError as error:
        raise NotFound(f"provision: {script}: {error.strerror}", where=str(script)) from error
    # The digest is stored on the node, not on this machine. Therefore, a replaced node with the same name is set up
    # again.
    stamp = f"{part.at}.done"
    seen = cluster.run(["cat", stamp], timeout_s=60)
    todo = [
        node
        for node, ended in zip(cluster.nodes, seen, strict=True)
        if ended.out.decode(errors="replace").strip() != digest
    ]
    if not todo:
        return "done before"
    raise_for_failures(cluster.copy_to_all(script, part.at, on=todo, timeout_s=60), "provision")
    raise_for_failures(start(todo), "provision")
    raise_for_failures(
        cluster.run(["sh", "-c", 'printf %s "$1" > "$2"', "sh", digest, stamp], on=todo, timeout_s=60),
        "provision",
    )
    return f"{len(todo)} of {len(cluster.nodes)} nodes"

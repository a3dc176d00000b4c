# SPDX-License-Identifier: Apache-2.0
"""A job's script on every node, once: a node remembers which script it was set up with."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.cluster.exits import check
from penstock.errors import NotFound

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.cluster.cluster import Cluster
    from penstock.job.spec import Provision
    from penstock.protocols import Exit, Node

__all__ = ["provision"]


def provision(cluster: Cluster, part: Provision, start: Callable[[Sequence[Node]], list[Exit]]) -> str:
    """Brings the script to the nodes that have not run it, and has it run by `start`; what was done, in words.

    Raises:
        NotFound: There is no such script here.
        PenstockError: A node did not take it, or it failed there.
    """
    script = Path(part.script)
    try:
        digest = hashlib.sha256(script.read_bytes()).hexdigest()
    except OSError as error:
        raise NotFound(f"provision: {script}: {error.strerror}", where=str(script)) from error
    # The node itself remembers which script it was set up with: a fresh node is set up, whatever this machine believes.
    stamp = f"{part.at}.done"
    seen = cluster.run(["cat", stamp], deadline_s=60)
    todo = [
        node
        for node, ended in zip(cluster.nodes, seen, strict=True)
        if ended.out.decode(errors="replace").strip() != digest
    ]
    if not todo:
        return "done before"
    check(cluster.copy_to_all(script, part.at, on=todo, deadline_s=60), "provision")
    check(start(todo), "provision")
    check(
        cluster.run(["sh", "-c", 'printf %s "$1" > "$2"', "sh", digest, stamp], on=todo, deadline_s=60),
        "provision",
    )
    return f"{len(todo)} of {len(cluster.nodes)} nodes"

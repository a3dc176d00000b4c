# SPDX-License-Identifier: Apache-2.0
"""Cluster: runs commands, copies files and waits at a barrier on a set of nodes, through a launcher.

from penstock.cluster import Cluster
with Cluster.open("ssh", {"nodes": "h1,h2,h3"}) as cluster:
    for ended in cluster.run(["hostname"]):
        print(ended.node, ended.code, ended.out)

Only this package calls launchers.
"""

from __future__ import annotations

from penstock.cluster.cluster import Cluster
from penstock.cluster.exits import raise_for_failures

__all__ = ["Cluster", "raise_for_failures"]

# SPDX-License-Identifier: Apache-2.0
"""Cluster: a set of nodes behind a launcher. Runs commands, copies files, waits at a barrier.

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

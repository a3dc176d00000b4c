# SPDX-License-Identifier: Apache-2.0
"""The contracts that plug-ins fulfil, and the nouns that cross them. Imports nothing else of Penstock.

A plug-in package names a factory under an entry point, and is found by the same door as ours:

    [project.entry-points."penstock.workloads"]
    mine = "mypackage:workload"          # called with no argument, returns a Workload
    [project.entry-points."penstock.launchers"]
    mine = "mypackage:launcher"          # called with (settings, environment), returns a Launcher
    [project.entry-points."penstock.containers"]
    mine = "mypackage:container"         # called with no argument, returns a Container
    [project.entry-points."penstock.engines"]
    mine = "mypackage:engine"            # called with (settings, environment), returns an Engine
"""

from __future__ import annotations

from penstock.protocols.engines import Access, Engine, Located, Pool, PoolSpec, Runner
from penstock.protocols.launchers import Around, Box, Call, Container, Exit, Hear, Launcher, Node, Part
from penstock.protocols.workloads import Batch, Demand, FieldSpec, StepCost, Workload, WorkloadSpec

__all__ = [
    "Access",
    "Around",
    "Batch",
    "Box",
    "Call",
    "Container",
    "Demand",
    "Engine",
    "Exit",
    "FieldSpec",
    "Hear",
    "Launcher",
    "Located",
    "Node",
    "Part",
    "Pool",
    "PoolSpec",
    "Runner",
    "StepCost",
    "Workload",
    "WorkloadSpec",
]
